"""Response bodies and headers as bytes: JSON directly from NumPy arrays, NPY, base64. Pydantic validates nothing."""

import asyncio
import base64
import io
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.tasks.base import TaskResult

Floats = NDArray[np.float32]
JSON, NPY = "application/json", "application/x-npy"
ROWS_PER_CHUNK = 64  # about 1 ms at 768 numbers a row: orjson holds the GIL, so the event loop runs between chunks


async def json_bytes(value: Any) -> bytes:
    """Compact JSON; large arrays and long lists in chunks."""
    if not isinstance(value, np.ndarray | list) or len(value) <= ROWS_PER_CHUNK:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    chunks = []
    for start in range(0, len(value), ROWS_PER_CHUNK):
        chunks.append(orjson.dumps(value[start : start + ROWS_PER_CHUNK], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(chunks) + b"]"


def npy_bytes(value: NDArray[np.generic]) -> bytes:
    """NumPy's file format, version 1.0."""
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return buffer.getvalue()


async def build_openai_embeddings(vectors: Floats, model: str, tokens: int, *, as_base64: bool) -> dict[str, Any]:
    """OpenAI's response for [inputs, dimensions], for `json_bytes`; base64 holds little-endian float32."""
    rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors] if as_base64 else list(vectors)
    data = await json_bytes([{"object": "embedding", "embedding": row, "index": i} for i, row in enumerate(rows)])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": orjson.Fragment(data), "model": model, "usage": usage}


def build_timing_headers(result: TaskResult) -> list[tuple[bytes, bytes]]:
    """server-timing in milliseconds, and the number of truncated inputs if there are any."""
    milliseconds = (
        1e3 * result.tokenize_seconds,
        1e3 * result.queue_seconds,
        1e3 * result.forward_seconds,
        1e3 * result.format_seconds,
    )
    timing = b"tokenize;dur=%.3f, queue;dur=%.3f, forward;dur=%.3f, format;dur=%.3f" % milliseconds
    headers = [(b"server-timing", timing)]
    return [*headers, (b"x-truncated-inputs", b"%d" % result.truncated)] if result.truncated else headers


def error_bytes(path: str, request_id: str, status: int, message: str, code: str, index: int | None = None) -> bytes:
    """The error body of every route; OpenAI's under /v1."""
    if path.startswith("/v1/"):
        kind = "invalid_request_error" if status < 500 else "server_error"
        param = None if index is None else f"input.{index}"
        return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
    content: dict[str, Any] = {"error": message, "code": code, "request_id": request_id}
    return orjson.dumps(content if index is None else content | {"index": index})
