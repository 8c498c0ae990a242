"""Sequences packed into the inputs of the graph, and its outputs split into rows."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .manifest import BF16_ROWS, OF_MEANS, PACKED_ROWS, TOKEN_WEIGHTS
from .rows import (
    ALIGNMENT,
    BF16_ALIGNMENT,
    ENDS,
    NOTHING,
    Feeds,
    Ints,
    PooledTokens,
    attention_rows,
    cumulative_lengths,
    mean_feeds,
    sentence_feeds,
    sparse_feeds,
    sparse_spans,
)

LAST = -1  # the last layer, in Tokens.layers; 0 is the output of the embeddings
OFFSETS = "hidden_offsets"  # graph output [layers + 1, hidden]: int8's channel shift subtracted them; add them again
ATTENTION_OUTPUTS = frozenset({"attention", "attention_mean"})  # by head; the mean of all heads
LAYER_OUTPUTS = frozenset({"layer_cls", "layer_mean", "layer_tokens"}) | ATTENTION_OUTPUTS
Arrays = Mapping[str, NDArray[np.generic]]
RunGraph = Callable[[Sequence[str], Arrays], list[NDArray[np.generic]]]  # outputs by name; feeds may hold more inputs
Row = dict[str, NDArray[np.generic]]  # output name -> the rows of a sequence
SEQUENCE, TOKEN, POOLED, MASK, TARGET = "sequence", "token", "pooled tokens", "mask", "target"
SENTENCE, SPARSE, LAYER = "sentence vector", "sparse vector", "layer"
SELECTED = "selected"  # not of an output: the rows of the last layer
OUTPUTS = {  # output -> what each of its rows belongs to
    **dict.fromkeys(("cls", "pooler", "pair", "labels", "choices"), SEQUENCE),
    **dict.fromkeys(("mean", *sorted(OF_MEANS)), POOLED),
    "sentence": SENTENCE,
    **dict.fromkeys(("tags", "spans", "tokens", "multi", TOKEN_WEIGHTS), TOKEN),
    **dict.fromkeys(("top_logits", "top_ids", "log_sum_exp"), MASK),
    "target_logits": TARGET,
    **dict.fromkeys(("sparse_places", "sparse_logits"), SPARSE),
    **dict.fromkeys(sorted(LAYER_OUTPUTS), LAYER),
}
ASKED_AS = {name: name.removeprefix("mean_") for name in OF_MEANS}  # output of a graph -> what a request names
WHOLE = frozenset({TOKEN, POOLED, SPARSE})  # kinds that read all tokens of a sequence
ONLY_CLS = np.zeros(1, np.int32)  # the positions selected if [CLS] alone is needed
NOTHING_POOLED = PooledTokens(lengths=ONLY_CLS[:0], firsts=ONLY_CLS[:0], rows=(), starts=np.zeros(0, np.int64))
ROW_ALIGNMENT = {PACKED_ROWS: ALIGNMENT, BF16_ROWS: BF16_ALIGNMENT}


def hidden_name(layer: int) -> str:
    """The graph output with the hidden states of `layer`."""
    return "hidden.last" if layer == LAST else f"hidden.{layer}"


def attention_name(layer: int) -> str:
    """The output of the graph of the attention with the probabilities of `layer`, counted from 0."""
    return f"attention.{layer}"


@lru_cache(maxsize=1024)
def kinds_of(outputs: frozenset[str]) -> frozenset[str]:
    """The kinds of owner (SEQUENCE, TOKEN, ...) of the rows of `outputs`."""
    return frozenset(OUTPUTS[name] for name in outputs)


@dataclass(slots=True, kw_only=True, eq=False)  # frozen, each text would take 1 us more to make
class Tokens:
    """A tokenized sequence and the outputs that are requested for it."""

    ids: Ints  # [length]
    types: Ints  # [length]
    outputs: frozenset[str]  # names out of OUTPUTS
    masks: tuple[int, ...] = ()  # positions to score over the vocabulary
    top_k: int = 1
    targets: tuple[int, ...] = ()  # vocabulary ids to score at each mask
    pooled_from: int = 0  # the first position that the `sentence` output pools: after a prompt that is left out
    layers: tuple[int, ...] = ()  # whose states LAYER_OUTPUTS read: 0 the embeddings, LAST the last layer
    unattended: int = 0  # of the last tokens: no token attends to them

    def __len__(self) -> int:
        return len(self.ids)


ASKED = tuple(one.name for one in fields(Tokens) if one.name not in ("ids", "types"))
what_is_asked = attrgetter(*ASKED)  # of a sequence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The input arrays of a forward pass, and the rows of its outputs that belong to each sequence."""

    feeds: Arrays
    outputs: frozenset[str]  # of the graph
    spans: Mapping[str, Sequence[slice]]  # kind -> the rows of each sequence
    tokens: int
    slots: int  # attention slots, used or not: tokens / slots is the fill rate
    owners: Sequence[Tokens] = field(repr=False)


