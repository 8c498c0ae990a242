"""Encoded sources in, training rows out: sentence pairs, packed until a row is full, then masked.

A row comes from one source. The step number seeds everything, so a resumed run sees what it would have seen.
Knows nothing of torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.data.corpus import Array, Source

CLS, SEP, MASK, SPECIALS = 2, 3, 4, 5
IGNORE = -100
IS_NEXT, IS_RANDOM = 0, 1
CHOSEN_SHARE = 0.15
LEAST_PIECE = 6  # places; a gap smaller than this stays [PAD]
SHARE_FULL, SHARE_PART, SHARE_SHORT = 0.2, 0.3, 0.42  # of the pieces; the rest are single sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One packed sequence: [CLS] first [SEP], and second [SEP] where there is one."""

    first: Array
    second: Array
    label: int

    def __len__(self) -> int:
        return len(self.first) + 2 + (len(self.second) + 1 if len(self.second) else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    ids: Array  # [rows, length]
    segments: Array  # [rows, length]
    positions: Array  # [rows, length]
    blocks: Array  # [rows, length]
    chosen: Array  # [rows * chosen] flat places
    answers: Array  # [rows * chosen] the ids that stood there
    starts: Array  # [rows * starts] flat places, 0 where unused
    labels: Array  # [rows * starts] IS_NEXT, IS_RANDOM or IGNORE
    chinese: Array  # [rows] bool


class Pairs:
    """Draws pieces from one source."""

    def __init__(self, source: Source, *, random: np.random.Generator) -> None:
        self.source = source
        self.random = random
        self.inner = np.flatnonzero(source.article[1:] == source.article[:-1]) + 1  # sentences that follow another
        self.bounds = np.flatnonzero(np.diff(source.article, prepend=-1, append=-1))  # article starts, and the end

    def pieces(self, length: int) -> Iterator[Piece]:
        left = length
        while left >= LEAST_PIECE:
            piece = self.piece(left, fresh=left == length)
            left -= len(piece)
            yield piece

    def piece(self, left: int, *, fresh: bool) -> Piece:
        style = self.random.random()
        if left < 24:
            return self.single(left)
        if style < SHARE_FULL:
            return self.long(left if fresh else int(self.random.integers(24, left + 1)))
        if style < SHARE_FULL + SHARE_PART:
            return self.long(int(self.random.integers(24, left + 1)))
        if style < SHARE_FULL + SHARE_PART + SHARE_SHORT:
            return self.short(left)
        return self.single(left)

    def boundary(self) -> int:
        return int(self.inner[self.random.integers(len(self.inner))])

    def second_boundary(self, first: int) -> tuple[int, int]:
        """The same sentence, or one of another article; and which of the two it is."""
        if self.random.random() < 0.5:
            return first, IS_NEXT
        while self.source.article[other := self.boundary()] == self.source.article[first]:
            pass
        return other, IS_RANDOM

    def article_span(self, sentence: int) -> tuple[int, int]:
        at = int(np.searchsorted(self.bounds, sentence, side="right"))
        return int(self.bounds[at - 1]), int(self.bounds[at])

    def long(self, length: int) -> Piece:
        """A pair cut to fill the length: what stands before one boundary, and what follows it or another."""
        starts, tokens = self.source.starts, self.source.tokens
        first = self.boundary()
        second, label = self.second_boundary(first)
        wanted = int((length - 3) * self.random.uniform(0.2, 0.8))
        begin = max(int(starts[self.article_span(first)[0]]), int(starts[first]) - wanted)
        before = tokens[begin : starts[first]]
        end = min(int(starts[self.article_span(second)[1]]), int(starts[second]) + length - 3 - len(before))
        return Piece(first=before, second=tokens[starts[second] : end], label=label)

    def short(self, left: int) -> Piece:
        """Whole sentences, one to three a side, cut only where the row ends."""
        starts, tokens = self.source.starts, self.source.tokens
        first = self.boundary()
        second, label = self.second_boundary(first)
        back, ahead = (min(int(n), 3) for n in self.random.geometric(0.6, size=2))
        begin = max(self.article_span(first)[0], first - back)
        end = min(self.article_span(second)[1], second + ahead)
        after = tokens[starts[second] : starts[end]][: (left - 3) // 2]
        before = tokens[starts[begin] : starts[first]][-(left - 3 - len(after)) :]
        return Piece(first=before, second=after, label=label)

    def single(self, left: int) -> Piece:
        starts, tokens = self.source.starts, self.source.tokens
        sentence = self.boundary()
        text = tokens[starts[sentence] : starts[sentence + 1]][: left - 2]
        return Piece(first=text, second=text[:0], label=IGNORE)


class Packer:
    """Fills rows; draws the source of each row by its share."""

    def __init__(self, sources: list[Source], *, shares: list[float], pieces: int) -> None:
        self.sources = sources
        self.shares = np.asarray(shares) / np.sum(shares)
        self.vocabulary = pieces
        self.random = np.random.default_rng()
        self.pairs = [Pairs(source, random=self.random) for source in sources]

    def rows(self, *, count: int, length: int, seed: tuple[int, ...]) -> Rows:
        self.reseed(seed)
        per_row = length // 16
        ids, segments, positions, blocks = (np.zeros((count, length), dtype=np.int64) for _ in range(4))
        blocks -= 1
        starts = np.zeros((count, per_row), dtype=np.int64)
        labels = np.full((count, per_row), IGNORE, dtype=np.int64)
        drawn = self.random.choice(len(self.sources), size=count, p=self.shares)
        for row, number in enumerate(drawn):
            at = 0
            for block, piece in enumerate(self.pairs[number].pieces(length)):
                here = slice(at, at + len(piece))
                ids[row, here], segments[row, here] = laid_out(piece)
                positions[row, here] = np.arange(len(piece))
                blocks[row, here] = block
                if block < per_row:
                    starts[row, block], labels[row, block] = row * length + at, piece.label
                at += len(piece)
        chosen, answers = self.mask(ids)
        chinese = np.asarray([self.sources[number].language == "zh" for number in drawn])
        return Rows(
            ids=ids,
            segments=segments,
            positions=positions,
            blocks=blocks,
            chosen=chosen,
            answers=answers,
            starts=starts.ravel(),
            labels=labels.ravel(),
            chinese=chinese,
        )

    def reseed(self, seed: tuple[int, ...]) -> None:
        self.random = np.random.default_rng(seed)
        for pairs in self.pairs:
            pairs.random = self.random

    def mask(self, ids: Array) -> tuple[Array, Array]:
        """Chooses 15 % of each row; of these 80 % become [MASK], 10 % a random piece, 10 % stay. Changes ids."""
        rows, length = ids.shape
        count = int(length * CHOSEN_SHARE)
        order = self.random.random(ids.shape) + (ids < SPECIALS)
        places = np.argpartition(order, count, axis=1)[:, :count]
        flat = (places + np.arange(rows)[:, None] * length).ravel()
        answers = ids.ravel()[flat]
        fate = self.random.random(len(flat))
        anything = self.random.integers(SPECIALS, self.vocabulary, size=len(flat))
        ids.ravel()[flat] = np.where(fate < 0.8, MASK, np.where(fate < 0.9, anything, answers))
        return flat, answers


def laid_out(piece: Piece) -> tuple[Array, Array]:
    """Ids and segments of one piece."""
    first = np.concatenate([[CLS], piece.first, [SEP]])
    if not len(piece.second):
        return first, np.zeros(len(first), dtype=np.int64)
    ids = np.concatenate([first, piece.second, [SEP]])
    return ids, (np.arange(len(ids)) >= len(first)).astype(np.int64)
