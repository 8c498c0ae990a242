"""Response bodies: long ones are encoded in chunks, between which the event loop runs; errors depend on the path."""

import asyncio
import io
import json
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from packbert.service import turns
from packbert.service.http.dialects.vectors import show_for_openai
from packbert.service.http.responses import Json, json_bytes, npy_bytes, stages_of
from packbert.service.tasks.flow import TaskResult
from packbert.service.tasks.results import LongList, LongObject, MadeList

VECTORS = np.arange(2**17, dtype=np.float32).reshape(-1, 4)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)


def encoded(work: Coroutine[Any, Any, Json]) -> tuple[Any, int]:
    """The decoded bytes, and how many iterations of the event loop it took to make them."""

    async def story() -> tuple[Any, int]:
        task, turns = asyncio.create_task(work), 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return json.loads(await task), turns

    return asyncio.run(story())


MATRICES = VECTORS.reshape(32, 2, -1, 4)
MIXED = LongList([VECTORS, [1, 2], LongObject({"vectors": VECTORS, "a b": [3]}), MadeList(str, [1, 2]), LongList()])
NAMED = LongObject(names=["a"], matrices=MATRICES)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (VECTORS, VECTORS.tolist()),
        (MIXED, [VECTORS.tolist(), [1, 2], {"vectors": VECTORS.tolist(), "a b": [3]}, ["1", "2"], []]),
        (NAMED, {"names": ["a"], "matrices": MATRICES.tolist()}),
    ],
    ids=["vectors", "several inputs", "matrices"],
)
def test_a_long_answer_is_encoded_in_chunks(value: Any, expected: Any) -> None:
    found, count = encoded(json_bytes(value))
    assert found == expected
    assert count >= 4


@pytest.mark.parametrize("as_base64", [False, True])
def test_many_vectors_in_openais_format_are_encoded_in_chunks(as_base64: bool) -> None:
    value = show_for_openai("m", "base64" if as_base64 else None, VECTORS, TaskResult(tokens=7))
    found, turns = encoded(json_bytes(value))
    assert list(found) == ["object", "id", "data", "model", "usage"]
    assert [one["index"] for one in found["data"]] == list(range(len(VECTORS)))
    assert turns >= 4
    if not as_base64:
        assert [one["embedding"] for one in found["data"]] == VECTORS.tolist()


def test_an_array_of_matrices_is_encoded_as_npy() -> None:
    encoded_array = asyncio.run(npy_bytes(NAMED))
    assert encoded_array is not None
    data, headers = encoded_array
    assert np.array_equal(np.load(io.BytesIO(data)), MATRICES)
    assert headers == []


def test_the_stages_of_a_trace_end_where_the_next_begins() -> None:
    result = TaskResult(received=9.0, tokenize_seconds=1.0, queue_seconds=2.0, forward_seconds=4.0, format_seconds=0.5)
    assert stages_of(result) == [("tokenize", 2.0, 1.0), ("queue", 3.0, 2.0), ("format", 9.0, 0.5)]
