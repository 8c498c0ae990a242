"""The graph inputs that say attention where each sequence is: packed rows on the CPU, cumulative lengths on CUDA.

NumPy alone; knows nothing of outputs.
"""

import numpy as np

from model_export.artifact.placement import Feeds, Ints, place, row_width


def attention_rows(lengths: Ints, starts: Ints, selected: Ints, alignment: int) -> Feeds:
    """Index arrays between flat tokens and packed rows, in which a sequence starts at a multiple of `alignment`.

    `selected` are the flat tokens that the last layer computes.
    """
    width = row_width(lengths, alignment)
    firsts, rows = place(lengths.tolist(), width, alignment)
    total = int(lengths.sum())
    token_slots = np.repeat(np.array(firsts, np.int32) - starts, lengths) + np.arange(total, dtype=np.int32)
    slot_tokens = np.zeros(rows * width, np.int32)
    slot_tokens[token_slots] = np.arange(total, dtype=np.int32)
    segments = np.full(rows * width, -1, np.int32)
    segments[token_slots] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return {
        "slot_tokens": slot_tokens.reshape(rows, width),
        "token_slots": token_slots,
        "segments": segments.reshape(rows, width),
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
