"""A large body gives what a small one gives; one with more than a valid body can have is refused before that."""

import asyncio
import json
import threading
import tracemalloc
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from pydantic_core import from_json

from packbert.service.errors import BadRequest, ServiceError, TooLarge
from packbert.service.http import body as body_limits
from packbert.service.http.body import BodyLimits, decode, on_thread, parse
from packbert.service.settings import Settings
from packbert.service.tasks import inputs as schemas
from packbert.service.tasks import predict as label_schemas
from tests.service.fakes import on_loop

SETTINGS = Settings.model_validate({"model": "."})
LIMITS = BodyLimits(SETTINGS)
SIZE = 8 * 2**20
TEXT = st.text(st.sampled_from('ab"\\,[]{}: 我😀\n'))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


@hypothesis.given(JSON, st.booleans(), st.sampled_from([None, 1]), st.sampled_from([0, 5, 50]))
def test_a_body_in_pieces_gives_what_the_whole_body_gives(
    content: Any, ascii_only: bool, indent: Any, size: int
) -> None:
    body = json.dumps(content, ensure_ascii=ascii_only, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_limits, "PIECE_BYTES", size)
        assert decode(body, limits_of_values(10**6)) == content


@hypothesis.given(st.lists(JSON, max_size=4), st.integers(0, 10**6), st.sampled_from([*b'",[]{}\\1\xff ', None]))
@hypothesis.example(["a", "b"], 14, ord(","))
@hypothesis.example([], 11, ord(","))
@hypothesis.example(["a"], 1, None)
def test_a_body_in_pieces_is_json_where_the_whole_body_is_json(items: list[Any], place: int, byte: int | None) -> None:
    """One byte is inserted or left out."""
    text = bytearray(json.dumps({"inputs": items, "b": [1]}).encode())
    place %= len(text)
    text[place : place + (byte is None)] = b"" if byte is None else bytes([byte])
    body = bytes(text)
    try:
        content = from_json(body)
    except ValueError:
        with pytest.raises(BadRequest, match="not valid JSON in UTF-8: Invalid JSON: "):
            decode(body, LIMITS)
    else:
        assert decode(body, LIMITS) == content


def limits_of_values(values: int) -> BodyLimits:
    limits = BodyLimits(SETTINGS)
    limits.values = values
    return limits


def repeat(item: bytes, before: bytes = b'{"inputs":[', after: bytes = b"]}") -> bytes:
    return before + b",".join([item] * (SIZE // (len(item) + 1))) + after


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (repeat(b'["",""]'), r"10217 strings or more; at most 10216 .*\(BERT_MAX_INPUTS is 2048\): split it"),
        (repeat(b"[]"), r"\d+ lists and objects or more; at most 2304 .*\(BERT_MAX_INPUTS is 2048\): split it"),
        (repeat(b"{}"), r"\d+ lists and objects or more"),
        (repeat(b"1"), r"\d+ values or more; at most 210216 .*\(BERT_MAX_INPUTS is 2048, BERT_MAX_WAITING_TOKENS is "),
        (repeat(b"1" * 4300), r"\d+ bytes outside of its strings; for 1951 values at most 170092 .* without spaces"),
        (b"[" * SIZE, r"\d+ lists and objects or more"),
        (b"{%s}" % b",".join(b'"%07d":1' % n for n in range(780_000)), r"\d+ strings or more"),
        (b'{"inputs":"%s"}' % (b"a" * SIZE), r"string at byte 10 .* too many characters; .*MAX_CHARACTERS"),
        (b'{"inputs":"%s' % (b"a" * SIZE), r"string at byte 10 .* too many characters"),
        (b'{"inputs":"%s' % (b'\\"' * (SIZE // 2)), r"string at byte 10 .* too many characters"),
        (b'{"%s":1}' % (b"a" * SIZE), r"string at byte 1 .* too many characters"),
        (b" " * SIZE + b"{}", r"outside of its strings"),
        (b'{"inputs":["a","%s"]}' % (b"\\n" * 200_001), r"string at byte 15 .* too many characters"),
    ],
    ids=[
        *("pairs", "lists", "objects", "numbers", "digits", "nested", "fields", "text", "open-text", "open-escapes"),
        *("name", "spaces", "escapes"),
    ],
)
def test_a_body_too_large_is_refused_and_takes_no_memory(body: bytes, fault: str) -> None:
    tracemalloc.start()
    with pytest.raises(TooLarge, match=fault):
        decode(body, LIMITS)
    assert tracemalloc.get_traced_memory()[1] < 2.2 * SIZE  # what is not in a string is copied twice
    tracemalloc.stop()


def test_a_string_that_does_not_end_is_no_json() -> None:
    with pytest.raises(BadRequest, match="EOF while parsing a string"):
        decode(b'{"inputs":"' + b"\\n" * 1000, LIMITS)


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
    schema = label_schemas.PredictRequest
    assert parse(schema, body, SETTINGS) == schema.model_validate_json(body)


@pytest.mark.parametrize("indent", [None, 4])
def test_as_many_token_ids_as_the_queue_holds_are_accepted(indent: int | None) -> None:
    content = {"inputs": [[100_000] * 1000] * 200}
    body = json.dumps(content, indent=indent).encode()
    assert decode(body, LIMITS) == content
    with pytest.raises(TooLarge, match="BERT_MAX_WAITING_TOKENS"):
        decode(body, limits_of_values(200_000))


@pytest.mark.parametrize(
    "content",
    [{"inputs": 5}, {"inputs": ["a", 5]}, {"inputs": [["a"], 5]}, {"inputs": "a", "x": 1}, [], {"inputs": {}}],
)
def test_errors_are_those_of_a_small_body(content: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(content).encode()
    with pytest.raises(ServiceError) as small:
        parse(schemas.NspRequest, body, SETTINGS)
    monkeypatch.setattr(body_limits, "INLINE_BYTES", 0)
    with pytest.raises(type(small.value)) as large:
        parse(schemas.NspRequest, body, SETTINGS)
    assert (large.value.message, large.value.index) == (small.value.message, small.value.index)


def test_steps_of_bodies_are_off_the_event_loop() -> None:
    assert asyncio.run(on_thread(lambda: threading.current_thread().name)).startswith("body-parser")


@on_loop
async def test_the_steps_of_a_request_that_has_ended_are_dropped() -> None:
    steps: list[str] = []
    free = threading.Event()
    running = asyncio.create_task(on_thread(free.wait))
    waiting = asyncio.create_task(on_thread(lambda: steps.append("of the request that has ended")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    free.set()
    await running
    await on_thread(lambda: steps.append("of another"))
    assert steps == ["of another"]
