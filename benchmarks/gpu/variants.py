"""Other ways to run the same batches on the same device, in turns with the service's own way: ratios, above 1 where they are faster.

    graphs    inputs and outputs that keep their places, and a CUDA graph captured once for one shape, for small batches
    options   provider options other than those of the service
    ahead     two batches under way, of which one is prepared while the other runs

On the CPU, for a rehearsal, the provider knows no options: every variant is the service's own session.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.engine.__main__ import interleaved, timed
from model_export.artifact.batch import Batch, Tokens, pack
from service.artifact import Artifact
from service.engine.runner import ModelRunner
from service.engine.session import CUDA_OPTIONS, CpuSession, CudaSession
from service.scheduling.concurrency import Concurrency

SERVICE = "as the service"
BOUND, GRAPH = "fixed places", "fixed places and a graph"
SMALL = ((1, 16), (1, 32), (1, 128), (8, 16), (8, 32), (32, 16))  # sequences, tokens of each
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
UNDER_WAY = 8  # batches handed over at once, to see what preparing ahead is worth
Ratios = dict[str, dict[str, float | str]]  # variant -> batch -> how much faster; or why it did not run


class Bound:
    """A session for one batch shape: inputs and outputs stay where they are, as a CUDA graph needs it; answers `cls`."""

    def __init__(self, artifact: Artifact, batch: Batch, options: Mapping[str, str]) -> None:
        opened, device = session(artifact, options), artifact.manifest.device
        self._session = opened._session
        self._binding = self._session.io_binding()
        self._inputs = {
            name: ort.OrtValue.ortvalue_from_numpy(contiguous(batch, name), device, 0) for name in opened.inputs
        }
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        shape = (len(batch.owners), artifact.manifest.sizes["hidden"])
        self._output = ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, device, 0)
        self._binding.bind_ortvalue_output("cls", self._output)

    def run(self, batch: Batch) -> np.ndarray:
        """[sequences, hidden]"""
        for name, value in self._inputs.items():
            value.update_inplace(contiguous(batch, name))
        self._session.run_with_iobinding(self._binding)
        vectors: np.ndarray = self._output.numpy()
        return vectors


def session(artifact: Artifact, options: Mapping[str, str]) -> CpuSession | CudaSession:
    if artifact.manifest.device == "cuda":
        return CudaSession(artifact.model, {**CUDA_OPTIONS, **options})
    return CpuSession(artifact.model, threads=1)


def contiguous(batch: Batch, name: str) -> np.ndarray:
    return np.ascontiguousarray(batch.feeds[name])


def graphs(artifact: Artifact, work: Callable[[list[int]], list[Tokens]], rounds: int) -> Ratios:
    """By batch, the time of the service's session divided by that of each variant. A variant whose answers differ is told so."""
    ordinary, found = session(artifact, {}), Ratios({BOUND: {}, GRAPH: {}})
    for count, length in SMALL:
        batch = pack(work([length] * count), artifact.manifest.layout)
        known = ordinary.run(["cls"], batch.feeds)[0]
        runs: dict[str, Callable[[], Any]] = {SERVICE: lambda batch=batch: ordinary.run(["cls"], batch.feeds)}
        for name, options in ((BOUND, {}), (GRAPH, {"enable_cuda_graph": "1"})):
            run = attempt(lambda options=options, batch=batch, known=known: captured(artifact, batch, options, known))
            if isinstance(run, str):
                found[name][f"{count} x {length}"] = run
            else:
                runs[name] = run
        for name, ratio in faster(runs, rounds).items():
            found[name][f"{count} x {length}"] = ratio
    return found


def captured(artifact: Artifact, batch: Batch, options: Mapping[str, str], known: np.ndarray) -> Callable[[], Any]:
    """A run of `batch` that has given the right answer three times: the first ones allocate and capture. Raises ValueError where it does not."""
    bound = Bound(artifact, batch, options)
    for _ in range(3):
        difference = float(np.abs(bound.run(batch) - known).max())
        if not difference < 1e-2:
            raise ValueError(f"the answer differs by {difference:.3g}")
    return lambda: bound.run(batch)


def options(artifact: Artifact, batches: Mapping[str, Batch], rounds: int) -> Ratios:
    """By batch, the time with the service's options divided by the time with others."""
    found: Ratios = {name: {} for name in OPTIONS if name != SERVICE}
    sessions = {name: attempt(lambda more=more: session(artifact, more)) for name, more in OPTIONS.items()}
    for title, batch in batches.items():
        runs: dict[str, Callable[[], Any]] = {}
        for name, opened in sessions.items():
            first = (
                opened
                if isinstance(opened, str)
                else attempt(lambda opened=opened, batch=batch: opened.run(["cls"], batch.feeds))
            )
            if isinstance(first, str):
                found[name][title] = first
            else:
                runs[name] = lambda opened=opened, batch=batch: opened.run(["cls"], batch.feeds)
        for name, ratio in faster(runs, rounds).items():
            found[name][title] = ratio
    return found


def ahead(artifact: Artifact, batches: Mapping[str, Sequence[Tokens]], rounds: int) -> Ratios:
    """By batch, the time of several with one under way at a time divided by that with two."""
    found: Ratios = {"two under way": {}}
    runtimes = {
        SERVICE: ModelRunner(artifact, threads=1),
        "two under way": ModelRunner(artifact, threads=1, concurrency=Concurrency(2)),
    }
    for runtime in runtimes.values():
        runtime.open()
    with asyncio.Runner() as loop:
        for title, sequences in batches.items():

            async def several(runtime: ModelRunner, sequences: Sequence[Tokens] = sequences) -> None:
                await asyncio.gather(*(runtime.run(sequences) for _ in range(UNDER_WAY)))

            runs = {
                name: lambda runtime=runtime, several=several: loop.run(several(runtime))
                for name, runtime in runtimes.items()
            }
            found["two under way"] |= {title: faster(runs, rounds)["two under way"]}
    for runtime in runtimes.values():
        runtime.close()
    return found


def faster(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Of all but the service's own, which must be among them."""
    seconds = interleaved({name: lambda run=run: timed(run) for name, run in runs.items()}, rounds)
    return {name: seconds[SERVICE] / taken for name, taken in seconds.items() if name != SERVICE}


def attempt(make: Callable[[], Any]) -> Any:
    """What it makes, or why it could not be made: ONNX Runtime raises errors of its own for an option or a graph that it does not take."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - a variant that does not work is a finding
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
