"""Where sequences of different lengths lie in rows of equal length, side by side. NumPy alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Feeds = dict[str, NDArray[np.generic]]  # graph input -> array
# ALIGNMENT and K_BLOCK together keep an answer bit-identical whatever else is in the batch
ALIGNMENT = 16  # a sequence starts at a multiple of the vector width of the softmax sum on AVX-512
BF16_ALIGNMENT = 32  # in bf16 with AMX some answers changed with company at 16, none at 32 (tested, not derived)
K_BLOCK = 128  # a sequence does not cross a K block of the attention products
LARGEST_BLOCK = 1024  # narrower heads use larger K blocks: any power of two up to this


def row_width(lengths: Ints, alignment: int = ALIGNMENT) -> int:
    """Slots per attention row: the longest sequence, rounded up to `alignment`."""
    return -(-int(lengths.max()) // alignment) * alignment


def place(lengths: Sequence[int], row_length: int, alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """First-fit decreasing under `alignment` and K_BLOCK; returns each sequence's first slot and the number of rows."""
    ends: dict[int, int] = {}  # row -> first free slot, for rows that are not full
    slots, rows = [0] * len(lengths), 0
    for i in sorted(range(len(lengths)), key=lambda j: -lengths[j]):
        for row, end in ends.items():  # noqa: B007 - row is read after the loop
            start = _next_start(end, lengths[i], alignment)
            if start + lengths[i] <= row_length:
                break
        else:
            row, start, rows = rows, 0, rows + 1
        ends[row] = start + lengths[i]
        if _next_start(ends[row], 1, alignment) >= row_length:
            del ends[row]
        slots[i] = row * row_length + start
    return slots, rows


def _next_start(end: int, length: int, alignment: int) -> int:
    start = -(-end // alignment) * alignment
    if start % K_BLOCK + length > K_BLOCK:
        block = max(K_BLOCK, min(LARGEST_BLOCK, 1 << (length - 1).bit_length()))
        start = -(-start // block) * block
    return start
