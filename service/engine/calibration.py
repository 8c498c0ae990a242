"""Measures and tests an opened model at start: self-test, batch invariance, tokens per second, and the batch size."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Tokens

from ..artifact import Manifest
from ..errors import DeviceError
from .runner import ModelRunner

MIN_COSINE = {"fp32": 0.9999, "bf16": 0.999, "fp16": 0.9999, "int8": 0.9}  # of the self-test, by precision
# of the distance 1 - cosine in int8, relative to the export's: other exact kernels change the largest by less than
# 0.1 %; codes clipped at 96 of 127 exceed that
INT8_SLACK = 1.25
BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)  # tokens in a batch, tried at start; fewer cost too many hand-overs
NEAR_PEAK = 0.95  # the smallest budget that reaches this share of the best rate is taken
PER_CORE_BUDGETS = BUDGETS[:2]  # the first is measured; the second is taken if that took less than SHORT_SECONDS
SHORT_SECONDS = 0.005  # of a batch: from here on twice its tokens gained at most 10 %, in six models
TEXT_TOKENS = 32  # of each text in a measured batch
NEIGHBOURS = (37, 5, 90, 14)  # tokens of the texts beside the canary
MAX_MEASURING_SECONDS = 1.5  # added to a start
ROUNDS = 4  # the first warms up
ROUNDS_OF_ONE = 3  # of the only size: only tokens per second is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured at start."""

    token_budget: int
    tokens_per_second: float
    batch_invariant: bool  # the canary's answer is the same alone and beside other texts, bit for bit
    smallest_cosine: float  # of the self-test
    canary_error: float  # largest absolute difference to the exporter's float64 reference

    def __str__(self) -> str:
        answers = "the same" if self.batch_invariant else "not bit for bit the same"
        rate = f"{self.tokens_per_second:,.0f} tokens/s in batches of {self.token_budget} tokens"
        test = f"smallest cosine {self.smallest_cosine:.6f}, largest error {self.canary_error:.2g}"
        return f"{rate}; self-test: {test}, answers {answers} in any batch"


def measure(runner: ModelRunner, *, token_budget: int) -> Calibration:
    """Tries batch sizes on all cores together unless `token_budget` is given; on one core each, one size is measured.

    Larger batches than those tried have the rate of the largest. Raises DeviceError if the self-test fails.
    """
    manifest, per_core = runner.artifact.manifest, runner.concurrency.per_core
    canary, others = golden_tokens(manifest, 0), [filler(manifest, length) for length in NEIGHBOURS]
    alone = _cls(runner, [canary], 0)
    together = _cls(runner, [*others[:2], canary, *others[2:]], 2, all_cores=False)
    tried = (min(token_budget, BUDGETS[-1]),) if token_budget else PER_CORE_BUDGETS[:1] if per_core else BUDGETS
    rates = _rates(runner, tried)
    best = smallest_batch_near_peak(rates)
    if per_core and runner.concurrency.max_in_flight * best < SHORT_SECONDS * rates[best]:
        best = PER_CORE_BUDGETS[1]
    return Calibration(
        smallest_cosine=self_test(runner),
        token_budget=token_budget or best,
        tokens_per_second=max(rates.values()),
        batch_invariant=bool(np.array_equal(alone, together)),
        canary_error=float(np.abs(alone - np.array(manifest.canary.cls)).max()),
    )


def self_test(runner: ModelRunner) -> float:
    """The smallest cosine to the reference: the canary alone, all golden sequences together, on all cores and on one.

    Raises DeviceError if it is below `smallest_cosine_allowed`. On a GPU each also runs three times alone and then
    after another shape: fp16 norms were once right in the first run and wrong in the second (ONNX Runtime issue 27768).
    """
    manifest = runner.artifact.manifest
    together = list(range(len(manifest.golden)))
    runs = [([0], True), (together, True)] + [(together, False)] * runner.concurrency.per_core
    if manifest.device == "cuda":
        runs = [([index], True) for index in together for _ in range(3)] + [(together[-1:], True), *runs]
    cosines = []
    for indices, all_cores in runs:
        rows, _ = runner.run_sync([golden_tokens(manifest, index) for index in indices], all_cores=all_cores)
        for row, index in zip(rows, indices, strict=True):
            cosines.append(math.nan if row is None else cosine(row["cls"][0], manifest.golden[index].cls))
    smallest, needed = float(np.min(cosines)), smallest_cosine_allowed(manifest)
    if not smallest >= needed:  # also if a cosine is NaN, which is NumPy's minimum then
        expected = f"to the exporter's reference, expected at least {needed:.6g}"
        raise DeviceError(f"the self-test failed: cosine {smallest:.6f} {expected}; export again")
    return smallest


