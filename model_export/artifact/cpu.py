"""The CPU signature that prepacked weights are made for, and malloc_trim."""

import ctypes
import platform
from pathlib import Path

VECTOR_UNITS = {"avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "bf16", "i8mm", "sve"}


def cpu_signature(onnxruntime: str) -> str:
    """The processor's vector units, by which kernels are selected, and the version of ONNX Runtime."""
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        flags = ""
    vectors = " ".join(sorted(VECTOR_UNITS & set(flags.split()))) or "no known vector units"
    return f"{platform.machine()} with {vectors}, ONNX Runtime {onnxruntime}"


def trim_heap() -> None:
    """Returns freed memory to the operating system, which glibc otherwise keeps.

    That is 50 MB after BERT-base's reference pass, and after its weights were packed to be compared with mapped ones.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
