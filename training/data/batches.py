"""Makes training rows from encoded sources: sentence pairs, packed until a row is full, then masked.

A row comes from one source. The step number is part of the seed, so that a resumed run sees the rows that it would have
seen. Knows nothing of torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.data.corpus import Array, Source

CLS, SEP, MASK, SPECIALS = 2, 3, 4, 5  # token ids; SPECIALS is the number of special tokens
IGNORE = -100
IS_NEXT, IS_RANDOM = 0, 1
MASKED_SHARE = 0.15  # of the tokens (Devlin et al. 2019)
WHOLE_WORD_SHARE = 0.5  # of the rows; the others are masked by single tokens
MASK_TOKEN_SHARE, RANDOM_TOKEN_SHARE = 0.8, 0.1  # of the masked tokens; the rest stay as they are
MIN_SEQUENCE = 6  # tokens; a smaller gap at the end of a row stays [PAD]
MIN_PAIR = 24  # tokens
LONG_SHARE, PARTIAL_SHARE, SHORT_SHARE = 0.2, 0.3, 0.42  # of the sequences; the rest are single sentences
TOKENS_PER_PAIR_LABEL = 16  # a row of n tokens has at most n // 16 next-sentence labels


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequence:
    """One sequence of a row: [CLS] first [SEP], and second [SEP] if `second` is not empty."""

    first: Array
    second: Array
    label: int  # IS_NEXT, IS_RANDOM or IGNORE

    def __len__(self) -> int:
        return len(self.first) + 2 + (len(self.second) + 1 if len(self.second) else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One batch. Flat indices count the tokens of all rows."""

    ids: Array  # [rows, length]
    segments: Array  # [rows, length]
    positions: Array  # [rows, length]
    blocks: Array  # [rows, length] number of the sequence in its row, -1 for [PAD]
    masked: Array  # [rows * masked] flat indices of the tokens to predict
    targets: Array  # [rows * masked] their ids before masking
    starts: Array  # [rows * starts] flat indices of [CLS], 0 where unused
    labels: Array  # [rows * starts] IS_NEXT, IS_RANDOM or IGNORE
    chinese: Array  # [rows] bool


