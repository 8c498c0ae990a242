"""Answers as bytes: JSON from NumPy without a detour through Python numbers, NPY, base64; never pydantic on the way out."""

import asyncio
import base64
import io
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

JSON, NPY = "application/json", "application/x-npy"
ROWS_AT_ONCE = 64  # about 1 ms of encoding at 768 numbers a row; orjson holds the interpreter lock, so the loop gets its turn in between


async def json_bytes(value: Any) -> bytes:
    """Compact JSON; large arrays and long lists piece by piece."""
    if not isinstance(value, np.ndarray | list) or len(value) <= ROWS_AT_ONCE:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    pieces = []
    for start in range(0, len(value), ROWS_AT_ONCE):
        pieces.append(orjson.dumps(value[start : start + ROWS_AT_ONCE], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(pieces) + b"]"


def npy_bytes(value: NDArray[np.generic]) -> bytes:
    """NumPy's own file format, version 1.0."""
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return buffer.getvalue()


async def openai_embeddings(vectors: NDArray[np.float32], *, model: str, tokens: int, base64_encoded: bool) -> bytes:
    """OpenAI's answer to /v1/embeddings; base64 holds little-endian float32."""
    encoded = (
        [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors] if base64_encoded else list(vectors)
    )
    data = await json_bytes([{"object": "embedding", "embedding": one, "index": i} for i, one in enumerate(encoded)])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps({"object": "list", "data": orjson.Fragment(data), "model": model, "usage": usage})


def error_bytes(path: str, request_id: str, status: int, message: str, code: str, index: int | None = None) -> bytes:
    """The one shape of errors; under /v1 OpenAI's."""
    if path.startswith("/v1/"):
        kind = "invalid_request_error" if status < 500 else "server_error"
        param = None if index is None else f"input.{index}"
        return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
    content: dict[str, Any] = {"error": message, "code": code, "request_id": request_id}
    return orjson.dumps(content | ({"index": index} if index is not None else {}))
