"""ONNX Runtime: sequences in, one row of answers per sequence out, on threads of its own.

Knows the artifact and the machine; knows nothing of callers, queues or HTTP.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.batch import Batch, Row, Tokens, pack, split
from model_export.artifact.cpu import cpu_signature, trim_heap
from service.artifact import Artifact
from service.engine.calibration import (
    BUDGETS,
    NEAR_PEAK,
    NEAR_PEAK_PER_CORE,
    PER_CORE_BUDGETS,
    best_seconds,
    smallest_batch_near_peak,
)
from service.engine.session import Session, configure_inference_thread, onnxruntime_version, open_session
from service.errors import DeviceError, InferenceFailed, OutOfMemory
from service.scheduling.concurrency import SERIAL, Concurrency

SMALLEST_COSINE = {"fp32": 0.9999, "fp16": 0.9999, "int8": 0.9}
PER_CORE_PRECISIONS = ("int8",)  # cheap products, for which waiting for each other costs more than it does in fp32
SMALL_BYTES = 2**27  # of weights: up to here another copy of them is cheap, and batches run in lanes in fp32 too
MEASURING_SECONDS = 1.5  # the most that measuring may add to a start
NO_MEMORY = (
    "failed to allocate memory",
    "bad_alloc",
    "bfcarena",
    "out of memory",
)  # ONNX Runtime says it in the message only
log = logging.getLogger("service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What measuring at start found out."""

    token_budget: int
    tokens_per_second: float
    batch_invariant: bool  # the canary's answer alone and in company is the same, bit for bit
    smallest_cosine: float  # of the self-test
    canary_error: float  # largest absolute difference to the exporter's float64 reference


