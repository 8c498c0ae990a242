"""Compares a written graph with the reference: answers, vectors, attention."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..artifact.batch import (
    LAST,
    Row,
    RunGraph,
    Tokens,
    attention_name,
    hidden_name,
    pack,
    split,
)
from ..artifact.cpu import BF16
from ..artifact.manifest import ATTENTION, LAYERS, MODEL
from ..artifact.rows import Ints
from ..errors import PrecisionError
from ..sentence import SentenceModel
from .on_cpu import open_graph, open_in_bf16, open_in_ort
from .reference import Doubles, Reference, applied, random_sequences, sentence_vector

MAX_DISTANCE = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05, "int8": 0.5}  # of total variation; a wrong weight is above it
# absolute, of [CLS]; saturation or a wrong weight is far above
TOLERANCE = {"fp32": 1e-3, "bf16": 0.2, "fp16": 0.1, "int8": 1.0}
MIN_COSINE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.9999, "int8": 0.9}
TOP_K = 3
VECTORS = ("cls", "mean", "sentence")  # outputs whose smallest cosine to the reference is recorded
OF_MASKED_LM = ("top_logits", "top_ids", "log_sum_exp", "sparse_places", "sparse_logits")  # outputs
HARD_WORDS = 16  # of the texts of one word those with the shortest means are compared, and as many others
TIMED_TEXTS, TIMED_TOKENS, TIMED_ROUNDS = 8, 128, 4  # texts, tokens of each; the first round warms up
SPARSE_TOKENS = 31  # sparse vectors are compared for texts of so many tokens: [tokens, vocabulary] stays small


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The reference's outputs for the random sequences, in the order of `sequences`."""

    sequences: Sequence[Ints]  # each [length]
    # of the heads among cls, mean, pooler, pair, labels, choices, tags, spans, tokens, sentence; layer_tokens; of a
    # masked-LM head fill_mask, the log-probabilities at the second token, and sparse, both [vocabulary]
    outputs: Mapping[str, Sequence[Doubles]]
    attention: Sequence[Doubles]  # of the first sequences, [layers, heads, length, length]
    layout: str  # of the batch
    modes: Sequence[str]  # that the output `sentence` pools by
    of_means: bool  # whether a classifier of texts reads the mean
    vectors_of: Callable[[Sequence[Ints]], Mapping[str, Sequence[Doubles]]]  # by name in VECTORS, of other sequences


def reference_outputs(
    reference: Reference, heads: Sequence[str], sentence: SentenceModel, *, layout: str, max_tokens: int
) -> Expected:
    """Computes the outputs of `heads` on sequences of at most `max_tokens`."""
    sequences = random_sequences(reference.architecture.vocabulary, max_tokens)
    hidden = reference.hidden_states(sequences)
    computed: dict[str, Callable[[Doubles], Doubles]] = {
        "cls": lambda h: h[0],
        "mean": lambda h: h.mean(axis=0),
        "pooler": reference.pooler,
        "pair": reference.pair,
        **{name: partial(reference.classifier, name) for name in ("labels", "choices", "tags", "spans")},
        "tokens": lambda h: h,
        "sentence": lambda h: sentence_vector(h, sentence),
    }

    def vectors_of(texts: Sequence[Ints]) -> Mapping[str, Sequence[Doubles]]:
        states = reference.hidden_states(texts)
        return {name: list(map(computed[name], states)) for name in VECTORS if name in heads}

    outputs = {name: [compute(h) for h in hidden] for name, compute in computed.items() if name in heads}
    outputs |= {name: [applied(h, layers) for h in hidden] for name, layers in sentence.of_tokens.items()}
    ends = np.cumsum([len(h) for h in hidden])[:-1]
    by_layer = [np.split(states, ends) for states in reference.states]
    outputs["layer_tokens"] = [np.concatenate(layers) for layers in zip(*by_layer, strict=True)]
    if "fill_mask" in heads:
        outputs["fill_mask"] = list(reference.vocabulary(np.stack([h[1] for h in hidden])))
        outputs["sparse"] = reference.sparse([h for h in hidden if len(h) <= SPARSE_TOKENS])
    return Expected(
        sequences=sequences,
        outputs=outputs,
        attention=[np.stack(layers) for layers in zip(*reference.attention, strict=True)],
        layout=layout,
        modes=sentence.modes if "sentence" in heads else (),
        of_means=reference.classifies_mean,
        vectors_of=vectors_of,
    )


