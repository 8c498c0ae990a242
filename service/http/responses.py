"""Response bodies and headers as bytes: JSON directly from NumPy arrays, NPY, base64. Pydantic validates nothing."""

import asyncio
import io
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.logs import Fields
from service.tasks.base import LongList, LongObject, TaskResult

Floats = NDArray[np.float32]
JSON, NPY = "application/json", "application/x-npy"
ROWS_PER_CHUNK = 64  # about 1 ms at 768 numbers a row: orjson holds the GIL, so the event loop runs between chunks


async def json_bytes(value: Any) -> bytes:
    """Compact JSON; large arrays and long lists in chunks."""
    if isinstance(value, LongList) or (isinstance(value, np.ndarray) and value.ndim > 2):
        return b"[" + b",".join([await _long_json(one) for one in value]) + b"]"
    if isinstance(value, LongObject):
        return await _long_json(value)
    if not isinstance(value, np.ndarray | list) or len(value) <= ROWS_PER_CHUNK:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    chunks = []
    for start in range(0, len(value), ROWS_PER_CHUNK):
        chunks.append(orjson.dumps(value[start : start + ROWS_PER_CHUNK], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(chunks) + b"]"


async def _long_json(value: Any) -> bytes:
    """The JSON of one item of several; of an object, each of its values in chunks."""
    if not isinstance(value, dict):
        await asyncio.sleep(0)
        return await json_bytes(value)
    fields = [orjson.dumps(name) + b":" + await json_bytes(one) for name, one in value.items()]
    return b"{" + b",".join(fields) + b"}"


def npy_bytes(value: NDArray[np.generic]) -> bytes:
    """NumPy's file format, version 1.0."""
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return buffer.getvalue()


def as_one_array(value: Any) -> tuple[NDArray[np.generic] | None, list[tuple[bytes, bytes]]]:
    """The array of a response in NPY, and its headers. None where the value is no array.

    The arrays of a LongList are joined along their tokens, the last axis but one; x-npy-rows has the tokens of each.
    """
    if isinstance(value, LongObject):
        (array,) = [one for one in value.values() if isinstance(one, np.ndarray)]
        return array, []
    if isinstance(value, np.ndarray):
        return value, []
    if not all(isinstance(one, np.ndarray) for one in value):
        return None, []
    return np.concatenate(value, axis=-2), [(b"x-npy-rows", b",".join(b"%d" % one.shape[-2] for one in value))]


def stages_of(result: TaskResult) -> list[tuple[str, float, float]]:
    """Name, start by time.perf_counter and duration in seconds of the stages before and after the run.

    Waits between several runs of a request are added up, before the first one.
    """
    queued = result.received - result.forward_seconds - result.queue_seconds
    return [
        ("tokenize", queued - result.tokenize_seconds, result.tokenize_seconds),
        ("queue", queued, result.queue_seconds),
        ("format", result.received, result.format_seconds),
    ]


def build_timing_headers(result: TaskResult) -> list[tuple[bytes, bytes]]:
    """server-timing in milliseconds; the number of truncated inputs if there are any; the windows of each text."""
    timing = b"tokenize;dur=%.3f, queue;dur=%.3f, forward;dur=%.3f, format;dur=%.3f" % tuple(
        [1e3 * seconds for seconds in result.stage_seconds]
    )
    headers = [(b"server-timing", timing)]
    if result.truncated:
        headers.append((b"x-truncated-inputs", b"%d" % result.truncated))
    if result.added:
        counts = np.bincount(result.owners).tolist()
        headers.append((b"x-windows", b",".join(b"%d" % count for count in counts)))
    return headers


def describe_result(result: TaskResult) -> Fields:
    """What the access log says of an answered request."""
    names = ("tokenize_ms", "queue_ms", "forward_ms", "format_ms")
    milliseconds = (round(1e3 * seconds, 3) for seconds in result.stage_seconds)
    return {"texts": len(result.sequences), "tokens": result.tokens, **dict(zip(names, milliseconds, strict=True))}