def pack(
    sequences: Sequence[Tokens], layout: str = PACKED_ROWS, modes: Sequence[str] = (), *, of_means: bool = False
) -> Batch:
    """Concatenates `sequences` into a batch of `layout`. Raises ValueError on an empty list.

    `modes` are those of MODES that the model's `sentence` output pools by; empty without that output. `of_means`: its
    classifier of texts reads the mean.
    """
    if not sequences:
        raise ValueError("a batch needs at least one sequence")
    if of_means:
        names = {asked: name for name, asked in ASKED_AS.items()}
        sequences = [replace(s, outputs=frozenset(names.get(name, name) for name in s.outputs)) for s in sequences]
    if len(sequences) > 1:
        return _pack(sequences, layout, modes)
    (tokens,) = sequences
    packed = _pack_zeros(len(tokens.ids), what_is_asked(tokens), layout, tuple(modes))
    return replace(packed, feeds={**packed.feeds, "ids": tokens.ids, "types": tokens.types}, owners=sequences)


@lru_cache(maxsize=512)  # packing a text anew takes 0.3 ms between two runs
def _pack_zeros(length: int, asked: tuple[Any, ...], layout: str, modes: tuple[str, ...]) -> Batch:
    """A batch of a single sequence of zeros. A batch that asks the same differs from it only in `ids` and `types`."""
    zeros = np.zeros(length, np.int32)
    return _pack([Tokens(ids=zeros, types=zeros, **dict(zip(ASKED, asked, strict=True)))], layout, modes)


