"""ONNX Runtime sessions on a CPU and on CUDA, and what a CUDA device needs."""

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

from packbert.model_export.artifact.cpu import BF16
from packbert.model_export.artifact.manifest import ATTENTION, HEADS, LAYERS, PREPACKED_FOR

from ..artifact import Manifest
from ..errors import DeviceError
from .cpu import lower_thread_priority

Arrays = Mapping[str, NDArray[np.generic]]
CUDA = "CUDAExecutionProvider"
FLUSH_DENORMALS = 0x8040  # in x86's MXCSR: denormal results and operands count as 0
CUDA_OPTIONS: Mapping[str, str] = {
    "arena_extend_strategy": "kSameAsRequested",  # grows by what a batch needs, not by powers of two
    "use_tf32": "0",  # fp32 means fp32
    "sdpa_kernel": "3",  # flash or memory-efficient attention: the default pads fp32 texts of less than 256 tokens
}


class Session(Protocol):
    inputs: tuple[str, ...]
    provider: str  # what runs the model: ONNX Runtime's execution provider (CPU, CUDA), or OpenVINO
    prepacked_for: str  # the processor and the version that the weights are packed for; empty if they are not

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        """The outputs `names`, computed from `feeds`."""


class CpuSession:
    provider = "CPU"

    def __init__(self, model: Path, *, threads: int) -> None:
        options = _options(threads)
        # the exporter chose the operators; fusing would replace them
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        # attention probabilities of other sequences are denormal: 4 times slower on some CPUs
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        # two cores pack BERT-base's fp32 weights in 0.35 s, one core in 0.6
        options.add_session_config_entry("session.prepack.enable_parallel", "1")
        self._session = _open(model, options, "CPUExecutionProvider")
        self.inputs = tuple(one.name for one in self._session.get_inputs())
        self.prepacked_for = str(self._session.get_modelmeta().custom_metadata_map.get(PREPACKED_FOR, ""))

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        results: list[NDArray[np.generic]] = self._session.run(names, {name: feeds[name] for name in self.inputs})
        return results


class CudaSession:
    """Every node on the GPU; inputs are copied there once, and only the requested outputs back."""

    provider = "CUDA"
    prepacked_for = ""

    def __init__(self, model: Path, provider_options: Mapping[str, str] = CUDA_OPTIONS) -> None:
        options = _options(1)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        load_cuda_libraries()  # another process may have chosen the GPU
        self._session = _open(model, options, (CUDA, dict(provider_options)))
        if elsewhere := _nodes_not_on_gpu(self._session):
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


class OpenVinoSession:
    """OpenVINO computes the hidden states in bf16, and a second session in fp32 what the heads make of them."""

    provider = "OpenVINO"
    prepacked_for = ""

    def __init__(self, model: Path, *, threads: int, streams: int) -> None:
        """`streams` threads may call `run` at the same time, each on `threads` cores."""
        from packbert.model_export.artifact.openvino import STATES, OpenVinoEncoder  # the others do without it

        self._heads = CpuSession(model.with_name(HEADS), threads=threads)
        layers, all_layers = model.with_name(LAYERS), model.name == LAYERS
        self._encoder = OpenVinoEncoder(layers, all_layers=all_layers, threads=threads, streams=streams)
        self.inputs = tuple({*self._encoder.inputs, *self._heads.inputs} - {STATES})

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        return self._encoder.run_with_heads(self._heads.run, names, feeds)


def open_session(model: Path, manifest: Manifest, *, threads: int, side_by_side: int = 1) -> Session:
    """A session that `side_by_side` threads call at the same time, each with `threads` cores, on the device of the
    manifest.

    Raises DeviceError if it cannot be used, and what the runtime raises on loading the model."""
    if manifest.device == "cuda":
        return CudaSession(model)
    if manifest.precision == BF16 and model.name != ATTENTION:
        return OpenVinoSession(model, threads=threads, streams=side_by_side)
    return CpuSession(model, threads=threads)


def configure_inference_thread() -> None:
    """Prepares a thread that runs the model: denormals count as zero, and the event loop has the higher priority."""
    flush_denormals()
    lower_thread_priority()


def flush_denormals() -> None:
    """Denormals count as zero in the calling thread, on x86: a product with a denormal number takes 100 cycles.

    Attention probabilities of other sequences in the row are denormal. ONNX Runtime configures its own threads
    (session.set_denormal_as_zero), but not those that call it.
    """
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        state = (ctypes.c_uint32 * 8)()  # fenv_t: 28 bytes of x87 state, then MXCSR
        library = ctypes.CDLL(None)
        library.fegetenv(state)
        state[7] |= FLUSH_DENORMALS
        library.fesetenv(state)


def onnxruntime_version() -> str:
    return str(ort.__version__)


def _options(threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # shapes change with every batch; and it corrupted fp16 norms from the second run on
    options.enable_mem_pattern = False
    # bridges the gaps between operators; longer spinning starves the event loop
    options.add_session_config_entry("session.intra_op.spin_duration_us", "50")
    return options


def _open(model: Path, options: Any, provider: Any) -> Any:
    """A session, without ONNX Runtime's own second attempt on the CPU, whose error would hide the first."""
    return ort.InferenceSession(model, options, providers=[provider], enable_fallback=0)


def _nodes_not_on_gpu(session: Any) -> list[str]:
    """Names of the nodes that ONNX Runtime assigned to another provider."""
    assignments = session.get_provider_graph_assignment_info()
    return [node.name for part in assignments if part.ep_name != CUDA for node in part.get_nodes()]


def why_cuda_unavailable() -> str:
    """Names the missing library or driver; empty if a GPU can be used."""
    if CUDA not in ort.get_available_providers():
        return "this build of ONNX Runtime has no CUDA provider: install onnxruntime-gpu"
    load_cuda_libraries()
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver: {error}"
    try:
        provider = _load_provider()
    except OSError as error:
        return f"a CUDA library is missing: {error}; pip install 'onnxruntime-gpu[cuda,cudnn]' brings it"
    return runtime_fault(provider)


def memory_in_use(device: str) -> int:
    """Bytes of the GPU, by any process, or of this process's memory without files; 0 if the system does not say."""
    if device == "cuda":
        return (device_memory() or (0, 0))[0]
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def device_memory() -> tuple[int, int] | None:
    """Bytes that are in use, by any process, and bytes in all, of the GPU on which ONNX Runtime runs; after its start.

    It is the first of the GPUs that CUDA_VISIBLE_DEVICES leaves. None if CUDA cannot say.
    """
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        fault = _load_provider().cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    except (OSError, AttributeError):
        return None
    return None if fault else (total.value - free.value, total.value)


def _load_provider() -> ctypes.CDLL:
    """ONNX Runtime's library for CUDA, which is linked with the CUDA runtime. Raises OSError."""
    return ctypes.CDLL(str(Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"))


def load_cuda_libraries() -> None:
    """Loads them from the wheels beside ONNX Runtime, where the system's loader does not look. None has to be there."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
        ort.preload_dlls()


def runtime_fault(provider: Any) -> str:
    """What the CUDA runtime that ONNX Runtime's `provider` library is linked with reports; empty if it has no error.

    The driver itself does not report that it is too old for that runtime.
    """
    count, error_string = ctypes.c_int(), provider.cudaGetErrorString
    error_string.restype = ctypes.c_char_p
    if code := provider.cudaGetDeviceCount(ctypes.byref(count)):
        return f"CUDA {ort.cuda_version} answers with error {code}: {error_string(code).decode()}"
    return "" if count.value else "CUDA finds no GPU"
