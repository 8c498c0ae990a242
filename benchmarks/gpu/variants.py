"""Other options for the same batches on the same device, in turns with the service's own: ratios above 1 are faster.

    graphs    inputs and outputs with fixed addresses, and a CUDA graph captured once for one shape, for small batches
    options   provider options other than those of the service
    ahead     two batches in flight, of which one is prepared while the other runs

On the CPU, for a rehearsal, the provider has no options: every variant is the service's own session.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.engine.contenders.turns import interleaved, timed
from packbert.model_export.artifact.batch import Batch, Tokens, pack
from packbert.service.artifact import Artifact
from packbert.service.engine.runner import ModelRunner
from packbert.service.engine.session import CUDA_OPTIONS, CpuSession, CudaSession
from packbert.service.scheduling.cores import Concurrency

SERVICE = "as the service"
BOUND, GRAPH, TWO = "fixed addresses", "fixed addresses and a graph", "two in flight"
SMALL_BATCHES = ((1, 16), (1, 32), (1, 128), (8, 16), (8, 32), (32, 16))  # sequences, tokens of each
OPTIONS: dict[str, dict[str, str]] = {
    SERVICE: {},
    "ONNX Runtime's own choice of attention": {"sdpa_kernel": "0"},
    "flash attention only": {"sdpa_kernel": "1"},
    "memory-efficient attention only": {"sdpa_kernel": "2"},
    "plain attention only": {"sdpa_kernel": "16"},
    "arena by powers of two": {"arena_extend_strategy": "kNextPowerOfTwo"},
    "at most 8 GiB": {"gpu_mem_limit": str(8 * 2**30)},
    "copies on a stream of their own": {"do_copy_in_default_stream": "0"},
    "one stream": {"use_ep_level_unified_stream": "1"},
}
SUBMITTED = 8  # batches submitted at once, to see what preparing one ahead is worth
WARM_UP_RUNS = 3  # the first ones allocate and capture
MAX_DIFFERENCE = 1e-2
Run = Callable[[], Any]
Ratios = dict[str, dict[str, float | str]]  # variant -> batch -> times as fast as the service, or why it did not run


class BoundSession:
    """A session for one batch shape whose tensors keep their addresses, as a CUDA graph needs; computes `cls`."""

    def __init__(self, artifact: Artifact, batch: Batch, options: Mapping[str, str]) -> None:
        opened, device = open_session(artifact, options), artifact.manifest.device
        self._session = opened._session
        self._binding = self._session.io_binding()
        self._inputs = {
            name: ort.OrtValue.ortvalue_from_numpy(_contiguous(batch, name), device, 0) for name in opened.inputs
        }
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        shape = (len(batch.owners), artifact.manifest.sizes["hidden"])
        self._output = ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, device, 0)
        self._binding.bind_ortvalue_output("cls", self._output)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """[sequences, hidden]"""
        for name, value in self._inputs.items():
            value.update_inplace(_contiguous(batch, name))
        self._session.run_with_iobinding(self._binding)
        vectors: NDArray[np.float32] = self._output.numpy()
        return vectors


def open_session(artifact: Artifact, options: Mapping[str, str]) -> CpuSession | CudaSession:
    if artifact.manifest.device == "cuda":
        return CudaSession(artifact.model, {**CUDA_OPTIONS, **options})
    return CpuSession(artifact.model, threads=1)


def compare_graphs(artifact: Artifact, make: Callable[[list[int]], list[Tokens]], rounds: int) -> Ratios:
    """By batch, the time of the service's session divided by that of each variant.

    `make` makes sequences of the given lengths. A variant whose answers differ has the reason in place of a ratio.
    """
    service, found = open_session(artifact, {}), Ratios({BOUND: {}, GRAPH: {}})
    for count, length in SMALL_BATCHES:
        batch, title = pack(make([length] * count), artifact.manifest.layout), f"{count} x {length}"
        runs: dict[str, Run] = {SERVICE: partial(service.run, ["cls"], batch.feeds)}
        known = runs[SERVICE]()[0]
        for name, options in ((BOUND, {}), (GRAPH, {"enable_cuda_graph": "1"})):
            run = try_or_reason(partial(capture, artifact, batch, options, known))
            if isinstance(run, str):
                found[name][title] = run
            else:
                runs[name] = run
        for name, ratio in speedups(runs, rounds).items():
            found[name][title] = ratio
    return found


def capture(artifact: Artifact, batch: Batch, options: Mapping[str, str], known: NDArray[np.float32]) -> Run:
    """A run of `batch` that has given the answer `known` three times; raises ValueError if it does not."""
    bound = BoundSession(artifact, batch, options)
    for _ in range(WARM_UP_RUNS):
        difference = float(np.abs(bound.run(batch) - known).max())
        if not difference < MAX_DIFFERENCE:
            raise ValueError(f"the answer differs by {difference:.3g}")
    return partial(bound.run, batch)


def compare_options(artifact: Artifact, batches: Mapping[str, Batch], rounds: int) -> Ratios:
    """By batch, the time with the service's options divided by the time with others."""
    found: Ratios = {name: {} for name in OPTIONS if name != SERVICE}
    sessions = {name: try_or_reason(partial(open_session, artifact, options)) for name, options in OPTIONS.items()}
    for title, batch in batches.items():
        runs: dict[str, Run] = {}
        for name, opened in sessions.items():
            first = opened if isinstance(opened, str) else try_or_reason(partial(opened.run, ["cls"], batch.feeds))
            if isinstance(first, str):
                found[name][title] = first
            else:
                runs[name] = partial(opened.run, ["cls"], batch.feeds)
        for name, ratio in speedups(runs, rounds).items():
            found[name][title] = ratio
    return found


def compare_two_in_flight(artifact: Artifact, work: Mapping[str, Sequence[Tokens]], rounds: int) -> Ratios:
    """By batch, the time of several with one in flight divided by that with two."""
    found: Ratios = {TWO: {}}
    runners = {
        SERVICE: ModelRunner(artifact, threads=1),
        TWO: ModelRunner(artifact, threads=1, concurrency=Concurrency(2)),
    }
    for runner in runners.values():
        runner.open()
    with asyncio.Runner() as loop:

        def run_several(runner: ModelRunner, sequences: Sequence[Tokens]) -> None:
            loop.run(_submit_several(runner, sequences))

        for title, sequences in work.items():
            runs: dict[str, Run] = {name: partial(run_several, runner, sequences) for name, runner in runners.items()}
            found[TWO][title] = speedups(runs, rounds)[TWO]
    for runner in runners.values():
        runner.close()
    return found


async def _submit_several(runner: ModelRunner, sequences: Sequence[Tokens]) -> None:
    await asyncio.gather(*(runner.run(sequences) for _ in range(SUBMITTED)))


def speedups(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """How many times as fast as SERVICE, which must be in `runs`, each other run is."""
    seconds = interleaved({name: partial(timed, run) for name, run in runs.items()}, rounds)
    return {name: seconds[SERVICE] / taken for name, taken in seconds.items() if name != SERVICE}


def try_or_reason(make: Run) -> Any:
    """What `make` returns, or its error as a string: ONNX Runtime has its own errors for unknown options and graphs."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - a variant that does not run is a finding
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"


def _contiguous(batch: Batch, name: str) -> NDArray[Any]:
    return np.ascontiguousarray(batch.feeds[name])
