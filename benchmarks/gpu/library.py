"""The engine against transformers with scaled dot product attention, on the same device, in turns.

transformers gets its batches padded and ready: sorted by length and cut into as many parts as is fastest. The engine
packs and splits its own within the measured time.
"""

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.engine.contenders.turns import interleaved, timed
from benchmarks.gpu import engine
from benchmarks.gpu.plan import LENGTHS, GpuPlan
from benchmarks.harness.checkpoints import checkpoint
from benchmarks.harness.machine import table
from packbert.model_export.artifact.batch import Tokens
from packbert.service.engine.runner import ModelRunner

PARTS = (1, 4, 16)  # batches that the sequences are cut into
OURS = "packbert"


def compare(plan: GpuPlan, size: str, runner: ModelRunner) -> dict[str, Any]:
    """By mix and tokens: tokens a second of both, the ratio to the fastest way of transformers, the smallest cosine."""
    if not (find_spec("torch") and find_spec("transformers")):
        return {"reason": "torch and transformers are not installed"}
    import torch
    from transformers import BertModel

    dtype = torch.float16 if plan.precision == "fp16" else torch.float32
    options = {"add_pooling_layer": False, "attn_implementation": "sdpa", "dtype": dtype}
    model = BertModel.from_pretrained(checkpoint(size), **options).to(plan.device).eval()

    def run_library(batches: list[tuple[Any, Any]]) -> Any:
        with torch.inference_mode():
            states = [
                model(ids.to(plan.device), attention_mask=None if mask is None else mask.to(plan.device))[0]
                for ids, mask in batches
            ]
            return torch.cat([one[:, 0].float() for one in states]).cpu().numpy()

    found: dict[str, Any] = {}
    for mix, lengths in LENGTHS.items():
        for tokens in plan.tokens:
            sequences = sorted(engine.random_tokens(runner, lengths(tokens)), key=lambda one: -len(one.ids))
            runs: dict[str, Any] = {OURS: partial(runner.run_sync, sequences)}
            for parts in PARTS if len({len(one.ids) for one in sequences}) > 1 else (1,):
                cut = np.array_split(np.arange(len(sequences)), min(parts, len(sequences)))
                batches = [tuple(map(torch.from_numpy, pad([sequences[i] for i in part]))) for part in cut]
                batches = [(ids, None if mask.all() else mask) for ids, mask in batches]
                runs[f"{parts} padded"] = partial(run_library, batches)
            vectors = np.concatenate([row["cls"] for row in runs[OURS]()[0]])
            seconds = interleaved({name: partial(timed, run) for name, run in runs.items()}, plan.rounds)
            total = sum(len(one.ids) for one in sequences)
            found[f"{mix} in {tokens}"] = {
                "tokens_per_second": {name: total / taken for name, taken in seconds.items()},
                "ratio": min(taken for name, taken in seconds.items() if name != OURS) / seconds[OURS],
                "smallest_cosine": smallest_cosine(vectors, runs["1 padded"]()),
            }
    print("\n" + table(["batch", "ratio to transformers"], [[name, one["ratio"]] for name, one in found.items()]))
    return found


def pad(sequences: list[Tokens]) -> tuple[Any, Any]:
    """Ids and mask, [sequences, tokens of the longest], int64."""
    ids = np.zeros((len(sequences), max(len(one.ids) for one in sequences)), np.int64)
    mask = np.zeros_like(ids)
    for i, one in enumerate(sequences):
        ids[i, : len(one.ids)], mask[i, : len(one.ids)] = one.ids, 1
    return ids, mask


def smallest_cosine(left: Any, right: Any) -> float:
    """Of each pair of rows."""
    return float(((left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)).min())
