"""Runs sequences on ONNX Runtime and returns their rows; opens further graphs when they are asked for."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import (
    ATTENTION_OUTPUTS,
    LAYER,
    Batch,
    Row,
    Tokens,
    attention_name,
    hidden_name,
    pack,
    split,
)
from packbert.model_export.artifact.cpu import cpu_signature, trim_heap
from packbert.model_export.artifact.manifest import ATTENTION, LAYERS, MODEL, WEIGHTS

from ..artifact import Artifact, ManifestError
from ..errors import DeviceError, InferenceFailed, OutOfMemory
from ..scheduling.cores import SERIAL, Concurrency
from .memory import PACKED, detach_from, own_files
from .session import Session, configure_inference_thread, onnxruntime_version, open_session

OUT_OF_MEMORY_SIGNS = ("failed to allocate memory", "bad_alloc", "bfcarena", "out of memory")  # only in ORT's message
log = logging.getLogger("service")


@dataclass(slots=True, eq=False, kw_only=True)
class FurtherGraph:
    """A graph over the model's weights in their file, opened by the first request that needs it."""

    artifact: Artifact
    name: str  # of its file
    purpose: str  # of the requests that need it
    threads: int
    shared: Path | None = None  # see `own_files`
    _session: Session | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def open(self) -> Session:
        """The session, opened by the first call. Raises InferenceFailed if a file is not that of the manifest, or the
        device cannot be used."""
        with self._opening:
            if self._session is None:
                self._session = self._read()
        return self._session

    def close(self) -> None:
        """Lets go of the session; the next request that needs it opens it again."""
        self._session = None

    def _read(self) -> Session:
        artifact = self.artifact
        try:
            with own_files(artifact, self.shared) as folder:
                session = open_session(folder / self.name, artifact.manifest, threads=self.threads)
                if self.shared is None:
                    detach_from(folder / WEIGHTS)
                return session
        except ManifestError as error:
            fault = "the artifact's files have changed since the service started, so it cannot read them for"
            raise InferenceFailed(f"{fault} {self.purpose}: restart it ({error})") from error
        except DeviceError as error:
            raise InferenceFailed(f"the graph for {self.purpose} cannot be opened: {error}") from error


