"""The machine under ONNX Runtime, as far as exporter and service both have to know it: what its kernels are chosen by, and its spare memory."""

import ctypes
import platform
from pathlib import Path

VECTORS = {
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "amx_int8",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
}  # what kernels are chosen by


def cpu_signature(onnxruntime: str) -> str:
    """The processor, as far as kernels differ, and the version of ONNX Runtime: packed weights are for both."""
    try:
        said = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        said = ""
    vectors = " ".join(sorted(VECTORS & set(said.split()))) or "no known vector units"
    return f"{platform.machine()} with {vectors}, ONNX Runtime {onnxruntime}"


def trim_heap() -> None:
    """What was freed and the C library keeps for itself: 50 MB after BERT-base's reference pass, and after its weights were packed to be
    compared with mapped ones."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others do not
    if trim is not None:
        trim(0)