def _pack(sequences: Sequence[Tokens], layout: str, modes: Sequence[str]) -> Batch:
    lengths = np.array([len(s.ids) for s in sequences], np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    feeds: Feeds = {
        "ids": np.concatenate([s.ids for s in sequences]),
        "types": np.concatenate([s.types for s in sequences]),
        "positions": np.arange(lengths.sum(), dtype=np.int32) - np.repeat(starts, lengths),
    }
    selected = [_select_positions(s, modes) for s in sequences]
    heads, spans = _head_feeds(sequences, selected)
    flat = np.concatenate(selected) + np.repeat(starts, [len(rows) for rows in selected])
    if layout in ROW_ALIGNMENT:
        ends = (starts + lengths).tolist()
        filled = [(end - s.unattended, end) for s, end in zip(sequences, ends, strict=True) if s.unattended]
        unattended = [at for first, end in filled for at in range(first, end)]
        attention = attention_rows(lengths, starts, flat, np.array(unattended, np.int32), ROW_ALIGNMENT[layout])
    else:
        attention = cumulative_lengths(lengths, starts, flat)
    feeds |= heads | attention | mean_feeds(_pooled_tokens(sequences, selected, POOLED))
    if modes:
        feeds |= sentence_feeds(_pooled_tokens(sequences, selected, SENTENCE), modes)
    feeds |= sparse_feeds(_pooled_tokens(sequences, selected, SPARSE)) if SPARSE in spans else NOTHING
    wanted = frozenset().union(*[s.outputs for s in sequences])
    if LAYER in spans:
        wanted = (wanted - LAYER_OUTPUTS).union(
            *({OFFSETS, *map(hidden_name, s.layers)} for s in sequences if s.layers)
        )
        spans[LAYER] = list(map(slice, starts.tolist(), (starts + lengths).tolist()))
        ends = np.cumsum([len(rows) for rows in selected]).tolist()
        spans[SELECTED] = list(map(slice, [0, *ends], ends))
    slots = feeds["slot_tokens"].size if layout in ROW_ALIGNMENT else len(feeds["ids"])
    return Batch(feeds=feeds, outputs=wanted, spans=spans, tokens=int(lengths.sum()), slots=slots, owners=sequences)


def split(batch: Batch, outputs: Arrays) -> list[Row]:
    """A row for each sequence, in the order given to `pack`, with the outputs that the sequence requested."""
    spans = batch.spans
    if SPARSE in spans:  # how many weights a text has is known only now
        asked = [SPARSE in kinds_of(tokens.outputs) for tokens in batch.owners]
        lengths = [len(tokens) for tokens, asks in zip(batch.owners, asked, strict=True) if asks]
        found = iter(sparse_spans(outputs["sparse_places"], lengths))
        spans = {**spans, SPARSE: [next(found) if asks else slice(0) for asks in asked]}
    return [
        {
            ASKED_AS.get(name, name): _by_layer(name, tokens.layers, outputs, spans[LAYER][i], spans[SELECTED][i])
            if name in LAYER_OUTPUTS
            else outputs[name][spans[OUTPUTS[name]][i]]
            for name in tokens.outputs
        }
        for i, tokens in enumerate(batch.owners)
    ]


def _by_layer(name: str, layers: tuple[int, ...], outputs: Arrays, own: slice, selected: slice) -> NDArray[np.generic]:
    """The output `name` of a sequence, layer after layer: a row for each layer, or for each token of each layer.

    `own` are its tokens in the batch, and `selected` those of them that the last layer computed; the first is [CLS].
    For ATTENTION_OUTPUTS it is the states that each layer's attention reads, [layers, tokens, hidden], in the graph's
    dtype.
    """
    if name in ATTENTION_OUTPUTS:
        return np.stack([outputs[hidden_name(layer)][own] for layer in layers])
    rows = []
    for layer in layers:
        states = outputs[hidden_name(layer)][selected if layer == LAST else own]
        states = states.astype(np.float32, copy=False) + outputs[OFFSETS][layer]
        if name == "layer_cls":
            states = states[:1]
        elif name == "layer_mean":  # the sum does not depend on the neighbours, since it is over the first axis
            states = states.mean(axis=0, dtype=np.float64, keepdims=True).astype(np.float32)
        rows.append(states)
    return np.concatenate(rows)


def _select_positions(tokens: Tokens, modes: Sequence[str]) -> Ints:
    """The positions that the last layer computes, ascending: all of them, or those that the heads read."""
    kinds = kinds_of(tokens.outputs)
    if (
        WHOLE & kinds
        or (SENTENCE in kinds and not ENDS.issuperset(modes))
        or (LAST in tokens.layers and tokens.outputs != {"layer_cls"})
    ):
        return np.arange(len(tokens), dtype=np.int32)
    if not tokens.masks and SEQUENCE in kinds and SENTENCE not in kinds:
        return ONLY_CLS
    read = {*tokens.masks} | ({0} if SEQUENCE in kinds or LAYER in kinds else set())
    if SENTENCE in kinds:
        ends = {"cls": tokens.pooled_from, "lasttoken": len(tokens) - 1}
        read |= {ends[mode] for mode in modes}
    return np.array(sorted(read), np.int32)


def _pooled_tokens(sequences: Sequence[Tokens], selected: Sequence[Ints], kind: str) -> PooledTokens:
    """The sequences that an output of `kind` is asked of; only SENTENCE can leave out a prompt."""
    owners = [i for i, tokens in enumerate(sequences) if kind in kinds_of(tokens.outputs)]
    if not owners:
        return NOTHING_POOLED
    starts = np.cumsum([0, *map(len, selected)])
    firsts = [sequences[i].pooled_from if kind == SENTENCE else 0 for i in owners]
    return PooledTokens(
        lengths=np.array([len(sequences[i]) for i in owners], np.int32),
        firsts=np.array(firsts, np.int32),
        rows=[selected[i] for i in owners],
        starts=starts[owners],
    )


def _head_feeds(sequences: Sequence[Tokens], selected: Sequence[Ints]) -> tuple[Feeds, dict[str, list[slice]]]:
    """The selected rows that each head reads, and the rows of each head's output that belong to each sequence."""
    index: defaultdict[str, list[int]] = defaultdict(list)  # kind -> what it reads
    spans: dict[str, list[slice]] = {kind: [] for kind in frozenset().union(*[kinds_of(s.outputs) for s in sequences])}
    base = 0
    for i, (tokens, rows) in enumerate(zip(sequences, selected, strict=True)):
        kinds = kinds_of(tokens.outputs)
        before = [len(index[kind]) for kind in spans]
        if SEQUENCE in kinds:
            index[SEQUENCE].append(base)
        if TOKEN in kinds:
            index[TOKEN] += range(base, base + len(rows))
        for kind in kinds & {POOLED, SENTENCE, SPARSE}:
            index[kind].append(i)
        for offset in np.searchsorted(rows, tokens.masks).tolist() if tokens.masks else ():
            index["mask of target"] += [len(index[MASK])] * len(tokens.targets)
            index[TARGET] += tokens.targets
            index[MASK].append(base + offset)
        base += len(rows)
        for (kind, slices), start in zip(spans.items(), before, strict=True):
            slices.append(slice(start, len(index[kind])))
    feeds: Feeds = {
        "cls_index": np.array(index[SEQUENCE], np.int32),
        "token_index": np.array(index[TOKEN], np.int32),
        "mask_index": np.array(index[MASK], np.int32),
        "target_pairs": np.array([index["mask of target"], index[TARGET]], np.int64).T.reshape(-1, 2),
        "k": np.array([max([s.top_k for s in sequences], default=1)], np.int64),
    }
    return feeds, spans