class SequenceSampler:
    """Draws sequences from one source."""

    def __init__(self, source: Source, *, random: np.random.Generator) -> None:
        self.source = source
        self.random = random
        self.lone = source.lone_sentences
        self.inner = np.flatnonzero(source.article[1:] == source.article[:-1]) + 1  # sentences that follow another
        self.bounds = np.flatnonzero(np.diff(source.article, prepend=-1, append=-1))  # article starts, and the end

    def fill_row(self, length: int) -> Iterator[PackedSequence]:
        """Sequences of together at most `length` tokens."""
        left = length
        while left >= MIN_SEQUENCE:
            sequence = self.draw(left, fresh=left == length)
            left -= len(sequence)
            yield sequence

    def draw(self, left: int, *, fresh: bool) -> PackedSequence:
        """A sequence of at most `left` tokens; `fresh`: the first one of its row."""
        style = self.random.random()
        if left < MIN_PAIR or self.lone:
            return self.draw_single(left)
        if style < LONG_SHARE:
            return self.draw_long_pair(left if fresh else int(self.random.integers(MIN_PAIR, left + 1)))
        if style < LONG_SHARE + PARTIAL_SHARE:
            return self.draw_long_pair(int(self.random.integers(MIN_PAIR, left + 1)))
        if style < LONG_SHARE + PARTIAL_SHARE + SHORT_SHARE:
            return self.draw_short_pair(left)
        return self.draw_single(left)

    def draw_boundary(self) -> int:
        """A sentence that follows another one of the same article."""
        return int(self.inner[self.random.integers(len(self.inner))])

    def draw_second(self, first: int) -> tuple[int, int]:
        """The sentence `first` itself, or one of another article; and the label of the two."""
        if self.random.random() < 0.5:
            return first, IS_NEXT
        while self.source.article[other := self.draw_boundary()] == self.source.article[first]:
            pass
        return other, IS_RANDOM

    def article_span(self, sentence: int) -> tuple[int, int]:
        """The first sentence of the article that `sentence` belongs to, and the one after its last."""
        at = int(np.searchsorted(self.bounds, sentence, side="right"))
        return int(self.bounds[at - 1]), int(self.bounds[at])

    def draw_long_pair(self, length: int) -> PackedSequence:
        """A pair cut to `length` tokens: the text before one boundary, and the text after it or after another one."""
        starts, tokens = self.source.starts, self.source.tokens
        first = self.draw_boundary()
        second, label = self.draw_second(first)
        wanted = int((length - 3) * self.random.uniform(0.2, 0.8))
        begin = max(int(starts[self.article_span(first)[0]]), int(starts[first]) - wanted)
        before = tokens[begin : starts[first]]
        end = min(int(starts[self.article_span(second)[1]]), int(starts[second]) + length - 3 - len(before))
        return PackedSequence(first=before, second=tokens[starts[second] : end], label=label)

    def draw_short_pair(self, left: int) -> PackedSequence:
        """Whole sentences, one to three on each side, cut only at the end of the row."""
        starts, tokens = self.source.starts, self.source.tokens
        first = self.draw_boundary()
        second, label = self.draw_second(first)
        back, ahead = (min(int(n), 3) for n in self.random.geometric(0.6, size=2))
        begin = max(self.article_span(first)[0], first - back)
        end = min(self.article_span(second)[1], second + ahead)
        after = tokens[starts[second] : starts[end]][: (left - 3) // 2]
        before = tokens[starts[begin] : starts[first]][-(left - 3 - len(after)) :]
        return PackedSequence(first=before, second=after, label=label)

    def draw_single(self, left: int) -> PackedSequence:
        starts, tokens = self.source.starts, self.source.tokens
        sentence = int(self.random.integers(len(self.source.article))) if self.lone else self.draw_boundary()
        text = tokens[starts[sentence] : starts[sentence + 1]][: left - 2]
        return PackedSequence(first=text, second=text[:0], label=IGNORE)


class Packer:
    """Fills rows; draws the source of each row by its share."""

    def __init__(
        self,
        sources: list[Source],
        *,
        shares: list[float],
        vocabulary_size: int,
        continuing: Array | None = None,
        masked_share: float = MASKED_SHARE,
    ) -> None:
        """`continuing`: [vocabulary] bool, the tokens that continue a word; without it no word is masked as a whole."""
        self.sources = sources
        self.set_shares(shares)
        self.vocabulary_size = vocabulary_size
        self.continuing = continuing
        self.masked_share = masked_share
        self.random = np.random.default_rng()
        self.samplers = [SequenceSampler(source, random=self.random) for source in sources]

    def set_shares(self, shares: list[float]) -> None:
        """The share of the rows that come from each source; they need not add up to 1."""
        self.shares = np.asarray(shares) / np.sum(shares)

    def make_rows(self, *, count: int, length: int, seed: tuple[int, ...]) -> Rows:
        """`count` rows of `length` tokens; the same seed gives the same rows."""
        self.reseed(seed)
        per_row = length // TOKENS_PER_PAIR_LABEL
        ids, segments, positions, blocks = (np.zeros((count, length), dtype=np.int64) for _ in range(4))
        blocks -= 1
        starts = np.zeros((count, per_row), dtype=np.int64)
        labels = np.full((count, per_row), IGNORE, dtype=np.int64)
        drawn = self.random.choice(len(self.sources), size=count, p=self.shares)
        for row, number in enumerate(drawn):
            at = 0
            for block, sequence in enumerate(self.samplers[number].fill_row(length)):
                span = slice(at, at + len(sequence))
                ids[row, span], segments[row, span] = lay_out(sequence)
                positions[row, span] = np.arange(len(sequence))
                blocks[row, span] = block
                if block < per_row:
                    starts[row, block], labels[row, block] = row * length + at, sequence.label
                at += len(sequence)
        masked, targets = self.mask(ids)
        return Rows(
            ids=ids,
            segments=segments,
            positions=positions,
            blocks=blocks,
            masked=masked,
            targets=targets,
            starts=starts.ravel(),
            labels=labels.ravel(),
            chinese=np.asarray([self.sources[number].language == "zh" for number in drawn]),
        )

    def reseed(self, seed: tuple[int, ...]) -> None:
        self.random = np.random.default_rng(seed)
        for sampler in self.samplers:
            sampler.random = self.random

    def mask(self, ids: Array) -> tuple[Array, Array]:
        """Selects `masked_share` of each row: 80 % become [MASK], 10 % a random token, 10 % stay. Changes `ids`.

        Returns the flat indices of the selected tokens, and their ids before.
        """
        rows, length = ids.shape
        count = int(length * self.masked_share)
        order = self.random.random(ids.shape)
        if self.continuing is not None:
            whole = self.random.random((rows, 1)) < WHOLE_WORD_SHARE
            order = np.take_along_axis(order, word_starts(self.continuing[ids] & whole), axis=1)
        order += ids < SPECIALS  # special tokens come last
        columns = np.argpartition(order, count, axis=1)[:, :count]
        flat = (columns + np.arange(rows)[:, None] * length).ravel()
        targets = ids.ravel()[flat]
        draw = self.random.random(len(flat))
        other = self.random.integers(SPECIALS, self.vocabulary_size, size=len(flat))
        kept_or_random = np.where(draw < MASK_TOKEN_SHARE + RANDOM_TOKEN_SHARE, other, targets)
        ids.ravel()[flat] = np.where(draw < MASK_TOKEN_SHARE, MASK, kept_or_random)
        return flat, targets


def word_starts(continues: Array) -> Array:
    """[rows, length]: the column of the first token of the word that each token belongs to.

    continues: [rows, length] bool, whether a token continues the word before it.
    """
    columns = np.broadcast_to(np.arange(continues.shape[1]), continues.shape)
    starts: Array = np.maximum.accumulate(np.where(continues, 0, columns), axis=1)
    return starts


def lay_out(sequence: PackedSequence) -> tuple[Array, Array]:
    """Ids and segments of one sequence."""
    first = np.concatenate([[CLS], sequence.first, [SEP]])
    if not len(sequence.second):
        return first, np.zeros(len(first), dtype=np.int64)
    ids = np.concatenate([first, sequence.second, [SEP]])
    return ids, (np.arange(len(ids)) >= len(first)).astype(np.int64)
