"""`python -m benchmarks.engine.parity`: answers at BERT-base size against transformers, and alone against in a batch.

The weights are random. Lengths 1..512 are mixed in one batch here, whereas transformers computes each text alone.
The exit code is 1 if a figure does not hold.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from transformers import BertForPreTraining

from benchmarks.engine.accuracy import finite
from benchmarks.engine.ceiling import silence_warnings
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import ON_CPU, SIZES, artifact, checkpoint
from benchmarks.harness.machine import table, write
from packbert.model_export.artifact.batch import Tokens, pack, split
from packbert.model_export.build import build_graph
from packbert.model_export.checkpoint import Checkpoint
from packbert.service.artifact import open_artifact
from packbert.service.engine.cpu import available_cores
from packbert.service.engine.runner import ModelRunner

ALL = frozenset({"cls", "mean", "pooler", "pair", "top_logits", "top_ids", "log_sum_exp"})
LENGTHS = [1, 2, 3, 7, 16, 17, 31, 64, 100, 127, 128, 129, 200, 256, 300, 384, 511, 512]
TOP_K, GROUP = 5, 32
LIMITS = {
    "hidden states": 1e-4,
    "[CLS] vectors": 1e-4,
    "mean vectors": 1e-4,
    "pooler": 1e-4,
    "pair probabilities": 1e-5,
    "mask probabilities": 1e-5,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    parser.add_argument(
        "--groups", type=int, default=3, help="batches of 32 texts, each of which is compared with its answer alone"
    )
    arguments = parser.parse_args()
    silence_warnings()
    errors = against_transformers(arguments.size)
    changed = {precision: changed_by_batch(arguments.size, precision, arguments.groups) for precision in ON_CPU}
    wrong_ids = errors.pop("masks whose top 5 differ")
    rows = [[name, f"{error:.2g}", f"<= {LIMITS[name]:g}"] for name, error in errors.items()]
    rows.append([f"masks whose top {TOP_K} ids differ", str(int(wrong_ids)), "0"])
    rows += [
        [f"answers changed by the batch, {precision}", f"{count} of {of}", "0"]
        for precision, (count, of) in changed.items()
    ]
    print(table(["largest difference", "found", "must"], rows))
    held = (
        not wrong_ids
        and all(errors[name] <= LIMITS[name] for name in errors)
        and not any(count for count, _ in changed.values())
    )
    write(
        "parity",
        {"differences": errors, "wrong_ids": wrong_ids, "changed": changed, "holds": held},
        details={"lengths": LENGTHS},
    )
    return 0 if held else 1


def against_transformers(size: str) -> dict[str, float]:
    """Largest absolute differences of fp32 to transformers, with all lengths in one batch."""
    torch.set_num_threads(available_cores())
    model = BertForPreTraining.from_pretrained(checkpoint(size), attn_implementation="eager").eval()
    random = np.random.default_rng(7)
    vocabulary = SIZES[size]["vocab_size"]
    sequences = [request(mixes.ids(random, n, vocabulary), second=n // 2) for n in LENGTHS]
    rows, hidden = with_hidden_states(size, sequences)
    largest = dict.fromkeys(LIMITS, 0.0) | {"masks whose top 5 differ": 0.0}
    for tokens, row, states in zip(sequences, rows, hidden, strict=True):
        for name, difference in differences(model, tokens, row, states).items():
            largest[name] = largest[name] + difference if name.startswith("masks") else max(largest[name], difference)
    return largest


def differences(model: Any, tokens: Tokens, row: dict[str, Any], states: Any) -> dict[str, float]:
    """Differences of one sequence's answers to transformers' answers for it alone."""
    with torch.inference_mode():
        ids, types = (torch.from_numpy(array.astype(np.int64))[None] for array in (tokens.ids, tokens.types))
        encoded = model.bert(input_ids=ids, token_type_ids=types)
        logits, pair = model.cls(encoded.last_hidden_state[:, list(tokens.masks)], encoded.pooler_output)
    expected, words = encoded.last_hidden_state[0].numpy(), torch.softmax(logits[0].double(), -1).numpy()
    best = np.argsort(-words, axis=-1, kind="stable")[:, :TOP_K]
    ours = np.exp(row["top_logits"].astype(np.float64) - row["log_sum_exp"])
    return {
        "hidden states": _largest(states, expected),
        "[CLS] vectors": _largest(row["cls"][0], expected[0]),
        "mean vectors": _largest(row["mean"][0], expected.mean(axis=0)),
        "pooler": _largest(row["pooler"][0], encoded.pooler_output[0].numpy()),
        "pair probabilities": _largest(_softmax(row["pair"][0]), _softmax(pair[0].numpy())),
        "mask probabilities": _largest(ours, np.take_along_axis(words, row["top_ids"], axis=-1)),
        "masks whose top 5 differ": float((row["top_ids"] != best).any(axis=-1).sum()),
    }


def with_hidden_states(size: str, sequences: list[Tokens]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Answers from the graph as exported, but with every token's last hidden state as one more output."""
    built = build_graph(Checkpoint(checkpoint(size)), "fp32", "cpu")
    built.graph.output("hidden", built.heads.hidden, "float32", ["chosen", built.parts.architecture.hidden])
    options = ort.SessionOptions()
    options.intra_op_num_threads = available_cores()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        built.graph.save(path)
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    batch = pack(sequences)
    names = sorted(batch.outputs)
    feeds = {i.name: batch.feeds[i.name] for i in session.get_inputs()}
    *outputs, hidden = session.run([*names, "hidden"], feeds)
    ends = np.cumsum([len(s) for s in sequences])
    return split(batch, dict(zip(names, outputs, strict=True))), np.split(hidden, ends[:-1])


def changed_by_batch(size: str, precision: str, groups: int) -> tuple[int, int]:
    """The number of texts of whose answers any bit is changed by the other 31 in the batch, and of all."""
    runner = ModelRunner(open_artifact(artifact(size, precision)), available_cores())
    runner.open()
    random = np.random.default_rng(8)
    changed = 0
    for _ in range(groups):
        lengths = np.minimum(random.geometric(1 / 40, GROUP), 512)
        lengths[: len(LENGTHS) // 3] = random.choice(LENGTHS, len(LENGTHS) // 3)
        sequences = [
            request(mixes.ids(random, int(n), SIZES[size]["vocab_size"]), second=0) for n in random.permutation(lengths)
        ]
        together = runner.run_sync(sequences)[0]
        for tokens, row in zip(sequences, together, strict=True):
            alone, shared = finite(runner.run_sync([tokens])[0][0]), finite(row)
            changed += any(not np.array_equal(alone[name], shared[name]) for name in shared)
    runner.close()
    return changed, groups * GROUP


def request(ids: Any, *, second: int) -> Tokens:
    """A sequence that asks for all outputs, with masks in its middle and at its end.

    Its last `second` tokens are in the second segment.
    """
    types = np.zeros_like(ids)
    types[len(ids) - second :] = 1
    masks = tuple(sorted({len(ids) // 2, len(ids) - 1}))
    return Tokens(ids=ids, types=types, outputs=ALL, masks=masks, top_k=TOP_K)


def _softmax(x: Any) -> Any:
    exponentials = np.exp(x.astype(np.float64) - x.max())
    return exponentials / exponentials.sum()


def _largest(a: Any, b: Any) -> float:
    return float(np.abs(a - b).max())


if __name__ == "__main__":
    sys.exit(main())