def smallest_cosine_allowed(manifest: Manifest) -> float:
    """The bound of the self-test. The export measured the same sequences."""
    least = MIN_COSINE[manifest.precision]
    if manifest.precision != "int8":
        return least
    figures = manifest.verification  # older artifacts compared no other sequences
    return max(least, 1 - INT8_SLACK * (1 - figures.get("golden_smallest_cosine", figures["cls_smallest_cosine"])))


def golden_tokens(manifest: Manifest, index: int) -> Tokens:
    """The golden sequence `index`, asking for its [CLS] vector; 0 is the canary."""
    ids = np.array(manifest.golden[index].ids, np.int32)
    return Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({"cls"}))


def best_seconds(run: Callable[[int], float], budgets: Sequence[int], *, within: float) -> dict[int, float]:
    """The shortest time of each size, ascending, in as many rounds as fit `within` seconds; slower sizes are left out.

    Other load on the machine makes a run slower, never faster: the best of several is the machine's own time. The sizes
    take turns in a changing order, so that periodic load does not hit always the same one.
    """
    best: dict[int, float] = {}
    remaining, order, shuffle = within, list(range(len(budgets))), random.Random(0).shuffle
    for _ in range(ROUNDS if len(budgets) > 1 else ROUNDS_OF_ONE):
        for i in order:
            expected = best.get(budgets[i]) or 2 * best.get(budgets[max(0, i - 1)], math.inf)
            if best and expected > remaining:
                continue
            seconds = run(budgets[i])
            remaining -= seconds
            best[budgets[i]] = min(seconds, best.get(budgets[i], math.inf))
        shuffle(order)
    return best


def smallest_batch_near_peak(rates: Mapping[int, float]) -> int:
    """The smallest budget whose rate reaches NEAR_PEAK of the best."""
    best = max(rates.values())
    return min(budget for budget, rate in rates.items() if rate >= NEAR_PEAK * best)


def cosine(vector: NDArray[np.generic], reference: Sequence[float]) -> float:
    one, other = vector.astype(np.float64), np.array(reference)
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def _rates(runner: ModelRunner, budgets: Sequence[int]) -> dict[int, float]:
    """Tokens per second by batch size, of all cores together."""
    text = filler(runner.artifact.manifest, TEXT_TOKENS)
    texts = {budget: max(1, budget // len(text)) for budget in budgets}
    batches = 1

    def run(budget: int) -> float:
        nonlocal batches
        started = time.monotonic()
        batches = runner.run_side_by_side([text] * texts[budget])
        return time.monotonic() - started

    best = best_seconds(run, budgets, within=MAX_MEASURING_SECONDS)
    return {budget: batches * texts[budget] * len(text) / seconds for budget, seconds in best.items()}


def _cls(
    runner: ModelRunner, sequences: Sequence[Tokens], index: int, *, all_cores: bool = True
) -> NDArray[np.generic]:
    """[hidden], of one of the sequences; NaN if the answer is not finite."""
    row = runner.run_sync(sequences, all_cores=all_cores)[0][index]
    return row["cls"][0] if row is not None else np.full(runner.artifact.manifest.sizes["hidden"], np.nan)


def filler(manifest: Manifest, length: int) -> Tokens:
    """A text of `length` tokens, or of as many as the model takes."""
    ids = (np.arange(min(length, manifest.max_tokens)) * 37 + 11) % manifest.sizes["vocabulary"]
    return Tokens(ids=ids.astype(np.int32), types=np.zeros(len(ids), np.int32), outputs=frozenset({"cls"}))
