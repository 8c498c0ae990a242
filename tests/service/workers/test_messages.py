"""Messages and codec: decoding restores what was encoded, and rejects what is not a valid message."""

import ast
import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packbert.model_export.artifact.batch import ATTENTION_OUTPUTS, LAST, LAYER, MASK, OUTPUTS, TARGET, Tokens
from packbert.model_export.artifact.manifest import ModelBounds
from packbert.service import errors
from packbert.service.workers import messages
from packbert.service.workers.messages import (
    MESSAGE_BYTES,
    ProtocolError,
    RemoteRequest,
    RemoteResult,
    chunk_by_bytes,
    decode_requests,
    decode_results,
    encode_requests,
    encode_results,
)
from tests.paths import ROOT

BOUNDS = ModelBounds(vocabulary=100, segments=2, max_tokens=12, layers=4)


@st.composite
def tokens(draw: st.DrawFn) -> Tokens:
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = draw(st.integers(1, BOUNDS.max_tokens))
    outputs = draw(st.sets(st.sampled_from(sorted(OUTPUTS)), min_size=1, max_size=4))
    kinds = {OUTPUTS[name] for name in outputs}
    masks = draw(st.integers(1 if {MASK, TARGET} & kinds else 0, 4))
    lowest = 0 if outputs & ATTENTION_OUTPUTS else LAST
    layers = draw(st.lists(st.integers(lowest, BOUNDS.layers - 1), min_size=1 if LAYER in kinds else 0, max_size=3))
    targets = draw(st.integers(1 if TARGET in kinds else 0, 4))
    return Tokens(
        ids=noise.integers(0, BOUNDS.vocabulary, length, np.int32),
        types=noise.integers(0, 2, length, np.int32),
        outputs=frozenset(outputs),
        masks=tuple(noise.integers(0, length, masks).tolist()),
        top_k=int(noise.integers(1, BOUNDS.vocabulary)),
        targets=tuple(noise.integers(0, BOUNDS.vocabulary, targets).tolist()),
        layers=tuple(layers),
    )


@st.composite
def requests(draw: st.DrawFn) -> list[RemoteRequest]:
    numbers = draw(st.lists(st.integers(0, 2**40), max_size=4, unique=True))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    traced = draw(st.booleans())  # all of a process or none
    return [
        RemoteRequest(
            id=n,
            deadline=draw(finite),
            sequences=draw(st.lists(tokens(), min_size=1, max_size=4)),
            trace=f"00-{n:032x}-{n:016x}-01" if traced else "",
        )
        for n in numbers
    ]


@st.composite
def results(draw: st.DrawFn) -> list[RemoteResult]:
    """Random bits, among them all kinds of NaN."""
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = st.tuples(
        st.sampled_from([np.float32, np.float64, np.int32, np.int64]),
        st.lists(st.integers(1, 3), min_size=1, max_size=3),
    )

    def array(kind: tuple[Any, list[int]]) -> Any:
        dtype, shape = kind
        return np.frombuffer(noise.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)

    rows = st.dictionaries(st.sampled_from(sorted(OUTPUTS)), kinds.map(array), min_size=1, max_size=3)
    numbers = draw(st.lists(st.integers(0, 2**40), max_size=4, unique=True))
    return [
        RemoteResult(id=n, rows=draw(st.lists(rows, min_size=1, max_size=4)), forward_seconds=draw(st.floats(0, 100)))
        for n in numbers
    ]


def send(message: messages.Message, *, from_api: bool) -> Any:
    """The message as the other side reads it."""

    async def read() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(messages.frame(message))
        reader.feed_eof()
        return await messages.read_message(reader, messages.FROM_API if from_api else messages.FROM_ENGINE)

    return asyncio.run(read())


def read_bytes(content: bytes, *, limit: int = messages.MAX_FRAME_BYTES) -> Any:
    async def read() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return await messages.read_message(reader, messages.FROM_API, limit=limit)

    return asyncio.run(read())


def fields_of(one: Tokens) -> tuple[object, ...]:
    return one.ids.tolist(), one.types.tolist(), one.outputs, one.masks, one.top_k, one.targets