@dataclass(slots=True, eq=False)
class ModelRunner:
    """`open` first, `close` last; `run` is called by one batcher, for at most `plan.at_once` batches at once."""

    artifact: Artifact
    threads: int
    concurrency: Concurrency = SERIAL
    _threads: ThreadPoolExecutor = field(init=False, repr=False)
    _session: Session = field(init=False, repr=False)  # all cores, or the GPU
    _lane_session: Session = field(init=False, repr=False)  # the core of the thread that calls it
    _turns: threading.Semaphore = field(
        init=False, repr=False
    )  # so many batches run at once, however many are under way

    def open(self) -> None:
        """The sessions are made on runtime threads, side by side: ONNX Runtime's own threads inherit their priority."""
        self._threads = ThreadPoolExecutor(
            self.concurrency.max_in_flight, "runtime", initializer=configure_inference_thread
        )
        kinds = (self.threads, 1) if self.concurrency.per_core else (self.threads,)
        opened = [self._threads.submit(self._open_session, threads) for threads in kinds]
        self._session, self._lane_session = opened[0].result(), opened[-1].result()
        trim_heap()
        packed_for = self._session.prepacked_for
        if packed_for and packed_for != (here := cpu_signature(onnxruntime_version())):
            log.warning(
                "the weights are packed for %s; this is %s: packed again, in memory of this process alone",
                packed_for,
                here,
            )
        self._turns = threading.Semaphore(self.concurrency.max_in_flight if self.concurrency.per_core else 1)

    def _open_session(self, threads: int) -> Session:
        return open_session(self.artifact.model, device=self.artifact.manifest.device, threads=threads)

    def close(self) -> None:
        """Does not wait for a run that hangs."""
        self._threads.shutdown(wait=False)

    @property
    def provider(self) -> str:
        """The execution provider in use: CPU or CUDA."""
        return self._session.provider

    async def run(self, sequences: Sequence[Tokens], *, all_cores: bool = True) -> tuple[list[Row | None], Batch]:
        """A row per sequence, None where it is not finite; computed on all cores, or in a lane.

        Raises OutOfMemory, or whatever ONNX Runtime raises: nothing of the run counts then. The batches of lanes are small, and packed
        here: a lane that held the interpreter while it waits for its core would hold up the event loop.
        """
        loop = asyncio.get_running_loop()
        if not self.concurrency.per_core:
            return await loop.run_in_executor(self._threads, partial(self.run_sync, sequences, all_cores=all_cores))
        with _memory_told():
            batch = self._packed(sequences)
            outputs = await loop.run_in_executor(self._threads, self._compute, batch, all_cores)
            return _rows(batch, outputs)

    def run_sync(self, sequences: Sequence[Tokens], *, all_cores: bool = True) -> tuple[list[Row | None], Batch]:
        """As `run`, on the calling thread."""
        with _memory_told():
            batch = self._packed(sequences)
            return _rows(batch, self._compute(batch, all_cores))

    def _packed(self, sequences: Sequence[Tokens]) -> Batch:
        batch = pack(sequences, self.artifact.manifest.layout)
        self._check_bounds(batch)
        return batch

    def _compute(self, batch: Batch, all_cores: bool) -> list[NDArray[np.generic]]:
        """The batch's outputs, in the order of their names."""
        session = self._session if all_cores else self._lane_session
        with self._turns:
            return session.run(sorted(batch.outputs), batch.feeds)

    def _check_bounds(self, batch: Batch) -> None:
        """On a GPU an index outside its table is fatal for the process, so none ever gets there."""
        sizes = self.artifact.manifest.sizes
        limits = {
            "ids": sizes["vocabulary"],
            "types": max(1, sizes["segments"]),
            "positions": self.artifact.manifest.max_tokens,
        }
        for name in limits.keys() & set(self._session.inputs):
            limit = limits[name]
            lowest, highest = int(batch.feeds[name].min()), int(batch.feeds[name].max())
            if lowest < 0 or highest >= limit:
                raise InferenceFailed(f"{name} reach from {lowest} to {highest}; this model has 0 to {limit - 1}")

    def self_test(self) -> float:
        """The golden sequences together, after the canary alone, on all cores and in a lane; the smallest cosine to the reference.

        Raises DeviceError where one is below what its precision allows. On a GPU each also three times alone and then after another
        shape, because fp16 norms were once right in the first run and wrong in the second (ONNX Runtime issue 27768).
        """
        golden = self.artifact.manifest.golden
        everyone = list(range(len(golden)))
        first = (
            [[i] for i in everyone for _ in range(3)] + [everyone[-1:]]
            if self.artifact.manifest.device == "cuda"
            else []
        )
        runs = [(numbers, True) for numbers in (*first, [0], everyone)] + [
            (everyone, False)
        ] * self.concurrency.per_core
        cosines = [
            cosine(row["cls"][0], golden[i].cls) if row is not None else math.nan
            for numbers, all_cores in runs
            for row, i in zip(
                self.run_sync([self._golden(i) for i in numbers], all_cores=all_cores)[0], numbers, strict=True
            )
        ]
        smallest, needed = float(np.min(cosines)), SMALLEST_COSINE[self.artifact.manifest.precision]
        if not smallest >= needed:  # a NaN fails, and is what NumPy calls the smallest wherever it stands
            raise DeviceError(
                f"the self-test failed: cosine {smallest:.6f} to the exporter's reference, at least {needed} is needed; export again"
            )
        return smallest

    def measure(self, *, token_budget: int) -> Calibration:
        """Runs the canary alone and in company, then finds the smallest batch that runs at full speed unless `token_budget` is given."""
        canary = self.artifact.manifest.canary
        alone = self._cls([self.canary()], 0)
        company = [self._filler(length) for length in (37, 5, 90, 14)]
        together = self._cls([*company[:2], self.canary(), *company[2:]], 2, all_cores=False)
        rates = self._rates(
            (token_budget,) if token_budget else PER_CORE_BUDGETS if self.concurrency.per_core else BUDGETS
        )
        return Calibration(
            smallest_cosine=self.self_test(),
            token_budget=token_budget
            or smallest_batch_near_peak(rates, NEAR_PEAK_PER_CORE if self.concurrency.per_core else NEAR_PEAK),
            tokens_per_second=max(rates.values()),
            batch_invariant=bool(np.array_equal(alone, together)),
            canary_error=float(np.abs(alone - np.array(canary.cls)).max()),
        )

    def canary(self) -> Tokens:
        return self._golden(0)

    def _golden(self, number: int) -> Tokens:
        ids = np.array(self.artifact.manifest.golden[number].ids, np.int32)
        return Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({"cls"}))

    def _cls(self, sequences: Sequence[Tokens], index: int, *, all_cores: bool = True) -> NDArray[np.generic]:
        """[hidden]; NaN where the answer is not finite."""
        row = self.run_sync(sequences, all_cores=all_cores)[0][index]
        return row["cls"][0] if row is not None else np.full(self.artifact.manifest.sizes["hidden"], np.nan)

    def _rates(self, budgets: Sequence[int]) -> dict[int, float]:
        """Tokens per second by batch size, for texts of 32 tokens; with lanes, of all lanes together."""
        length = min(32, self.artifact.manifest.max_tokens)
        texts = {budget: max(1, budget // length) for budget in budgets}
        beside = self.concurrency.max_in_flight if self.concurrency.per_core else 1

        def run(budget: int) -> float:
            started = time.monotonic()
            run_one = partial(
                self.run_sync, [self._filler(length)] * texts[budget], all_cores=not self.concurrency.per_core
            )
            for future in [self._threads.submit(run_one) for _ in range(beside)]:
                future.result()
            return time.monotonic() - started

        return {
            budget: beside * texts[budget] * length / seconds
            for budget, seconds in best_seconds(run, budgets, within=MEASURING_SECONDS).items()
        }

    def _filler(self, length: int) -> Tokens:
        manifest = self.artifact.manifest
        length = min(length, manifest.max_tokens)
        ids = (np.arange(length, dtype=np.int32) * 37 + 11) % manifest.sizes["vocabulary"]
        return Tokens(ids=ids.astype(np.int32), types=np.zeros(length, np.int32), outputs=frozenset({"cls"}))


def concurrency_for(artifact: Artifact, threads: int) -> Concurrency:
    """A GPU would idle while the host packs and splits; a CPU has no time to spare for it, but cores."""
    if artifact.manifest.device == "cuda":
        return Concurrency(max_in_flight=2)
    if threads > 1 and (artifact.manifest.precision in PER_CORE_PRECISIONS or artifact.weights_bytes <= SMALL_BYTES):
        return Concurrency(max_in_flight=threads, per_core=True)
    return SERIAL


def cosine(vector: NDArray[np.generic], known: Sequence[float]) -> float:
    one, other = vector.astype(np.float64), np.array(known)
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def _rows(batch: Batch, outputs: Sequence[NDArray[np.generic]]) -> tuple[list[Row | None], Batch]:
    rows = split(batch, dict(zip(sorted(batch.outputs), outputs, strict=True)))
    if all(np.isfinite(array).all() for array in outputs):
        return list(rows), batch
    return [row if is_finite(row) else None for row in rows], batch


@contextmanager
def _memory_told() -> Iterator[None]:
    """Raises OutOfMemory where memory could not be had, and anything else as it is."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise OutOfMemory("the model's memory could not be had: send shorter or fewer texts") from error
        raise


def is_finite(row: Row) -> bool:
    return all(bool(np.isfinite(array).all()) for array in row.values())


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in NO_MEMORY)
