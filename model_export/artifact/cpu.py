"""This processor: what it is fast in, its name and signature; the float state of a thread, and malloc_trim."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

BF16_FLAGS = {"avx512_bf16", "amx_bf16"}  # of processors that have products in bf16
BF16, BF16_RUNTIME = "bf16", "openvino"  # a precision, and the package that runs it
M_ARENA_MAX = -8  # of mallopt
VECTOR_UNITS = {"avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "bf16", "i8mm", "sve"}


def cpu_signature(onnxruntime: str) -> str:
    """The processor's vector units, by which kernels are selected, and the version of ONNX Runtime."""
    vectors = " ".join(sorted(VECTOR_UNITS & _flags())) or "no known vector units"
    return f"{platform.machine()} with {vectors}, ONNX Runtime {onnxruntime}"


def processor_name() -> str:
    """The processor's name in the system's words; the architecture if the system has none."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def has_fast_int8() -> bool:
    """Whether int8 is faster than fp32 here: with AVX2 alone 1.6 times (BERT-base); VNNI and AMX come with AVX2."""
    return "avx2" in _flags()


def why_bf16_unavailable() -> str:
    """Why this machine cannot run bf16, with the way out; empty if it can. Imports nothing."""
    if not BF16_FLAGS & _flags():
        return "this processor has neither AVX512-BF16 nor AMX, which bf16 needs: use fp32 or int8"
    if find_spec(BF16_RUNTIME) is None:
        return (
            "OpenVINO is not installed, which runs bf16: install packbert with the extra openvino, or use fp32 or int8"
        )
    return ""


def _flags() -> set[str]:
    """The processor's flags by the system's list; empty if it has no list."""
    try:
        return set(Path("/proc/cpuinfo").read_text("utf-8").split())
    except OSError:
        return set()


@contextmanager
def float_state_kept() -> Iterator[None]:
    """Restores the float state of the calling thread at the end: denormals and rounding.

    Only on Linux; on another system nothing is kept.
    """
    if platform.system() != "Linux":
        yield
        return
    state, library = ctypes.create_string_buffer(64), _open_libc()  # fenv_t: 32 bytes on x86, fewer elsewhere
    library.fegetenv(state)
    try:
        yield
    finally:
        library.fesetenv(state)


@cache
def _open_libc() -> ctypes.CDLL:
    """Opens it once: it is part of cycles, which would wait for the garbage collector."""
    return ctypes.CDLL(None)


def use_one_heap() -> None:
    """Lets all threads allocate in the first heap: `trim_heap` returns the free end of no other heap.

    For a process that swaps models, before it starts threads: 20 swaps of a model of 77 MB left 300 MB in their heaps.
    """
    if (set_option := getattr(_open_libc(), "mallopt", None)) is not None:  # only glibc has it
        set_option(M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Returns freed memory to the operating system, which glibc otherwise keeps.

    That is 50 MB after BERT-base's reference pass, and after its weights were packed for the comparison with the
    mapped weights.
    """
    trim = getattr(_open_libc(), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