@given(requests())
def test_decoded_requests_equal_the_encoded_ones(sent: list[RemoteRequest]) -> None:
    found = decode_requests(send(encode_requests(sent), from_api=True), BOUNDS) if sent else []
    assert [(p.id, p.deadline, p.trace, [fields_of(t) for t in p.sequences]) for p in found] == [
        (p.id, p.deadline, p.trace, [fields_of(t) for t in p.sequences]) for p in sent
    ]
    assert all(t.ids.dtype == t.types.dtype == np.int32 for p in found for t in p.sequences)


@given(results())
def test_decoded_results_equal_the_encoded_ones_bit_for_bit(sent: list[RemoteResult]) -> None:
    found = decode_results(send(encode_results(sent), from_api=False))
    assert [(r.id, r.forward_seconds, len(r.rows)) for r in found] == [
        (r.id, r.forward_seconds, len(r.rows)) for r in sent
    ]
    for one, other in zip((row for r in found for row in r.rows), (row for r in sent for row in r.rows), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            assert one[name].shape == other[name].shape
            assert one[name].tobytes() == other[name].tobytes()


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


def test_every_error_of_the_queue_has_an_error_type() -> None:
    raised = {
        "Overloaded",
        "TooLarge",
        "DeadlineExceeded",
        "Unavailable",
        "InferenceFailed",
        "NotFinite",
        "OutOfMemory",
    }
    assert raised <= set(messages.ERROR_TYPES)
    assert all(issubclass(kind, errors.ServiceError) for kind in messages.ERROR_TYPES.values())


REQUEST = encode_requests(
    [
        RemoteRequest(
            id=1,
            deadline=5.0,
            sequences=[
                Tokens(
                    ids=np.array([1, 2, 3], np.int32),
                    types=np.zeros(3, np.int32),
                    outputs=frozenset({"top_ids", "target_logits"}),
                    masks=(1,),
                    targets=(4,),
                )
            ],
        )
    ]
)


def ints(*values: int) -> memoryview:
    return memoryview(np.array(values, "<i4").tobytes())


@pytest.mark.parametrize(
    "change",
    [
        {"request_ids": (1, 2)},
        {"request_ids": (1, 1), "deadlines": (1.0, 1.0), "sequence_counts": (1, 1)},
        {
            "request_ids": (1, 1),
            "reserved": (-1, -1),
            "deadlines": (1.0, 1.0),
            "traces": ("", ""),
            "sequence_counts": (2, 1),
            "spec_index": ints(0, 0, 0),
            "lengths": ints(1, 1, 1),
            "masks": ints(0, 0, 0),
            "mask_counts": ints(1, 1, 1),
        },
        {  # one without sequences beside one with all of them: it would never end
            "request_ids": (1, 2),
            "reserved": (-1, -1),
            "deadlines": (1.0, 1.0),
            "traces": ("", ""),
            "sequence_counts": (1, 0),
        },
        {"reserved": (-2,)},
        {"deadlines": (float("nan"),)},
        {"deadlines": (float("inf"),)},
        {"traces": ("", "")},
        {"sequence_counts": (2,)},
        {"sequence_counts": (0,)},
        {"sequence_counts": (-1,)},
        {"lengths": ints(4)},
        {"lengths": ints(-3)},
        {"lengths": ints(0), "token_ids": ints(), "type_ids": ints()},
        {"lengths": ints(13), "token_ids": ints(*[1] * 13), "type_ids": ints(*[0] * 13)},
        {"token_ids": ints(1, 2)},
        {"token_ids": ints(1, 2, 100)},
        {"token_ids": ints(1, 2, -1)},
        {"token_ids": memoryview(b"12345678901")},
        {"type_ids": ints(0, 0, 2)},
        {"spec_index": ints(1)},
        {"spec_index": ints(-1)},
        {"spec_index": ints()},
        {"masks": ints(3)},
        {"masks": ints(-1)},
        {"masks": ints(1, 1)},
        {"mask_counts": ints(2)},
        {"mask_counts": ints(0), "masks": ints()},
        {"specs": (messages.OutputSpec(("nothing",), ints(4), 1, 0, ()),)},
        {"specs": (messages.OutputSpec((), ints(4), 1, 0, ()),)},
        {"specs": (messages.OutputSpec(("cls",), ints(4), 0, 0, ()),)},
        {"specs": (messages.OutputSpec(("cls",), ints(4), 101, 0, ()),)},
        {"specs": (messages.OutputSpec(("target_logits",), ints(100), 1, 0, ()),)},
        {"specs": (messages.OutputSpec(("target_logits",), ints(), 1, 0, ()),)},
        {"specs": (messages.OutputSpec(("cls",), ints(), 1, -1, ()),)},
        {"specs": (messages.OutputSpec(("cls",), ints(), 1, 3, ()),)},
        {"specs": (messages.OutputSpec(("layer_cls",), ints(), 1, 0, ()),)},
        {"specs": (messages.OutputSpec(("layer_cls",), ints(), 1, 0, (4,)),)},
        {"specs": (messages.OutputSpec(("layer_cls",), ints(), 1, 0, (-2,)),)},
        {"specs": (messages.OutputSpec(("attention",), ints(), 1, 0, ()),)},
        {"specs": (messages.OutputSpec(("attention",), ints(), 1, 0, (0, -1)),)},
        {"specs": (messages.OutputSpec(("attention_mean",), ints(), 1, 0, (4,)),)},
    ],
)
def test_an_inconsistent_or_out_of_bounds_request_is_rejected(change: dict[str, Any]) -> None:
    assert len(decode_requests(REQUEST, BOUNDS)) == 1
    with pytest.raises(ProtocolError):
        decode_requests(msgspec.structs.replace(REQUEST, **change), BOUNDS)


RESULT = encode_results([RemoteResult(id=1, rows=[{"cls": np.ones((1, 4), np.float32)}], forward_seconds=0.5)])


@pytest.mark.parametrize(
    "change",
    [
        {"request_ids": ()},
        {"sequence_counts": (0,)},
        {"sequence_counts": (2,)},
        {"sequence_counts": (10**15,)},
        {"blocks": ()},
        {"dtype": "O"},
        {"dtype": "<f2"},
        {"output": "nothing"},
        {"row_shape": (3,)},
        {"row_shape": (0,)},
        {"row_shape": (2**40, 2**40)},
        {"owners": ints(1)},
        {"owners": ints(-1)},
        {"row_counts": ints(2)},
        {"row_counts": ints(-1)},
        {"row_counts": ints(0, 1)},
        {"values": memoryview(b"123")},
        {"sequence_counts": (2,), "owners": ints(0, 0), "row_counts": ints(1, 0)},
    ],
)
def test_an_inconsistent_result_is_rejected(change: dict[str, Any]) -> None:
    assert len(decode_results(RESULT)) == 1
    blocks = tuple(
        msgspec.structs.replace(block, **{name: value for name, value in change.items() if hasattr(block, name)})
        for block in RESULT.blocks
    )
    with pytest.raises(ProtocolError):
        decode_results(
            msgspec.structs.replace(
                RESULT, **({"blocks": blocks} | {n: v for n, v in change.items() if hasattr(RESULT, n)})
            )
        )


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
def test_a_message_with_a_changed_byte_is_rejected_or_within_bounds(place: int, byte: int) -> None:
    body = bytearray(messages.frame(REQUEST))
    body[4 + place % (len(body) - 4)] = byte
    try:
        found = read_bytes(bytes(body))
        work = decode_requests(found, BOUNDS)[0].sequences if isinstance(found, messages.SubmitBatch) else []
    except ProtocolError:
        return
    assert all(t.ids.min() >= 0 and t.ids.max() < BOUNDS.vocabulary and len(t) <= BOUNDS.max_tokens for t in work)


def test_a_frame_over_the_limit_is_rejected_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="at most 4096"):
        read_bytes(messages.PREFIX.pack(5000), limit=4096)
    with pytest.raises(ProtocolError):
        read_bytes(messages.PREFIX.pack(0))


@given(st.lists(st.integers(1, 2 * MESSAGE_BYTES // 8), max_size=12))
@settings(max_examples=30)
def test_chunks_have_a_few_megabytes_and_contain_every_request(lengths: Sequence[int]) -> None:
    zeros = np.zeros(2 * MESSAGE_BYTES // 8, np.int32)
    work = [
        RemoteRequest(
            id=i, deadline=1.0, sequences=[Tokens(ids=zeros[:n], types=zeros[:n], outputs=frozenset({"cls"}))]
        )
        for i, n in enumerate(lengths)
    ]
    groups = chunk_by_bytes(work)
    assert [p.id for group in groups for p in group] == list(range(len(lengths)))
    assert all(len(group) == 1 or sum(p.size for p in group) <= MESSAGE_BYTES for group in groups)


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