def verify(folder: Path, expected: Expected, precision: str, words: Sequence[Ints] = ()) -> dict[str, float]:
    """The largest error of each output of the artifact in `folder`. `words` are texts whose vectors are compared too.

    Raises PrecisionError if the [CLS] vectors or the attention are not the checkpoint's.
    """
    model, encoder = (open_graph(folder / name, expected.layout, precision) for name in (MODEL, LAYERS))
    masked = OF_MASKED_LM if "fill_mask" in expected.outputs else ()
    outputs = frozenset([*expected.outputs, *masked]) - {"layer_tokens", "fill_mask", "sparse"}
    rows = _rows(model, expected, expected.sequences, outputs=outputs, masks=(1,) if masked else (), top_k=TOP_K)
    layers = (*range(len(expected.attention[0])), LAST)
    states = _rows(encoder, expected, expected.sequences, outputs=frozenset({"layer_tokens"}), layers=layers)
    errors = _errors([row | of_layers for row, of_layers in zip(rows, states, strict=True)], expected, precision)
    if words:
        errors |= _with_words(errors, words, model, expected, precision)
    if precision == BF16:
        errors["company_max_abs_change"] = _change_by_company(model, expected, rows)
    errors["attention_max_abs_error"] = _attention_error(encoder, open_in_ort(folder / ATTENTION), expected, precision)
    return errors


def measure_speeds(folder: Path, expected: Expected) -> dict[str, float]:
    """Tokens a second on this machine of the bf16 artifact in `folder`, by precision: its graph also runs in fp32."""
    length = min(TIMED_TOKENS, max(map(len, expected.sequences)))
    ids = np.resize(np.concatenate(expected.sequences), (TIMED_TEXTS, length))
    graphs = {BF16: open_in_bf16(folder / MODEL), "fp32": open_in_ort(folder / MODEL, as_served=True)}
    best = dict.fromkeys(graphs, math.inf)
    for _ in range(TIMED_ROUNDS):
        for name, graph in graphs.items():
            began = time.perf_counter()
            _rows(graph, expected, list(ids), outputs=frozenset({"cls"}))
            best[name] = min(best[name], time.perf_counter() - began)
    return {name: ids.size / seconds for name, seconds in best.items()}


def _errors(rows: Sequence[Row], expected: Expected, precision: str) -> dict[str, float]:
    """The errors of all outputs but the attention. Raises the PrecisionError of `verify`."""
    pairs = {
        name: [_pair(name, row, want) for row, want in zip(rows, wanted, strict=name != "sparse")]
        for name, wanted in expected.outputs.items()
    }
    errors: dict[str, float] = {}
    for name, both in pairs.items():
        largest = [np.abs(got.astype(np.float64) - want).max() for got, want in both]
        errors[f"{name}_max_abs_error"] = float(np.max(largest))
    worst, cosine = errors["cls_max_abs_error"], _smallest_cosine(pairs["cls"])
    if not (worst <= TOLERANCE[precision] and cosine >= MIN_COSINE[precision]):  # NaN fails: max and min return it
        raise PrecisionError(
            f"the written {precision} artifact does not compute the checkpoint's vectors: [CLS] differs from the "
            f"float64 reference by up to {worst:.3g} (cosine {cosine:.5f}); use --precision fp32"
        )
    return errors | {f"{name}_smallest_cosine": _smallest_cosine(pairs[name]) for name in VECTORS if name in pairs}


