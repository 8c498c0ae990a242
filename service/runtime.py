"""One ONNX Runtime session: sequences in, one row of answers per sequence out, on a thread of its own.

Knows the artifact and the machine; knows nothing of callers, queues or HTTP.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort

from model_export.batch import Batch, Row, Tokens, pack, split
from service.artifact import Artifact
from service.errors import RunFailed

BUDGETS = (32, 64, 128, 256, 512, 1024, 2048)  # tokens in a batch that are tried at start
WORTH = 0.95  # the smallest budget that reaches this share of the best rate is taken
MEASURING_SECONDS = 1.5  # the most that measuring may add to a start


class NotFinite(RunFailed):
    """At least one answer of the run holds NaN or infinity; sequences that shared an attention row may be touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What measuring at start found out."""

    token_budget: int
    tokens_per_second: float
    batch_invariant: bool  # the canary's answer alone and in company is the same, bit for bit
    canary_error: float  # largest absolute difference to the exporter's float64 reference


@dataclass(slots=True, eq=False)
class Runtime:
    """`open` first, `close` last; `run` is called by one batcher."""

    artifact: Artifact
    threads: int
    _session: ort.InferenceSession = field(init=False, repr=False)
    _inputs: tuple[str, ...] = field(init=False, repr=False)
    _options: ort.RunOptions = field(init=False, repr=False)
    _thread: ThreadPoolExecutor = field(init=False, repr=False)

    def open(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # shapes change with every batch: patterns would only pile up (549 against 593 MiB after 250 runs)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle spinning starves the event loop and the tokenizer
        self._session = ort.InferenceSession(self.artifact.model, options, providers=["CPUExecutionProvider"])
        self._session.disable_fallback()
        self._inputs = tuple(i.name for i in self._session.get_inputs())
        self._options = ort.RunOptions()
        self._options.only_execute_path_to_fetches = True  # heads that nobody in the batch asked for do not run
        self._thread = ThreadPoolExecutor(1, "runtime")

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    @property
    def provider(self) -> str:
        """The execution provider in use, without its suffix: `CPU`."""
        return str(self._session.get_providers()[0]).removesuffix("ExecutionProvider")

    async def run(self, sequences: Sequence[Tokens]) -> tuple[list[Row], Batch]:
        """Raises NotFinite, or whatever ONNX Runtime raises; nothing of the run counts then."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.run_here, sequences)

    def run_here(self, sequences: Sequence[Tokens]) -> tuple[list[Row], Batch]:
        batch = pack(sequences)
        names = sorted(batch.outputs)
        outputs = self._session.run(names, {name: batch.feeds[name] for name in self._inputs}, self._options)
        for name, array in zip(names, outputs, strict=True):
            if not np.isfinite(array).all():
                raise NotFinite(f"the model's {name} output holds NaN or infinity")
        return split(batch, dict(zip(names, outputs, strict=True))), batch

    def measure(self, *, token_budget: int) -> Facts:
        """Runs the canary alone and in company, then finds the smallest batch that runs at full speed unless `token_budget` is given."""
        canary = self.artifact.manifest.canary
        alone = self.run_here([self.canary()])[0][0]["cls"]
        company = [self._filler(length) for length in (37, 5, 90, 14)]
        together = self.run_here([*company[:2], self.canary(), *company[2:]])[0][2]["cls"]
        rates = self._rates((token_budget,) if token_budget else BUDGETS)
        best = max(rates.values())
        return Facts(
            token_budget=min(budget for budget, rate in rates.items() if rate >= WORTH * best),
            tokens_per_second=best,
            batch_invariant=bool(np.array_equal(alone, together)),
            canary_error=float(np.abs(alone[0] - np.array(canary.cls)).max()),
        )

    def canary(self) -> Tokens:
        ids = np.array(self.artifact.manifest.canary.ids, np.int32)
        return Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({"cls"}))

    def _rates(self, budgets: Sequence[int]) -> dict[int, float]:
        """Tokens per second by batch size, for texts of 32 tokens; stops when the time is up, smallest first."""
        rates: dict[int, float] = {}
        end = time.monotonic() + MEASURING_SECONDS
        length = min(32, self.artifact.manifest.max_tokens)
        for budget in budgets:
            batch = [self._filler(length)] * max(1, budget // length)
            self.run_here(batch)
            started = time.monotonic()
            self.run_here(batch)
            now = time.monotonic()
            rates[budget] = len(batch) * length / (now - started)
            if now + 4 * (now - started) > end:  # the next one takes twice as long, and runs twice
                break
        return rates

    def _filler(self, length: int) -> Tokens:
        manifest = self.artifact.manifest
        length = min(length, manifest.max_tokens)
        ids = (np.arange(length, dtype=np.int32) * 37 + 11) % manifest.sizes["vocabulary"]
        return Tokens(ids=ids.astype(np.int32), types=np.zeros(length, np.int32), outputs=frozenset({"cls"}))


def onnxruntime_version() -> str:
    return str(ort.__version__)