@dataclass(slots=True, eq=False)
class ModelRunner:
    """`open` first, `close` last. One batcher calls `run`, for at most `concurrency.max_in_flight` batches at once."""

    artifact: Artifact
    threads: int
    concurrency: Concurrency = SERIAL
    shared: Path | None = None  # see `own_files`
    attention: FurtherGraph = field(init=False)  # the probabilities from the states that `layers` gives
    layers: FurtherGraph = field(init=False)  # the model with the states between its layers as outputs
    provider: str = field(default="", init=False)  # what runs the model: CPU, CUDA or OpenVINO
    _threads: ThreadPoolExecutor = field(init=False, repr=False)
    _session: Session = field(init=False, repr=False)  # on all cores, or on the GPU
    _per_core_session: Session = field(init=False, repr=False)  # on the core of the thread that calls it
    _of_means: bool = field(init=False, repr=False)  # the classifier of texts reads the mean
    _limits: dict[str, int] = field(init=False, repr=False)  # input of the graph -> numbers from 0 that its table has
    _device_slots: threading.Semaphore = field(init=False, repr=False)  # batches that run at once, of those in flight

    def __post_init__(self) -> None:
        further = partial(FurtherGraph, artifact=self.artifact, shared=self.shared)
        self.attention = further(name=ATTENTION, purpose="/attention", threads=1)
        self.layers = further(name=LAYERS, purpose="the hidden states of layers", threads=self.threads)

    def open(self, folder: Path | None = None) -> int:
        """Opens the sessions on the inference threads, since ONNX Runtime's own threads inherit their priority.

        `folder`: that of `own_files`, if the caller has it. Returns the bytes of weights copied to memory. Raises as
        `own_files`, and what the runtime raises.
        """
        if folder is None:
            with own_files(self.artifact, self.shared) as own:
                return self.open(own)
        concurrency = self.concurrency
        self._threads = ThreadPoolExecutor(
            concurrency.max_in_flight, "inference", initializer=configure_inference_thread
        )
        _start_threads(self._threads, concurrency.max_in_flight)
        counts = (self.threads, 1) if concurrency.per_core else (self.threads,)
        opening = [self._threads.submit(self._open_session, folder, threads) for threads in counts]
        self._session, self._per_core_session = opening[0].result(), opening[-1].result()
        copied = 0 if self.shared is not None else detach_from(folder / WEIGHTS)
        self.provider, sizes = self._session.provider, self.artifact.manifest.sizes
        self._of_means = self.artifact.manifest.classifies_mean
        limits = {"types": max(1, sizes["segments"]), "positions": self.artifact.manifest.max_tokens}
        limits["ids"] = sizes["vocabulary"]
        self._limits = {name: limit for name, limit in limits.items() if name in self._session.inputs}
        trim_heap()
        packed_for, this = self._session.prepacked_for, cpu_signature(onnxruntime_version())
        if packed_for and packed_for != this:
            log.warning(
                "the weights are packed for %s; this is %s: packed again, in this process's own memory",
                packed_for,
                this,
            )
        self._device_slots = threading.Semaphore(concurrency.max_in_flight if concurrency.per_core else 1)
        return copied

    def _open_session(self, folder: Path, threads: int) -> Session:
        side_by_side = self.concurrency.max_in_flight if self.concurrency.per_core and threads == 1 else 1
        place = folder if self.shared is None else folder / PACKED
        return open_session(place / MODEL, self.artifact.manifest, threads=threads, side_by_side=side_by_side)

    def close(self) -> None:
        """Lets go of the graphs, until `open` is called again. Does not wait for a hanging run."""
        self._threads.shutdown(wait=False)
        self.attention.close()
        self.layers.close()
        for name in ("_session", "_per_core_session"):
            if hasattr(self, name):  # it was opened
                delattr(self, name)
        trim_heap()

    async def run(self, sequences: Sequence[Tokens], *, all_cores: bool = True) -> tuple[list[Row | None], Batch]:
        """A row per sequence, None if it is not finite; computed on all cores or on one core.

        Raises OutOfMemory, InferenceFailed if an id is outside its table, or what ONNX Runtime raises: then the run has
        no result. Batches for one core are small and are packed on the event loop: a thread that holds the
        interpreter's lock while it waits for its core would block the event loop.
        """
        loop = asyncio.get_running_loop()
        if not self.concurrency.per_core:
            return await loop.run_in_executor(self._threads, partial(self.run_sync, sequences, all_cores=all_cores))
        try:
            batch = self._pack(sequences)
            outputs = await loop.run_in_executor(self._threads, self._compute, batch, all_cores)
            rows = _split(batch, outputs)
            if _asks_attention(batch):
                rows = await loop.run_in_executor(self._threads, self._add_attention, batch, rows)
        except Exception as error:
            _name_out_of_memory(error)
            raise
        return rows, batch

    def run_sync(self, sequences: Sequence[Tokens], *, all_cores: bool = True) -> tuple[list[Row | None], Batch]:
        """`run` on the calling thread."""
        try:
            batch = self._pack(sequences)
            rows = _split(batch, self._compute(batch, all_cores))
            return self._add_attention(batch, rows) if _asks_attention(batch) else rows, batch
        except Exception as error:
            _name_out_of_memory(error)
            raise

    def run_side_by_side(self, sequences: Sequence[Tokens]) -> int:
        """Runs the batch once on each core at the same time, or once on all cores; returns how often."""
        per_core = self.concurrency.per_core
        run = partial(self.run_sync, sequences, all_cores=not per_core)
        running = [self._threads.submit(run) for _ in range(self.concurrency.max_in_flight if per_core else 1)]
        return len([future.result() for future in running])

    def _pack(self, sequences: Sequence[Tokens]) -> Batch:
        """Raises InferenceFailed if an index is outside its table: on a GPU that would be fatal for the process."""
        manifest = self.artifact.manifest
        batch = pack(sequences, manifest.layout, manifest.embedding.modes, of_means=self._of_means)
        indices = [(name, batch.feeds[name], limit) for name, limit in self._limits.items()]
        if batch.feeds["target_pairs"].size:
            indices.append(("targets", batch.feeds["target_pairs"][:, 1], manifest.sizes["vocabulary"]))
        for name, numbers, limit in indices:
            lowest, highest = int(numbers.min()), int(numbers.max())
            if lowest < 0 or highest >= limit:
                remedy = "its tokenizer.json does not belong to its weights; export the checkpoint again"
                raise InferenceFailed(
                    f"{name} reach from {lowest} to {highest}; this model has 0 to {limit - 1}: {remedy}"
                )
        return batch

    def _compute(self, batch: Batch, all_cores: bool) -> list[NDArray[np.generic]]:
        """The batch's outputs, in the order of their sorted names."""
        session = self._session if all_cores else self._per_core_session
        if LAYER in batch.spans:
            session = self.layers.open()
        with self._device_slots:
            return session.run(sorted(batch.outputs), batch.feeds)

    def _add_attention(self, batch: Batch, rows: Sequence[Row | None]) -> list[Row | None]:
        """The rows of a batch, with the attention of the sequences that ask for it."""
        with self._device_slots:
            both = zip(batch.owners, rows, strict=True)
            return [None if row is None else _finite(self._fill_attention(tokens, row)) for tokens, row in both]

    def _fill_attention(self, tokens: Tokens, row: Row) -> Row:
        """The row of a sequence, with the probabilities in the place of the states that `split` gave it.

        `attention` are those of each layer and head, [layers, heads, tokens, tokens], and `attention_mean` the mean of
        the heads, both as one dimension. They are computed of one sequence alone, whatever the batch had.
        """
        asked = sorted(ATTENTION_OUTPUTS & tokens.outputs)
        if not asked:
            return row
        states, layers = row[asked[0]], tokens.layers  # [layers, tokens, hidden]
        feeds = {hidden_name(i): states[0, :1] for i in range(self.artifact.manifest.sizes["layers"])}
        feeds |= {hidden_name(layer): one for layer, one in zip(layers, states, strict=True)}
        found = np.stack(self.attention.open().run([attention_name(layer) for layer in layers], feeds))
        values = {"attention": found, "attention_mean": found.mean(axis=1, dtype=np.float64)}
        return row | {name: values[name].astype(np.float32, copy=False).reshape(-1) for name in asked}


