"""Runs the written artifact and compares its answers with the float64 reference; the errors go into the manifest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model_export.artifact.batch import OUTPUTS, PACKED_ROWS, Row, Tokens, pack, split
from model_export.errors import ExportError
from model_export.verification.cuda_on_cpu import write_portable
from model_export.verification.reference import Doubles, Reference, random_sequences

TOLERANCE = {
    "fp32": 1e-3,
    "fp16": 0.1,
    "int8": 1.0,
}  # of hidden states; a kernel that saturates or a wrong weight is far outside
SMALLEST_COSINE = {"fp32": 0.99999, "fp16": 0.9999, "int8": 0.9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the reference says of the seeded sequences."""

    sequences: Sequence[NDArray[np.int32]]
    hidden: Sequence[Doubles]  # each [length, hidden]
    outputs: Mapping[
        str, Sequence[Doubles]
    ]  # of those heads that the artifact has: "cls", "mean", "pooler", "pair", "labels", "tags"
    vocabulary: Sequence[
        Doubles
    ]  # log-probabilities at the second token, each [vocabulary]; empty without a masked-LM head


def reference_outputs(
    reference: Reference, heads: Sequence[str], *, vocabulary: int, max_tokens: int, labels: int
) -> Expected:
    sequences = random_sequences(vocabulary, max_tokens)
    hidden = reference.hidden_states(sequences)
    computed: dict[str, Callable[[Doubles], Doubles]] = {
        "cls": lambda h: h[0],
        "mean": lambda h: h.mean(axis=0),
        "pooler": reference.pooler,
        "pair": reference.pair,
        "labels": lambda h: reference.labels(h, labels),
        "tags": lambda h: reference.tags(h, labels),
    }
    outputs = {name: [compute(h) for h in hidden] for name, compute in computed.items() if name in heads}
    scores = list(reference.vocabulary(np.stack([h[1] for h in hidden]))) if "fill_mask" in heads else []
    return Expected(sequences=sequences, hidden=hidden, outputs=outputs, vocabulary=scores)


def verify(model: Path, expected: Expected, heads: Sequence[str], precision: str, layout: str) -> dict[str, float]:
    """The largest errors by output. Raises ExportError where the artifact does not compute what the checkpoint says."""
    rows = _run(model, expected.sequences, heads, layout)
    errors: dict[str, float] = {}
    pairs = {
        name: [(row[name], want) for row, want in zip(rows, wanted, strict=True)]
        for name, wanted in expected.outputs.items()
    }
    if expected.vocabulary:
        pairs["fill_mask"] = [_vocabulary_pair(row, want) for row, want in zip(rows, expected.vocabulary, strict=True)]
    for name, both in pairs.items():
        errors[f"{name}_max_abs_error"] = float(
            np.max([np.abs(got.astype(np.float64) - want).max() for got, want in both])
        )
    errors["cls_smallest_cosine"] = float(np.min([_cosine(got[0], want) for got, want in pairs["cls"]]))
    # written so that a NaN fails, as NumPy's max and min hand it on
    if not (
        errors["cls_max_abs_error"] <= TOLERANCE[precision]
        and errors["cls_smallest_cosine"] >= SMALLEST_COSINE[precision]
    ):
        raise ExportError(
            f"the written {precision} artifact does not compute what the checkpoint says: [CLS] differs from the float64 reference by up to "
            f"{errors['cls_max_abs_error']:.3g} (cosine {errors['cls_smallest_cosine']:.5f}); int8 needs a CPU with VNNI: use --precision fp32"
        )
    return errors


def _run(model: Path, sequences: Sequence[NDArray[np.int32]], heads: Sequence[str], layout: str) -> list[Row]:
    """On the CPU whatever the device: there, the attention of CUDA is computed by its definition in plain operators."""
    options = ort.SessionOptions()
    options.add_session_config_entry(
        "session.disable_prepacking", "1"
    )  # keeps the weights mapped from disk instead of copied
    runnable = model if layout == PACKED_ROWS else write_portable(model)
    session = ort.InferenceSession(runnable, options, providers=["CPUExecutionProvider"])
    if runnable != model:
        runnable.unlink()
    outputs = {name for name in OUTPUTS if name in heads}
    if "fill_mask" in heads:
        outputs |= {"top_logits", "top_ids", "log_sum_exp"}
    k = 3
    tokens = [
        Tokens(
            ids=ids,
            types=np.zeros(len(ids), np.int32),
            outputs=frozenset(outputs),
            masks=(1,) if "fill_mask" in heads else (),
            top_k=k,
        )
        for ids in sequences
    ]
    batch = pack(tokens, layout)
    names = sorted(batch.outputs)
    inputs = {i.name for i in session.get_inputs()}
    results = session.run(names, {name: array for name, array in batch.feeds.items() if name in inputs})
    return split(batch, dict(zip(names, results, strict=True)))


def _vocabulary_pair(row: Row, expected: Doubles) -> tuple[Doubles, Doubles]:
    """Log-probabilities of the artifact's best ids, and the reference's for the same ids."""
    return row["top_logits"][0].astype(np.float64) - row["log_sum_exp"][0], expected[row["top_ids"][0].astype(np.int64)]


def _cosine(a: NDArray[np.generic], b: Doubles) -> float:
    x = a.astype(np.float64)
    return float(x @ b / (np.linalg.norm(x) * np.linalg.norm(b)))
