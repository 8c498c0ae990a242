"""Messages: decoding restores what was encoded, and rejects what is not a message."""

import ast
import asyncio
import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packbert.model_export.artifact.batch import LAST, OUTPUTS, Row, Tokens
from packbert.service.workers import messages
from packbert.service.workers.messages import (
    ProtocolError,
    decode_rows,
    decode_sequences,
    encode_rows,
    encode_sequences,
)
from tests.paths import ROOT

NUMBERS = st.lists(st.integers(0, 2**20), max_size=4).map(tuple)


@st.composite
def tokens(draw: st.DrawFn) -> Tokens:
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = draw(st.integers(1, 12))
    whole = noise.integers(-(2**31), 2**31, (2, 3 * length), np.int32)
    return Tokens(
        ids=whole[0, length : 2 * length],
        types=whole[1, ::3],  # not contiguous
        outputs=draw(st.frozensets(st.sampled_from(sorted(OUTPUTS)), min_size=1, max_size=4)),
        masks=draw(NUMBERS),
        top_k=draw(st.integers(1, 2**20)),
        targets=draw(NUMBERS),
        pooled_from=draw(st.integers(0, 12)),
        layers=draw(st.lists(st.integers(LAST, 12), max_size=3).map(tuple)),
    )


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Random bits, among them all kinds of NaN."""
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = st.tuples(
        st.sampled_from([np.float32, np.float64, np.int32, np.int64]),
        st.lists(st.integers(0, 3), min_size=1, max_size=3),
    )

    def array(kind: tuple[Any, list[int]]) -> Any:
        dtype, shape = kind
        found = np.frombuffer(noise.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)
        return found.T if len(shape) == 1 or min(shape) else found  # not contiguous

    row = st.dictionaries(st.sampled_from(sorted(OUTPUTS)), kinds.map(array), min_size=1, max_size=3)
    return draw(st.lists(row, min_size=1, max_size=4))


def send(message: messages.Message, *, from_api: bool) -> Any:
    """The message as the other side reads it."""
    return read_bytes(messages.frame(message), messages.FROM_API if from_api else messages.FROM_ENGINE)


def read_bytes(content: bytes, decoder: Any = messages.FROM_API) -> Any:
    async def read() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return await messages.read_message(reader, decoder)

    return asyncio.run(read())


def fields_of(one: Tokens) -> list[object]:
    values = [getattr(one, field.name) for field in dataclasses.fields(Tokens)]
    return [(value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value for value in values]


@given(st.lists(tokens(), max_size=4), st.floats(allow_nan=False), st.booleans())
def test_every_field_of_sequences_crosses(sent: list[Tokens], deadline: float, whole: bool) -> None:
    body = encode_sequences(sent)
    message = messages.Submit(2**40, deadline, "00-1-1-01", 3, 7, 5, body) if whole else messages.Append(2**40, 7, body)
    found = send(message, from_api=True)
    assert msgspec.structs.replace(found, sequences=body) == message
    assert list(map(fields_of, decode_sequences(found.sequences))) == list(map(fields_of, sent))


@given(rows())
def test_rows_cross_bit_for_bit(sent: list[Row]) -> None:
    message = send(messages.Result(1, 0.5, len(sent), encode_rows(sent)), from_api=False)
    assert (message.request_id, message.forward_seconds) == (1, 0.5)
    for one, other in zip(decode_rows(message), sent, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert (one[name].dtype, one[name].shape) == (other[name].dtype, other[name].shape)
            assert one[name].tobytes() == other[name].tobytes()


def test_an_output_of_many_sequences_is_one_block() -> None:
    assert len(encode_rows([{"cls": np.ones((1, 4), np.float32)}] * 9)) == 1


@pytest.mark.parametrize("kind", sorted(messages.ERROR_TYPES))
def test_errors_keep_their_class_code_index_and_retry_after(kind: str) -> None:
    sent = messages.ERROR_TYPES[kind]("a message with 7", code="mine", index=3, retry_after=1.5)
    found = messages.to_exception(send(messages.to_error_reply(9, sent), from_api=False))
    assert (type(found), found.message, found.code, found.index, found.retry_after, found.status) == (
        type(sent),
        "a message with 7",
        "mine",
        3,
        1.5,
        sent.status,
    )


def ints(*values: int) -> memoryview:
    return memoryview(np.array(values, "<i4").tobytes())


SEQUENCES = encode_sequences(
    [
        Tokens(
            ids=np.array([1, 2, 3], np.int32),
            types=np.zeros(3, np.int32),
            outputs=frozenset({"top_ids", "target_logits"}),
            masks=(1,),
            targets=(4,),
        )
    ]
)


@pytest.mark.parametrize(
    "change",
    [
        {"asked": []},
        {"lengths": [1, 2]},
        {"lengths": [4]},
        {"ids": ints(1, 2)},
        {"types": ints(0, 0)},
        {"ids": memoryview(b"12345678901")},
        {"ids": ints(1, 2), "types": ints(0, 0)},
    ],
)
def test_sequences_whose_fields_differ_in_size_are_rejected(change: dict[str, Any]) -> None:
    assert len(decode_sequences(SEQUENCES)) == 1
    with pytest.raises(ProtocolError):
        decode_sequences(msgspec.structs.replace(SEQUENCES, **change))


BLOCK = encode_rows([{"cls": np.ones((1, 4), np.float32)}])[0]


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "O"},
        {"dtype": "nothing"},
        {"row_shape": (3,)},
        {"owners": [1]},
        {"row_counts": [0, 1]},
        {"row_counts": [0]},
        {"values": memoryview(b"123")},
    ],
)
def test_contradicting_rows_are_rejected(change: dict[str, Any]) -> None:
    message = messages.Result(1, 0.5, 1, [BLOCK])
    assert len(decode_rows(message)) == 1
    with pytest.raises(ProtocolError):
        decode_rows(msgspec.structs.replace(message, blocks=[msgspec.structs.replace(BLOCK, **change)]))


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes_are_not_a_message(content: bytes) -> None:
    with pytest.raises((ProtocolError, asyncio.IncompleteReadError)):
        read_bytes(content)


@given(st.binary(min_size=1, max_size=100))
@settings(max_examples=300)
def test_a_frame_of_random_bytes_is_not_a_message(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_bytes(messages.PREFIX.pack(len(body)) + body)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_message_with_a_changed_byte_is_rejected_or_read(place: int, byte: int) -> None:
    body = bytearray(messages.frame(messages.Submit(1, 5.0, "", 0, 0, 0, SEQUENCES)))
    body[4 + place % (len(body) - 4)] = byte
    try:
        found = read_bytes(bytes(body))
        if isinstance(found, messages.Submit):
            decode_sequences(found.sequences)
    except ProtocolError:
        return


def test_a_frame_over_the_limit_is_rejected_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match=f"at most {messages.MAX_FRAME_BYTES}"):
        read_bytes(messages.PREFIX.pack(messages.MAX_FRAME_BYTES + 1))
    with pytest.raises(ProtocolError):
        read_bytes(messages.PREFIX.pack(0))


def test_the_service_never_uses_pickle() -> None:
    for path in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & set(names), path
            assert not (
                isinstance(node, ast.keyword) and node.arg == "allow_pickle" and getattr(node.value, "value", True)
            ), path
