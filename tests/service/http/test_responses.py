"""Answers as bytes: what is long is written in pieces, with turns of the loop in between; an error has the shape of its path."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from service.http.responses import ROWS_AT_ONCE, error_bytes, json_bytes, openai_embeddings

VECTORS = np.arange(20 * ROWS_AT_ONCE * 4, dtype=np.float32).reshape(-1, 4)


def encoded(work: Coroutine[Any, Any, bytes]) -> tuple[Any, int]:
    """What the bytes say, and how often the loop turned while they were made."""

    async def story() -> tuple[Any, int]:
        task, turns = asyncio.create_task(work), 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return json.loads(await task), turns

    return asyncio.run(story())


def test_many_vectors_are_written_in_pieces() -> None:
    found, turns = encoded(json_bytes(VECTORS))
    assert found == VECTORS.tolist()
    assert turns >= 20


@pytest.mark.parametrize("base64_encoded", [False, True])
def test_many_vectors_in_openais_shape_are_too(base64_encoded: bool) -> None:
    found, turns = encoded(openai_embeddings(VECTORS, model="m", tokens=7, base64_encoded=base64_encoded))
    assert list(found) == ["object", "data", "model", "usage"]
    assert [one["index"] for one in found["data"]] == list(range(len(VECTORS)))
    assert turns >= 20
    if not base64_encoded:
        assert [one["embedding"] for one in found["data"]] == VECTORS.tolist()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(422, "invalid_request_error"), (429, "invalid_request_error"), (500, "server_error"), (503, "server_error")],
)
def test_under_v1_an_error_has_openais_shape(status: int, kind: str):
    content = json.loads(error_bytes("/v1/embeddings", "mine", status, "a sentence", "code", 3))
    assert content == {"error": {"message": "a sentence", "type": kind, "param": "input.3", "code": "code"}}
