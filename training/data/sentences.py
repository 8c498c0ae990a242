"""Packs sentences that have a teacher's vector into rows, for the third loss.

The file is written by training/run/teacher.py. Knows nothing of the teacher and of torch.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.data.batches import CLS, SEP
from training.data.corpus import Array

MAX_TOKENS = 64  # of a sentence, with [CLS] and [SEP]
PER_ROW = 16  # sentences of a row at most


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceRows:
    """One batch. Sentence numbers count the sentences of all rows."""

    ids: Array  # [rows, length]
    positions: Array  # [rows, length]
    blocks: Array  # [rows, length] number of the sentence in its row, -1 for [PAD]
    owners: Array  # [rows * length] number of the sentence, rows * PER_ROW for [PAD]
    starts: Array  # [rows * PER_ROW] flat indices of [CLS], 0 where unused
    wanted: Array  # [rows * PER_ROW, hidden] the teacher's vectors of length 1, zeros where unused


class TaughtSentences:
    """Draws batches. A sentence and its translation have the same vector and are drawn together."""

    def __init__(self, path: Path) -> None:
        arrays = np.load(path)
        self.tokens, self.starts, self.vectors = arrays["tokens"], arrays["starts"], arrays["vectors"]
        self.group = arrays["group"]  # [sentences] row of `vectors`
        self.order = np.argsort(self.group, kind="stable")
        self.bounds = np.searchsorted(self.group[self.order], np.arange(len(self.vectors) + 1))

    def make_rows(self, *, count: int, length: int, seed: tuple[int, ...]) -> SentenceRows:
        """`count` rows of `length` tokens; the same seed gives the same rows."""
        drawn = self.draw(np.random.default_rng((7, *seed)), count=count * PER_ROW)
        rows = empty_rows(count=count, length=length, width=self.vectors.shape[1])
        number = 0
        for row in range(count):
            at = 0
            for block in range(PER_ROW):
                sentence = drawn[number]
                text = self.tokens[self.starts[sentence] : self.starts[sentence + 1]][: MAX_TOKENS - 2]
                span = slice(at, at + len(text) + 2)
                if span.stop > length:
                    break
                rows.ids[row, span] = np.concatenate([[CLS], text, [SEP]])
                rows.positions[row, span] = np.arange(len(text) + 2)
                rows.blocks[row, span] = block
                rows.owners.reshape(count, length)[row, span] = number
                rows.starts[number] = row * length + at
                rows.wanted[number] = self.vectors[self.group[sentence]]
                number, at = number + 1, span.stop
        return rows

    def draw(self, random: np.random.Generator, *, count: int) -> Array:
        """[count]: numbers of sentences; two of one group, a sentence and a translation, come one after the other."""
        groups = random.integers(len(self.vectors), size=count)
        members = [random.permutation(self.order[self.bounds[g] : self.bounds[g + 1]])[:2] for g in groups]
        return np.concatenate(members)[:count]


def empty_rows(*, count: int, length: int, width: int) -> SentenceRows:
    places = count * PER_ROW
    return SentenceRows(
        ids=np.zeros((count, length), dtype=np.int64),
        positions=np.zeros((count, length), dtype=np.int64),
        blocks=np.full((count, length), -1, dtype=np.int64),
        owners=np.full(count * length, places, dtype=np.int64),
        starts=np.zeros(places, dtype=np.int64),
        wanted=np.zeros((places, width), dtype=np.float32),
    )
