"""ONNX Runtime sessions, one class per device: named arrays in, named arrays out. A GPU is used wholly or refused; never a silent fallback.

Knows devices, libraries and providers; knows nothing of sequences.
"""

import contextlib
import ctypes
import io
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.artifact import PREPACKED_FOR
from service.engine.cpu import lower_thread_priority
from service.errors import DeviceError

Arrays = Mapping[str, NDArray[np.generic]]
FLUSH = 0x8040  # in x86's MXCSR: denormal results and operands count as 0
CUDA = "CUDAExecutionProvider"
CUDA_OPTIONS: Mapping[str, str] = {
    "arena_extend_strategy": "kSameAsRequested",  # grows by what a batch needs, not by powers of two
    "use_tf32": "0",  # fp32 means fp32
    "sdpa_kernel": "3",  # flash or memory-efficient attention: by itself ONNX Runtime pads fp32 texts of less than 256 tokens
}


class Session(Protocol):
    inputs: tuple[str, ...]
    provider: str  # the execution provider in use: CPU or CUDA
    prepacked_for: str  # the processor and version that the model's packed weights are for; empty where it has none

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        """The outputs `names`, computed from `feeds`."""


class CpuSession:
    provider = "CPU"

    def __init__(self, model: Path, *, threads: int) -> None:
        options = _options(threads)
        options.graph_optimization_level = (
            ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        )  # the exporter chose the operators; fusing undoes it
        options.add_session_config_entry(
            "session.set_denormal_as_zero", "1"
        )  # shares of other sequences are denormal: 4 times slower on some CPUs
        options.add_session_config_entry(
            "session.prepack.enable_parallel", "1"
        )  # two cores pack BERT-base's fp32 weights in 0.35 s, one in 0.6
        self._session = _opened(model, options, "CPUExecutionProvider")
        self.inputs = tuple(one.name for one in self._session.get_inputs())
        self.prepacked_for = str(self._session.get_modelmeta().custom_metadata_map.get(PREPACKED_FOR, ""))

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        results: list[NDArray[np.generic]] = self._session.run(names, {name: feeds[name] for name in self.inputs})
        return results


class CudaSession:
    """Every node on the GPU; inputs go there once, and only what was asked for comes back."""

    provider = "CUDA"
    prepacked_for = ""

    def __init__(self, model: Path, provider_options: Mapping[str, str] = CUDA_OPTIONS) -> None:
        options = _options(1)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        load_cuda_libraries()  # here too: the process that chose the GPU may be another
        self._session = _opened(model, options, (CUDA, dict(provider_options)))
        if elsewhere := _nodes_elsewhere(self._session):
            raise DeviceError(
                f"{len(elsewhere)} nodes of the CUDA artifact would not run on the GPU: {', '.join(elsewhere[:5])}"
            )
        self.inputs = tuple(one.name for one in self._session.get_inputs())

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        binding = self._session.io_binding()
        for name in self.inputs:
            binding.bind_cpu_input(name, np.ascontiguousarray(feeds[name]))
        for name in names:
            binding.bind_output(name, "cuda")
        self._session.run_with_iobinding(binding)
        results: list[NDArray[np.generic]] = binding.copy_outputs_to_cpu()
        return results


def open_session(model: Path, *, device: str, threads: int) -> Session:
    """Raises DeviceError where the device cannot be used, and what ONNX Runtime raises where the model does not load."""
    return CudaSession(model) if device == "cuda" else CpuSession(model, threads=threads)


def why_cuda_unavailable() -> str:
    """Why no GPU can be used on this machine, naming the missing library or driver; empty where one can."""
    if CUDA not in ort.get_available_providers():
        return "this build of ONNX Runtime has no CUDA provider: install onnxruntime-gpu"
    load_cuda_libraries()
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver: {error}"
    try:
        provider = ctypes.CDLL(str(Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"))
    except OSError as error:
        return f"a CUDA library is missing: {error}; pip install 'onnxruntime-gpu[cuda,cudnn]' brings it"
    return runtime_fault(provider)


def load_cuda_libraries() -> None:
    """Those that lie in wheels beside ONNX Runtime, where the system's loader does not look. One that is missing is no error yet."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
        ort.preload_dlls()


def runtime_fault(provider: Any) -> str:
    """What the CUDA runtime that ONNX Runtime's `provider` library is linked with says of the driver and the GPU; empty where it has one.

    The driver itself would not say that it is too old for that runtime.
    """
    count, say = ctypes.c_int(), provider.cudaGetErrorString
    say.restype = ctypes.c_char_p
    if code := provider.cudaGetDeviceCount(ctypes.byref(count)):
        return f"CUDA {ort.cuda_version} answers with error {code}: {say(code).decode()}"
    return "" if count.value else "CUDA knows no GPU"


def configure_inference_thread() -> None:
    """Makes the calling thread one that runs the model: denormals count as zero, and the event loop goes first."""
    flush_denormals()
    lower_thread_priority()


def flush_denormals() -> None:
    """For the calling thread, on x86. The shares of other sequences in an attention row are denormal numbers, at 100 cycles a product.

    ONNX Runtime does this for its own threads (session.set_denormal_as_zero), but not for those that call it.
    """
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        state = (ctypes.c_uint32 * 8)()  # fenv_t: 28 bytes of x87 state, then MXCSR
        library = ctypes.CDLL(None)
        library.fegetenv(state)
        state[7] |= FLUSH
        library.fesetenv(state)


def onnxruntime_version() -> str:
    return str(ort.__version__)


def _options(threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = (
        False  # shapes change with every batch; and fp16 norms were corrupted by it from the second run on
    )
    options.add_session_config_entry(
        "session.intra_op.spin_duration_us", "50"
    )  # bridges the gaps between operators; longer starves the event loop
    return options


def _opened(model: Path, options: Any, provider: Any) -> Any:
    """Without ONNX Runtime's own second attempt on the CPU, whose error would hide why the first failed."""
    return ort.InferenceSession(model, options, providers=[provider], enable_fallback=0)


def _nodes_elsewhere(session: Any) -> list[str]:
    """Names of the nodes that were given to another provider than CUDA."""
    assignments = session.get_provider_graph_assignment_info()
    return [node.name for part in assignments if part.ep_name != CUDA for node in part.get_nodes()]
