"""A large body parsed in pieces gives what a small one gives; one with too many values is refused before that."""

import asyncio
import json
import threading
import tracemalloc
from dataclasses import replace
from functools import partial
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import from_json

from service.errors import BadRequest, DeadlineExceeded, Invalid, ServiceError, TooLarge
from service.http.limits import large_body, structure
from service.http.limits.large_body import THREAD, parse_in_pieces, parse_large
from service.http.limits.structure import BodyLimits
from service.http.validation import parse
from service.settings import Settings
from service.tasks import schemas
from service.tasks.labels import label_schemas
from tests.service.fakes import FakeTime, play

LIMITS = BodyLimits.of(Settings.model_validate({"artifact": "."}))
SIZE = 8 * 2**20
TEXT = st.text(st.sampled_from('ab"\\,[]{}: 我😀\n'))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)
PIECES = st.sampled_from([1, 2, 5, 50])


class Anything(BaseModel):
    """Takes every object, and refuses every other value."""

    model_config = ConfigDict(extra="allow")


class Small:
    """Windows and pieces of a few bytes, so that short bodies have many."""

    def __init__(self, size: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.size = size

    def __enter__(self) -> None:
        self.patch.setattr(structure, "WINDOW_BYTES", self.size)
        self.patch.setattr(large_body, "PIECE_BYTES", self.size)

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


@hypothesis.given(st.dictionaries(TEXT, JSON, max_size=4), st.booleans(), st.sampled_from([None, 1]), PIECES)
def test_pieces_give_what_the_whole_body_gives(
    content: dict[str, Any], ascii_only: bool, indent: Any, size: int
) -> None:
    body = json.dumps(content, ensure_ascii=ascii_only, indent=indent).encode()
    with Small(size):
        assert parse_in_pieces(Anything, body, LIMITS).model_dump() == content


@hypothesis.given(
    st.lists(JSON, max_size=4), st.integers(0, 10**6), st.sampled_from([*b'",[]{}\\1\xff ', None]), PIECES
)
@hypothesis.example(["a", "b"], 14, ord(","), 1)
@hypothesis.example([], 11, ord(","), 1)
def test_pieces_are_json_where_the_whole_body_is_json(
    items: list[Any], place: int, byte: int | None, size: int
) -> None:
    """One byte is inserted or left out."""
    body = bytearray(json.dumps({"inputs": items, "b": [1]}).encode())
    place %= len(body)
    body[place : place + (byte is None)] = b"" if byte is None else bytes([byte])
    try:
        content = from_json(bytes(body))
    except ValueError:
        content = None
    with Small(size):
        if isinstance(content, dict):
            assert parse_in_pieces(Anything, bytes(body), LIMITS).model_dump() == content
        else:
            with pytest.raises((BadRequest, Invalid)):
                parse_in_pieces(Anything, bytes(body), LIMITS)


def repeat(item: bytes, before: bytes = b'{"inputs":[', after: bytes = b"]}") -> bytes:
    return before + b",".join([item] * (SIZE // (len(item) + 1))) + after


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (repeat(b'["",""]'), r"\d+ strings or more; at most 10216 are accepted \(BERT_MAX_INPUTS\): split it"),
        (repeat(b"[]"), r"\d+ lists and objects or more; at most 2304 are accepted \(BERT_MAX_INPUTS\): split it"),
        (repeat(b"{}"), r"\d+ lists and objects or more"),
        (repeat(b"1"), r"\d+ values or more; at most 210216 .*BERT_MAX_WAITING_TOKENS"),
        (b"[" * SIZE, r"\d+ lists and objects or more"),
        (b"{%s}" % b",".join(b'"%07d":1' % n for n in range(780_000)), r"\d+ strings or more"),
        (b'{"inputs":"%s"}' % (b"a" * SIZE), r"8388621 bytes outside of its lists; at most 2465536 .*MAX_CHARACTERS"),
        (b'{"%s":1}' % (b"a" * SIZE), r"outside of its lists"),
        (b" " * SIZE + b"{}", r"outside of its lists"),
        (
            b'{"inputs":["a","%s"]}' % (b"\\n" * (SIZE // 2)),
            r"83[0-9]{5} bytes or more in one item, after byte \d+; at most 2465536",
        ),
    ],
    ids=["pairs", "lists", "objects", "numbers", "nested", "fields", "text", "name", "spaces", "item"],
)
def test_a_body_with_more_than_a_valid_one_is_refused_and_takes_no_memory(body: bytes, fault: str) -> None:
    tracemalloc.start()
    with pytest.raises(TooLarge, match=fault):
        parse_in_pieces(label_schemas.PredictRequest, body, LIMITS)
    assert tracemalloc.get_traced_memory()[1] < 1.2 * SIZE  # what is not in a list is copied once
    tracemalloc.stop()


def test_only_the_window_with_one_value_too_many_is_read() -> None:
    body = repeat(b'["",""]')
    tracemalloc.start()
    with pytest.raises(TooLarge):
        parse_in_pieces(schemas.NspRequest, body, LIMITS)
    assert tracemalloc.get_traced_memory()[1] < SIZE / 2
    tracemalloc.stop()


@pytest.mark.parametrize(
    "content",
    [
        {"inputs": ["word " * 2000] * 2048},
        {"inputs": [["a" * 2000, "b" * 2000]] * 2048},
        {"inputs": [{"text": "我" * 600, "text_pair": "\n" * 600}] * 2048, "truncate": True},
        {"inputs": "\U0001f600" * 100_000},
    ],
    ids=["texts", "pairs", "objects", "one text"],
)
def test_the_largest_valid_bodies_are_accepted(content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    assert parse_in_pieces(label_schemas.PredictRequest, body, LIMITS) == parse(label_schemas.PredictRequest, body)


def test_as_many_token_ids_as_the_queue_holds_are_accepted() -> None:
    content = {"inputs": [[100_000] * 1000] * 200}
    assert parse_in_pieces(Anything, json.dumps(content).encode(), LIMITS).model_dump() == content
    with pytest.raises(TooLarge, match="BERT_MAX_WAITING_TOKENS"):
        parse_in_pieces(Anything, json.dumps(content).encode(), replace(LIMITS, values=200_000))


@pytest.mark.parametrize(
    "content",
    [{"inputs": 5}, {"inputs": ["a", 5]}, {"inputs": [["a"], 5]}, {"inputs": "a", "x": 1}, [], {"inputs": {}}],
)
def test_errors_are_those_of_a_small_body(content: Any) -> None:
    body = json.dumps(content).encode()
    with pytest.raises(ServiceError) as small:
        parse(schemas.NspRequest, body)
    with pytest.raises(type(small.value)) as large:
        parse_in_pieces(schemas.NspRequest, body, LIMITS)
    assert (large.value.message, large.value.index) == (small.value.message, small.value.index)


class NamesThread(BaseModel):
    inputs: str

    @model_validator(mode="before")
    @classmethod
    def _name(cls, _: Any) -> Any:
        return {"inputs": threading.current_thread().name}


def test_a_large_body_is_parsed_off_the_event_loop() -> None:
    parsed, seconds_left = asyncio.run(parse_large(partial(parse_in_pieces, NamesThread, b"{}", LIMITS), 2, 60.0))
    assert seconds_left < 60.0
    assert parsed.inputs.startswith("body-parser")


def test_a_deadline_that_passes_while_other_bodies_are_parsed_is_reported() -> None:
    free = threading.Event()

    async def story(time: FakeTime) -> None:
        with pytest.raises(DeadlineExceeded, match=r"after 2\.000 s, while the body of 2 bytes was parsed"):
            await parse_large(partial(parse_in_pieces, Anything, b"{}", LIMITS), 2, 2.0)
        assert time.now == 2.0

    held = THREAD.submit(free.wait)
    try:
        play(story)
    finally:
        free.set()
    held.result()
