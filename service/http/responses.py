"""Response bodies and headers as bytes: JSON directly from NumPy arrays, NPY, base64. Pydantic validates nothing."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import Response
from numpy.typing import NDArray

from ..logs import Fields
from ..observability.series import STAGES
from ..tasks.flow import TaskResult
from ..tasks.results import LongList, LongObject, MadeList
from ..turns import in_turns

Floats = NDArray[np.float32]
MODEL_DIGEST = b"x-model-digest"
JSON, NPY = "application/json", "application/x-npy"
ITEMS_PER_PIECE, NUMBERS_PER_PIECE = 64, 2**15  # written at once, which takes up to 1 ms: orjson holds the GIL
Json = bytes | bytearray


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, JSON)


async def json_bytes(value: Any) -> Json:
    """Compact JSON. A long value is written in pieces, in turns with other requests, into a single buffer."""
    if not _is_long(value):
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    written = bytearray()
    async for piece in in_turns(_pieces(value)):
        written += piece
    return written


def _is_long(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.size > NUMBERS_PER_PIECE
    return isinstance(value, LongList | MadeList | LongObject) or (
        isinstance(value, list) and len(value) > ITEMS_PER_PIECE
    )


def _pieces(value: Any) -> Iterator[bytes]:
    if not _is_long(value):
        yield orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    elif isinstance(value, LongObject):
        yield from _join(b"{", (_field(name, item) for name, item in value.items()), b"}")
    elif isinstance(value, LongList | MadeList) or (isinstance(value, np.ndarray) and value.ndim > 2):
        yield from _join(b"[", map(_pieces, value), b"]")
    else:
        yield from _join(b"[", _parts(value), b"]")


def _join(before: bytes, items: Iterable[Iterable[bytes]], after: bytes) -> Iterator[bytes]:
    separator = before
    for item in items:
        yield separator
        yield from item
        separator = b","
    yield after if separator == b"," else before + after


def _field(name: str, value: Any) -> Iterator[bytes]:
    yield orjson.dumps(name) + b":"
    yield from _pieces(value)


def _parts(value: Any) -> Iterator[Iterable[bytes]]:
    """The items of an array or a list without its brackets, some at a time."""
    some = ITEMS_PER_PIECE
    if isinstance(value, np.ndarray):
        some = max(1, NUMBERS_PER_PIECE * len(value) // value.size)
    for start in range(0, len(value), some):
        yield (orjson.dumps(value[start : start + some], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1],)


async def npy_bytes(value: Any) -> tuple[Json, list[tuple[bytes, bytes]]] | None:
    """The array of a response in NumPy's file format, version 1.0, and headers. None if the value is no array.

    The arrays of a list are joined along their tokens, the second last axis; x-npy-rows has the tokens of each.
    """
    if isinstance(value, LongObject):
        (value,) = [item for item in value.values() if isinstance(item, np.ndarray)]
    if isinstance(value, np.ndarray):
        return await _npy([value], value.shape), []
    arrays = []
    async for array in in_turns(value):
        if not isinstance(array, np.ndarray):
            return None
        arrays.append(array)
    sizes, shape = [array.shape[-2] for array in arrays], arrays[0].shape
    joined = await _npy(arrays, (*shape[:-2], sum(sizes), shape[-1]))
    return joined, [(b"x-npy-rows", b",".join(map(b"%d".__mod__, sizes)))]


async def _npy(arrays: Sequence[NDArray[np.generic]], shape: tuple[int, ...]) -> bytearray:
    head = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(arrays[0].dtype)
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    written = bytearray(head.getvalue())
    # for each index of the axes before the last two: the arrays, joined along the second last
    for index in np.ndindex(shape[:-2]):
        async for array in in_turns(arrays):
            written += np.ascontiguousarray(array[index]).reshape(-1).view(np.uint8).data
    return written


def stages_of(result: TaskResult) -> list[tuple[str, float, float]]:
    """Name, start by time.perf_counter and duration in seconds of the stages before and after the run.

    The waits between several runs of a request are added up, and shown before the first run.
    """
    queued = result.received - result.forward_seconds - result.queue_seconds
    return [
        ("tokenize", queued - result.tokenize_seconds, result.tokenize_seconds),
        ("queue", queued, result.queue_seconds),
        ("format", result.received, result.format_seconds),
    ]


def build_headers(result: TaskResult, device: str = "", seconds: float = 0.0) -> list[tuple[bytes, bytes]]:
    """server-timing in milliseconds; the digest of a model that can be swapped; the number of truncated inputs if there
    are any; the windows of each text; for a `device` those of text-embeddings-inference too.

    `seconds`: that the request took.
    """
    timing = b"tokenize;dur=%.3f, queue;dur=%.3f, forward;dur=%.3f, format;dur=%.3f" % (
        *(1e3 * result.tokenize_seconds, 1e3 * result.queue_seconds),
        *(1e3 * result.forward_seconds, 1e3 * result.format_seconds),
    )
    headers = [(b"server-timing", timing)]
    if result.model:
        headers.append((MODEL_DIGEST, result.model.encode()))
    if result.truncated:
        headers.append((b"x-truncated-inputs", b"%d" % result.truncated))
    if result.windows:
        headers.append((b"x-windows", b",".join(b"%d" % count for count in result.windows)))
    if device:
        total = b"%d" % (1e3 * seconds)
        headers += [
            (b"x-compute-type", b"gpu+optimized" if device == "cuda" else b"cpu"),
            (b"x-compute-time", total),
            (b"x-compute-tokens", b"%d" % result.tokens),
            (b"x-total-time", total),
            (b"x-tokenization-time", b"%d" % (1e3 * result.tokenize_seconds)),
            (b"x-queue-time", b"%d" % (1e3 * result.queue_seconds)),
            (b"x-inference-time", b"%d" % (1e3 * result.forward_seconds)),
        ]
    return headers


def describe_result(result: TaskResult) -> Fields:
    """The fields of an answered request's line in the access log."""
    stages = zip(STAGES, result.stage_seconds, strict=True)
    milliseconds = {f"{name}_ms": round(1e3 * seconds, 3) for name, seconds in stages}
    return {"texts": len(result.sequences), "tokens": result.tokens, **milliseconds}
