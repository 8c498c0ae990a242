"""The inputs of the graph: the places of sequences in attention rows, and what means and vectors are made of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Feeds = dict[str, NDArray[np.generic]]  # graph input -> array
# ALIGNMENT and K_BLOCK together keep an answer bit-identical whatever else is in the batch
ALIGNMENT = 16  # a sequence starts at a multiple of the vector width of the softmax sum on AVX-512
BF16_ALIGNMENT = 32  # in bf16 with AMX some answers changed with neighbours at 16, none at 32 (tested, not derived)
K_BLOCK = 128  # a sequence does not cross a K block of the attention products
LARGEST_BLOCK = 1024  # narrower heads use larger K blocks: any power of two up to this
MEANS = 16  # means per row: the narrowest block of the product that computes them
BLOCK = 16  # tokens whose maximum is computed together
ENDS = frozenset({"cls", "lasttoken"})  # the modes that read one token
WEIGHTED = ("mean", "mean_sqrt_len_tokens", "weightedmean")  # the modes that are sums
MODES = frozenset({*ENDS, "max", *WEIGHTED})
SPARSE_BLOCK = 32  # tokens in a product, always: with another number, ONNX Runtime adds up in another order
PART = 8  # tokens of one text
PARTS = SPARSE_BLOCK // PART
SHIFTS = (1, 2, 4)  # steps of a parallel prefix maximum over five parts: the part before a block and its own four
SECOND_LOG = "log1p_relu"  # the activation log(1 + log(1 + relu(logit)))
NO_TEXT = -1  # owner of a part that only fills a block
NOTHING: Feeds = {  # of a batch without sparse vectors
    "sparse_tokens": np.zeros((0, SPARSE_BLOCK), np.int32),
    "sparse_joins": np.zeros((0, len(SHIFTS), 1 + PARTS, 1), np.float32),
    "sparse_ends": np.zeros((0, PARTS, 1), np.float32),
    "sparse_offsets": np.zeros((0, 2, 1), np.int32),
    "sparse_count": np.zeros(1, np.int64),
}


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PooledTokens:
    """The sequences of a batch that are pooled, and the places of their tokens among the rows of the last layer."""

    lengths: Ints  # [pooled]
    firsts: Ints  # [pooled]: the first position that is pooled
    rows: Sequence[Ints]  # the positions of each sequence that the last layer computes, ascending
    starts: NDArray[np.int64]  # [pooled]: the row of each sequence's first computed position

    def row_of(self, positions: Sequence[int]) -> Ints:
        """The rows of the computed `positions`, [pooled]: a position for each sequence."""
        offsets = [np.searchsorted(rows, position) for rows, position in zip(self.rows, positions, strict=True)]
        return np.asarray(self.starts + np.array(offsets, np.int64), np.int32)


def mean_feeds(pooled: PooledTokens) -> Feeds:
    """The inputs of the output `mean`: the mean over all tokens of a sequence, special tokens included."""
    slots, (weights,), back = _weighted(pooled, ["mean"])
    return {"mean_slots": slots, "mean_weights": weights, "mean_back": back}


def sentence_feeds(pooled: PooledTokens, modes: Sequence[str]) -> Feeds:
    """The inputs of the output `sentence` for its `modes`; without sequences that ask for it they are small."""
    feeds: Feeds = {}
    if "cls" in modes:
        feeds["sentence_first"] = pooled.row_of(pooled.firsts.tolist())
    if "lasttoken" in modes:
        feeds["sentence_last"] = pooled.row_of((pooled.lengths - 1).tolist())
    if "max" in modes:
        feeds |= _max_feeds(pooled)
    if weighted := [mode for mode in modes if mode in WEIGHTED]:
        slots, weights, back = _weighted(pooled, weighted)
        feeds |= {"sentence_slots": slots, "sentence_back": back}
        feeds |= {f"sentence_weights_{mode}": one for mode, one in zip(weighted, weights, strict=True)}
    return feeds


def _weighted(pooled: PooledTokens, modes: Sequence[str]) -> tuple[Ints, list[Floats], Ints]:
    """Weighted sums of a sequence's tokens, as a product of weights [rows, means, width] with packed rows.

    The rows are packed as in attention. Returns the slots [rows, width], the weights of each mode, and the sum of
    each sequence [pooled]. A row has at most MEANS sums: with more, the product sums smaller blocks.
    """
    if not len(pooled.lengths):
        weights = [np.zeros((1, 2, 1), np.float32) for _ in modes]
        return np.zeros((1, 1), np.int32), weights, np.zeros(0, np.int32)
    width = row_width(pooled.lengths)
    firsts, rows = place(pooled.lengths.tolist(), width)
    packed = np.array(firsts) // width
    within = np.array([int((packed[:n] == packed[n]).sum()) for n in range(len(packed))])
    parts, row = np.unique(packed * width + within // MEANS, return_inverse=True)
    within, rows = within % MEANS, len(parts)
    means = max(2, int(within.max()) + 1)  # at least two: see _query_rows
    slots = np.zeros((rows, width), np.int32)
    weights = [np.zeros((rows, means, width), np.float32) for _ in modes]
    lengths, skipped, columns = pooled.lengths.tolist(), pooled.firsts.tolist(), [first % width for first in firsts]
    at = list(zip(row.tolist(), within.tolist(), columns, lengths, strict=True))
    for (i, _, column, length), start in zip(at, pooled.starts.tolist(), strict=True):
        slots[i, column : column + length] = np.arange(start, start + length)
    for array, mode in zip(weights, modes, strict=True):
        for (i, j, column, length), first in zip(at, skipped, strict=True):
            array[i, j, column + first : column + length] = _weights_of(mode, length, first)
    return slots, weights, (row * means + within).astype(np.int32)


def _weights_of(mode: str, length: int, first: int) -> Floats | float:
    """The weights of the tokens from position `first` on, or a weight for all.

    In "weightedmean" token i, counted from 1 at the start of the sequence, weighs i: tokens of a prompt count too.
    """
    if mode == "weightedmean":
        weights = np.arange(first + 1, length + 1, dtype=np.float64)
        return np.asarray(weights / weights.sum(), np.float32)
    return 1.0 / (length - first if mode == "mean" else math.sqrt(length - first))


def _max_feeds(pooled: PooledTokens) -> Feeds:
    """The maximum in two steps: of blocks of BLOCK tokens, then of the blocks of each sequence.

    A block or a list of blocks that is not full repeats its first item, which changes no maximum.
    """
    if not len(pooled.lengths):
        none = np.zeros((1, 1), np.int32)
        return {"sentence_blocks": none, "sentence_maxima": none, "sentence_max_back": np.zeros(0, np.int32)}
    blocks = []
    for start, first, length in zip(pooled.starts, pooled.firsts, pooled.lengths, strict=True):
        tokens = np.arange(start + first, start + length, dtype=np.int32)
        blocks.append(np.pad(tokens, (0, -len(tokens) % BLOCK), constant_values=tokens[0]).reshape(-1, BLOCK))
    counts = np.array([len(of_text) for of_text in blocks], np.int32)[:, None]
    within = np.arange(counts.max(), dtype=np.int32)
    maxima = np.cumsum(counts, dtype=np.int32)[:, None] - counts + np.where(within < counts, within, 0)
    back = np.arange(len(counts), dtype=np.int32)
    return {"sentence_blocks": np.concatenate(blocks), "sentence_maxima": maxima, "sentence_max_back": back}


def word_weights(logits: NDArray[np.generic], activation: str) -> NDArray[np.float64]:
    """The weights of words of these largest logits, all above zero; `activation` is that of the manifest."""
    weights = np.log1p(logits.astype(np.float64))
    return np.log1p(weights) if activation == SECOND_LOG else weights


def sparse_feeds(pooled: PooledTokens) -> Feeds:
    """The inputs of the outputs `sparse_places` and `sparse_logits`, for at least one text."""
    lengths, starts = pooled.lengths, pooled.starts
    counts = _parts(lengths)
    owners = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    tokens = within[:, None] * PART + np.arange(PART)
    tokens = np.where(tokens < lengths[owners][:, None], tokens, 0) + starts[owners][:, None]
    fill = -len(owners) % PARTS
    tokens = np.concatenate([tokens, np.full((fill, PART), starts[0])]).astype(np.int32)
    flat = np.append(owners, np.full(fill, NO_TEXT))
    ends = (flat != np.append(flat[1:], NO_TEXT)) & (flat != NO_TEXT)  # 1 if a text ends there
    blocks = flat.reshape(-1, PARTS)
    offsets = np.column_stack([np.arange(len(blocks)) * PARTS, np.zeros(len(blocks))])  # of the part, and of the id
    return {
        "sparse_tokens": tokens.reshape(-1, SPARSE_BLOCK),
        "sparse_joins": _joins(blocks),
        "sparse_ends": ends.reshape(-1, PARTS, 1).astype(np.float32),
        "sparse_offsets": offsets.astype(np.int32)[:, :, None],
        "sparse_count": np.array([len(blocks)], np.int64),
    }


def sparse_spans(places: NDArray[np.generic], lengths: Sequence[int]) -> list[slice]:
    """The rows of `places` [weights, 2], the part and the id of each weight, that belong to each of the texts."""
    last = np.cumsum(_parts(np.array(lengths))) - 1
    starts, ends = (np.searchsorted(places[:, 0], last, side=side).tolist() for side in ("left", "right"))
    return list(map(slice, starts, ends))


def _parts(lengths: NDArray[np.integer]) -> NDArray[np.integer]:
    return np.asarray(-(-lengths // PART))


def _joins(owners: NDArray[np.integer]) -> NDArray[np.float32]:
    """[blocks, shifts, 1 + parts, 1]: 0 if a part and the part at this distance before it are of a text, else -inf.

    The first part of a block is the last part of the block before.
    """
    before = np.append(NO_TEXT - 1, owners[:-1, -1])
    all_parts = np.column_stack([before, owners])
    joins = np.full((len(owners), len(SHIFTS), 1 + PARTS, 1), -np.inf, np.float32)
    for i, shift in enumerate(SHIFTS):
        joins[:, i, shift:, 0][all_parts[:, shift:] == all_parts[:, :-shift]] = 0
    return joins
