"""The places of sequences in attention rows, and the inputs of attention."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Feeds = dict[str, NDArray[np.generic]]  # graph input -> array
# ALIGNMENT and K_BLOCK together keep an answer bit-identical whatever else is in the batch
ALIGNMENT = 16  # a sequence starts at a multiple of the vector width of the softmax sum on AVX-512
BF16_ALIGNMENT = 32  # in bf16 with AMX some answers changed with neighbours at 16, none at 32 (tested, not derived)
K_BLOCK = 128  # a sequence does not cross a K block of the attention products
LARGEST_BLOCK = 1024  # narrower heads use larger K blocks: any power of two up to this


def row_width(lengths: Ints, alignment: int = ALIGNMENT) -> int:
    """Slots per attention row: the longest sequence, rounded up to `alignment`."""
    return -(-int(lengths.max()) // alignment) * alignment


def place(lengths: Sequence[int], row_length: int, alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """First-fit decreasing under `alignment` and K_BLOCK; returns each sequence's first slot and the number of rows."""
    ends: dict[int, int] = {}  # row -> first free slot, for rows that are not full
    slots, rows = [0] * len(lengths), 0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
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


def attention_rows(lengths: Ints, starts: Ints, selected: Ints, unattended: Ints, alignment: int) -> Feeds:
    """Index arrays between flat tokens and packed rows, in which a sequence starts at a multiple of `alignment`.

    `selected` are the flat tokens that the last layer computes, `unattended` those that are no keys.
    """
    width = row_width(lengths, alignment)
    firsts, rows = place(lengths.tolist(), width, alignment)
    total = int(lengths.sum())
    token_slots = np.repeat(np.array(firsts, np.int32) - starts, lengths) + np.arange(total, dtype=np.int32)
    slot_tokens = np.zeros(rows * width, np.int32)
    slot_tokens[token_slots] = np.arange(total, dtype=np.int32)
    segments = np.full(rows * width, -1, np.int32)
    segments[token_slots] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    keys = segments
    if len(unattended):
        keys = segments.copy()
        keys[token_slots[unattended]] = -2  # of no sequence, as -1 is the segment of unused queries
    return {
        "slot_tokens": slot_tokens.reshape(rows, width),
        "token_slots": token_slots,
        "segments": segments.reshape(rows, width),
        "key_segments": keys.reshape(rows, width),
    } | _query_rows(selected, token_slots[selected], segments, rows=rows, width=width)


def cumulative_lengths(lengths: Ints, starts: Ints, selected: Ints) -> Feeds:
    """The inputs of PackedMultiHeadAttention: the first flat token of each sequence, and the index of each flat token
    in a padded batch [sequences, longest], padding last."""
    filled = np.arange(lengths.max()) < lengths[:, None]
    offsets = np.concatenate([np.flatnonzero(filled), np.flatnonzero(~filled)])
    return {
        "token_offset": offsets.astype(np.int32).reshape(filled.shape),
        "cumulative_lengths": np.append(starts, lengths.sum()).astype(np.int32),
        "chosen": selected,
    }


def _query_rows(selected: Ints, slots: Ints, segments: Ints, *, rows: int, width: int) -> Feeds:
    """The selected tokens by row, at least two: a one-row product runs another kernel, which rounds differently."""
    row = slots // width
    order = np.argsort(row, kind="stable")
    counts = np.bincount(row, minlength=rows)
    queries = max(2, int(counts.max()))
    within = np.empty(len(selected), np.int64)
    within[order] = np.arange(len(selected)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen_slots = (row * queries + within).astype(np.int32)
    query_chosen = np.zeros(rows * queries, np.int32)
    query_chosen[chosen_slots] = np.arange(len(selected), dtype=np.int32)
    query_segments = np.full(rows * queries, -1, np.int32)
    query_segments[chosen_slots] = segments[slots]
    return {
        "chosen": selected,
        "query_chosen": query_chosen.reshape(rows, queries),
        "query_segments": query_segments.reshape(rows, queries),
        "chosen_slots": chosen_slots,
    }