def _with_words(
    errors: Mapping[str, float], words: Sequence[Ints], model: RunGraph, expected: Expected, precision: str
) -> dict[str, float]:
    """The cosines of `errors` with those of some `words`, and that of the sequences which a start repeats."""
    vectors = frozenset(VECTORS).intersection(expected.outputs)
    both = zip(words, _rows(model, expected, words, outputs=vectors), strict=True)
    ordered = sorted(both, key=lambda one: float(np.linalg.norm(one[1]["mean"])))  # int8 errs most in short means
    chosen = [*ordered[:HARD_WORDS], *ordered[HARD_WORDS :: len(words) // HARD_WORDS]]
    wanted = replace(expected, outputs=expected.vectors_of([text for text, _ in chosen]))
    found = _errors([row for _, row in chosen], wanted, precision)
    cosines = {name: min(errors[name], value) for name, value in found.items() if name.endswith("_cosine")}
    return {"golden_smallest_cosine": errors["cls_smallest_cosine"], **cosines}


def _rows(run: RunGraph, expected: Expected, sequences: Sequence[Ints], **asked: Any) -> list[Row]:
    """The answers of a batch of `sequences`; each has the fields `asked` of Tokens."""
    tokens = [Tokens(ids=ids, types=np.zeros(len(ids), np.int32), **asked) for ids in sequences]
    batch = pack(tokens, expected.layout, expected.modes, of_means=expected.of_means)
    names = sorted(batch.outputs)
    return split(batch, dict(zip(names, run(names, batch.feeds), strict=True)))


def _attention_error(encoder: RunGraph, attention: RunGraph, expected: Expected, precision: str) -> float:
    """The largest error of a probability. Raises PrecisionError if they are not the checkpoint's."""
    layers, sequences = tuple(range(len(expected.attention[0]))), expected.sequences[: len(expected.attention)]
    asked = {"outputs": frozenset({"attention"}), "layers": layers}
    largest = distance = 0.0
    for row, want in zip(_rows(encoder, expected, sequences, **asked), expected.attention, strict=True):
        feeds = {hidden_name(layer): states for layer, states in zip(layers, row["attention"], strict=True)}
        got = np.stack(attention([attention_name(layer) for layer in layers], feeds))
        errors = np.abs(got.astype(np.float64) - want)
        largest = float(np.maximum(largest, errors.max()))  # NaN stays
        distance = float(np.maximum(distance, errors.sum(axis=-1).mean() / 2))
    if not distance <= MAX_DISTANCE[precision]:
        raise PrecisionError(
            f"the written {precision} artifact does not compute the checkpoint's attention: the distance of its "
            f"probabilities to the float64 reference is {distance:.3g}, at most {MAX_DISTANCE[precision]} is expected"
        )
    return largest


def _change_by_company(graph: RunGraph, expected: Expected, rows: Sequence[Row]) -> float:
    """The largest difference between [CLS] alone and beside the other sequences: 0 if answers do not change."""
    changes = []
    for ids, row in zip(expected.sequences, rows, strict=True):
        (alone,) = _rows(graph, expected, [ids], outputs=frozenset({"cls"}))
        changes.append(np.abs(alone["cls"].astype(np.float64) - row["cls"].astype(np.float64)).max())
    return float(np.max(changes))


def _pair(name: str, row: Row, expected: Doubles) -> tuple[NDArray[np.generic], Doubles]:
    """The artifact's output `name` and the reference's.

    Of fill_mask those of the artifact's best ids, [TOP_K]; of sparse the largest logits of all words, at least 0.
    """
    if name == "fill_mask":
        best = row["top_ids"][0].astype(np.int64)
        return row["top_logits"][0].astype(np.float64) - row["log_sum_exp"][0], expected[best]
    if name == "sparse":
        got = np.zeros_like(expected)
        got[row["sparse_places"][:, 1].astype(np.int64)] = row["sparse_logits"]
        return got, expected
    return row[name], expected


def _smallest_cosine(pairs: Sequence[tuple[NDArray[np.generic], Doubles]]) -> float:
    """The smallest cosine of vectors [1, channels] to the reference's [channels]."""
    both = [(got[0].astype(np.float64), want) for got, want in pairs]
    return float(np.min([x @ y / (np.linalg.norm(x) * np.linalg.norm(y)) for x, y in both]))
