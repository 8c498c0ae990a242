"""One ONNX Runtime session: sequences in, one row of answers per sequence out, on threads of its own.

Knows the artifact and the machine; knows nothing of callers, queues or HTTP.
"""

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from model_export.batch import Batch, Row, Tokens, pack, split
from service.artifact import Artifact
from service.errors import OutOfMemory, RunFailed
from service.session import DeviceError, Session, flush_denormals, open_session

BUDGETS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # tokens in a batch that are tried at start
WORTH = 0.95  # the smallest budget that reaches this share of the best rate is taken
SMALLEST_COSINE = {"fp32": 0.9999, "fp16": 0.9999, "int8": 0.9}
IN_LANES = ("int8",)  # cheap products: 1.25 times faster on one core each than together; fp32 gains 1.03, not worth a second session
LEAST, MOST = 192, 256  # tokens in a part: below, the products slow down; above, what lies between them leaves the core's cache
ROUNDS = 6  # the first warms up
ENOUGH = 0.75  # of a part's share: from here on it ends where much shorter sequences follow, whose attention rows can be short then
DEPTHS = {"cpu": 1, "cuda": 2}  # a GPU would idle while the host packs and splits; on a CPU both want the same cores
MEASURING_SECONDS = 1.5  # the most that measuring may add to a start
NO_MEMORY = ("failed to allocate memory", "bad_alloc", "bfcarena", "out of memory")  # ONNX Runtime says it in the message only


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What measuring at start found out."""

    token_budget: int
    tokens_per_second: float
    batch_invariant: bool  # the canary's answer alone and in company is the same, bit for bit
    smallest_cosine: float  # of the self-test
    canary_error: float  # largest absolute difference to the exporter's float64 reference


@dataclass(slots=True, eq=False)
class Runtime:
    """`open` first, `close` last; `run` is called by one batcher, for at most `depth` batches at once."""

    artifact: Artifact
    threads: int
    depth: int = 1  # batches under way: one that the device runs, the others packed before it or split after it
    _session: Session = field(init=False, repr=False)
    _thread: ThreadPoolExecutor = field(init=False, repr=False)
    _lanes: int = field(init=False, repr=False)  # parts of a large batch that run side by side, each on one core
    _lane_session: Session = field(init=False, repr=False)
    _lane_threads: ThreadPoolExecutor = field(init=False, repr=False)
    _turns: threading.Semaphore = field(init=False, repr=False)  # so many parts run at once, however many are under way

    def open(self) -> None:
        manifest = self.artifact.manifest
        self._session = open_session(self.artifact.model, device=manifest.device, threads=self.threads)
        self._thread = ThreadPoolExecutor(self.depth, "runtime", initializer=flush_denormals)
        self._lanes = self.threads if manifest.device == "cpu" and manifest.precision in IN_LANES else 1
        self._lane_session = open_session(self.artifact.model, device=manifest.device, threads=1) if self._lanes > 1 else self._session
        self._lane_threads = ThreadPoolExecutor(self._lanes, "lane", initializer=flush_denormals)
        self._turns = threading.Semaphore(self._lanes)

    def close(self) -> None:
        """Does not wait for a run that hangs."""
        self._thread.shutdown(wait=False)
        self._lane_threads.shutdown(wait=False)

    @property
    def provider(self) -> str:
        """The execution provider in use: CPU or CUDA."""
        return self._session.provider

    async def run(self, sequences: Sequence[Tokens]) -> tuple[list[Row | None], Batch]:
        """A row per sequence, None where it is not finite. Raises OutOfMemory, or whatever ONNX Runtime raises: nothing of the run counts then."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.run_here, sequences)

    def run_here(self, sequences: Sequence[Tokens]) -> tuple[list[Row | None], Batch]:
        try:
            parts = divided([len(one) for one in sequences], self._lanes)
            if len(parts) == 1:
                return self._run_part(self._session, sequences)
            ran = list(self._lane_threads.map(lambda part: self._run_part(self._lane_session, [sequences[i] for i in part]), parts))
        except Exception as error:
            if out_of_memory(error):
                raise OutOfMemory("the model's memory could not be had: send shorter or fewer texts") from error
            raise
        rows: list[Row | None] = [None] * len(sequences)
        for part, (answers, _) in zip(parts, ran, strict=True):
            for i, row in zip(part, answers, strict=True):
                rows[i] = row
        batches = [batch for _, batch in ran]
        return rows, replace(batches[0], tokens=sum(batch.tokens for batch in batches), slots=sum(batch.slots for batch in batches), owners=sequences)

    def _run_part(self, session: Session, sequences: Sequence[Tokens]) -> tuple[list[Row | None], Batch]:
        batch = pack(sequences, self.artifact.manifest.layout)
        self._check_bounds(batch)
        names = sorted(batch.outputs)
        with self._turns:
            outputs = session.run(names, batch.feeds)
        rows = split(batch, dict(zip(names, outputs, strict=True)))
        if all(np.isfinite(array).all() for array in outputs):
            return list(rows), batch
        return [row if is_finite(row) else None for row in rows], batch

    def _check_bounds(self, batch: Batch) -> None:
        """On a GPU an index outside its table is fatal for the process, so none ever gets there."""
        sizes = self.artifact.manifest.sizes
        limits = {"ids": sizes["vocabulary"], "types": max(1, sizes["segments"]), "positions": self.artifact.manifest.max_tokens}
        for name in limits.keys() & set(self._session.inputs):
            limit = limits[name]
            values = batch.feeds[name]
            if values.min() < 0 or values.max() >= limit:
                raise RunFailed(f"{name} reach from {values.min()} to {values.max()}; this model has 0 to {limit - 1}")

    def self_test(self) -> float:
        """The golden sequences alone (on a GPU three times), then after another shape, then together; the smallest cosine to the reference.

        Raises DeviceError where one is below what its precision allows. Three times and in changing shapes, because fp16 norms were once
        right in the first run and wrong in the second (ONNX Runtime issue 27768); a CPU's fp32 need not pay for that at every start.
        """
        golden = self.artifact.manifest.golden
        known = [self._golden(i) for i in range(len(golden))]
        times = 3 if self.artifact.manifest.device == "cuda" else 1
        runs = [[one] for one in known for _ in range(times)] + [[known[-1]], [known[0]], known]
        owners = [[i] for i in range(len(known)) for _ in range(times)] + [[len(known) - 1], [0], list(range(len(known)))]
        cosines = [
            cosine(row["cls"][0], golden[i].cls) if row is not None else math.nan
            for batch, numbers in zip(runs, owners, strict=True)
            for row, i in zip(self.run_here(batch)[0], numbers, strict=True)
        ]
        smallest, needed = min(cosines), SMALLEST_COSINE[self.artifact.manifest.precision]
        if not smallest >= needed:  # a NaN fails
            raise DeviceError(f"the self-test failed: cosine {smallest:.6f} to the exporter's reference, at least {needed} is needed; export again")
        return smallest

    def measure(self, *, token_budget: int) -> Facts:
        """Runs the canary alone and in company, then finds the smallest batch that runs at full speed unless `token_budget` is given."""
        canary = self.artifact.manifest.canary
        alone = self._cls([self.canary()], 0)
        company = [self._filler(length) for length in (37, 5, 90, 14)]
        together = self._cls([*company[:2], self.canary(), *company[2:]], 2)
        rates = self._rates((token_budget,) if token_budget else BUDGETS)
        return Facts(
            smallest_cosine=self.self_test(),
            token_budget=token_budget or smallest_good(rates),
            tokens_per_second=max(rates.values()),
            batch_invariant=bool(np.array_equal(alone, together)),
            canary_error=float(np.abs(alone - np.array(canary.cls)).max()),
        )

    def canary(self) -> Tokens:
        return self._golden(0)

    def _golden(self, number: int) -> Tokens:
        ids = np.array(self.artifact.manifest.golden[number].ids, np.int32)
        return Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({"cls"}))

    def _cls(self, sequences: Sequence[Tokens], index: int) -> NDArray[np.generic]:
        """[hidden]; NaN where the answer is not finite."""
        row = self.run_here(sequences)[0][index]
        return row["cls"][0] if row is not None else np.full(self.artifact.manifest.sizes["hidden"], np.nan)

    def _rates(self, budgets: Sequence[int]) -> dict[int, float]:
        """Tokens per second by batch size, for texts of 32 tokens."""
        length = min(32, self.artifact.manifest.max_tokens)
        texts = {budget: max(1, budget // length) for budget in budgets}

        def run(budget: int) -> float:
            started = time.monotonic()
            self.run_here([self._filler(length)] * texts[budget])
            return time.monotonic() - started

        return {budget: texts[budget] * length / seconds for budget, seconds in best_seconds(run, budgets, within=MEASURING_SECONDS).items()}

    def _filler(self, length: int) -> Tokens:
        manifest = self.artifact.manifest
        length = min(length, manifest.max_tokens)
        ids = (np.arange(length, dtype=np.int32) * 37 + 11) % manifest.sizes["vocabulary"]
        return Tokens(ids=ids.astype(np.int32), types=np.zeros(length, np.int32), outputs=frozenset({"cls"}))


def divided(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Indices of sequences by part: a multiple of `lanes` parts with about as many tokens each, those of like length together."""
    total, size = sum(lengths), len(lengths)
    count = lanes * max(1, round(total / (lanes * MOST)))
    if lanes == 1 or min(size, total // LEAST) < count:
        return [list(range(size))]
    parts: list[list[int]] = [[]]
    filled = 0
    for i in sorted(range(size), key=lambda j: -lengths[j]):
        full = filled + lengths[i] / 2 > total / count
        shorter = filled > ENOUGH * total / count and 2 * lengths[i] < lengths[parts[-1][0]]
        if parts[-1] and (full or shorter) and len(parts) < count:
            parts.append([])
            filled = 0
        parts[-1].append(i)
        filled += lengths[i]
    return parts


def best_seconds(run: Callable[[int], float], budgets: Sequence[int], *, within: float) -> dict[int, float]:
    """The shortest time of each size, ascending, in as many rounds as fit `within` seconds; sizes that do not fit are left out.

    What else the machine does makes a run slower, never faster: the best of several is the machine's own time. The sizes take
    turns, in an order that changes, so that what happens now and then does not single one out.
    """
    best: dict[int, float] = {}
    left, order, shuffle = within, list(range(len(budgets))), random.Random(0).shuffle
    for _ in range(ROUNDS):
        for i in order:
            expected = best.get(budgets[i]) or 2 * best.get(budgets[i - 1], math.inf)
            if best and expected > left:
                continue
            seconds = run(budgets[i])
            left -= seconds
            best[budgets[i]] = min(seconds, best.get(budgets[i], math.inf))
        shuffle(order)
    return best


def cosine(vector: NDArray[np.generic], known: Sequence[float]) -> float:
    one, other = vector.astype(np.float64), np.array(known)
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def smallest_good(rates: Mapping[int, float]) -> int:
    """The smallest budget whose rate reaches 95 % of the best."""
    best = max(rates.values())
    return min(budget for budget, rate in rates.items() if rate >= WORTH * best)


def is_finite(row: Row) -> bool:
    return all(bool(np.isfinite(array).all()) for array in row.values())


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in NO_MEMORY)