def _start_threads(executor: ThreadPoolExecutor, count: int) -> None:
    """Starts all threads of the executor, which starts one per task only. Raises RuntimeError for a lack of threads."""
    together = threading.Barrier(count)
    try:
        for waiting in [executor.submit(together.wait) for _ in range(count)]:
            waiting.result()
    finally:
        together.abort()


def _asks_attention(batch: Batch) -> bool:
    return LAYER in batch.spans and any(not ATTENTION_OUTPUTS.isdisjoint(tokens.outputs) for tokens in batch.owners)


def _split(batch: Batch, outputs: Sequence[NDArray[np.generic]]) -> list[Row | None]:
    """A row per sequence, None if it is not finite."""
    rows = split(batch, dict(zip(sorted(batch.outputs), outputs, strict=True)))
    for array in outputs:
        if not np.isfinite(array).all():
            return [_finite(row) for row in rows]
    return list(rows)


def _finite(row: Row) -> Row | None:
    return row if all(np.isfinite(array).all() for array in row.values()) else None


def _name_out_of_memory(error: Exception) -> None:
    """Raises OutOfMemory for an error which says that memory could not be allocated."""
    if is_out_of_memory(error):
        raise OutOfMemory("the model ran out of memory: send shorter or fewer texts") from error


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in OUT_OF_MEMORY_SIGNS)
