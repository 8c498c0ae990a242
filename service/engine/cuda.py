"""Whether ONNX Runtime can use a GPU on this machine, and if not, why."""

import contextlib
import ctypes
import io
from pathlib import Path
from typing import Any

import onnxruntime as ort

CUDA = "CUDAExecutionProvider"
CAPABILITY_ATTRIBUTES = (75, 76)  # cudaDevAttrComputeCapabilityMajor and Minor


def why_cuda_unavailable() -> str:
    """Names the missing library or driver; empty where a GPU can be used."""
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


def device_memory() -> tuple[int, int] | None:
    """Bytes that are in use, by any process, and bytes in all, of the GPU on which ONNX Runtime runs; after its start.

    Of the GPUs that CUDA_VISIBLE_DEVICES leaves, it is the first. None where CUDA cannot say.
    """
    try:
        return runtime_memory(_load_provider())
    except OSError:
        return None


def runtime_memory(provider: Any) -> tuple[int, int] | None:
    """As `device_memory`, from the CUDA runtime that ONNX Runtime's `provider` library is linked with."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        fault = provider.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    except AttributeError:
        return None
    return None if fault else (total.value - free.value, total.value)


def compute_capability() -> tuple[int, int] | None:
    """Major and minor version of the GPU on which ONNX Runtime runs, as (8, 0); None where CUDA cannot say."""
    try:
        return runtime_capability(_load_provider())
    except OSError:
        return None


def runtime_capability(provider: Any) -> tuple[int, int] | None:
    """As `compute_capability`, from the CUDA runtime that ONNX Runtime's `provider` library is linked with."""
    numbers = []
    for attribute in CAPABILITY_ATTRIBUTES:
        number = ctypes.c_int()
        try:
            fault = provider.cudaDeviceGetAttribute(ctypes.byref(number), attribute, 0)
        except AttributeError:
            return None
        if fault:
            return None
        numbers.append(number.value)
    return numbers[0], numbers[1]


def _load_provider() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"))


def load_cuda_libraries() -> None:
    """From the wheels beside ONNX Runtime, where the system's loader does not look. A missing one is no error yet."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
        ort.preload_dlls()


def runtime_fault(provider: Any) -> str:
    """What the CUDA runtime that ONNX Runtime's `provider` library is linked with reports; empty where it has no error.

    The driver itself does not report that it is too old for that runtime.
    """
    count, error_string = ctypes.c_int(), provider.cudaGetErrorString
    error_string.restype = ctypes.c_char_p
    if code := provider.cudaGetDeviceCount(ctypes.byref(count)):
        return f"CUDA {ort.cuda_version} answers with error {code}: {error_string(code).decode()}"
    return "" if count.value else "CUDA finds no GPU"
