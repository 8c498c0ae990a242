"""The wire: what is packed comes out the same, and what is no message is told apart from one."""

import ast
import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_export.artifact.batch import MASK, OUTPUTS, TARGET, Tokens
from service import errors
from service.workers import messages as wire
from service.workers.codec import (
    MESSAGE_BYTES,
    ModelBounds,
    RemoteRequest,
    RemoteResult,
    chunk_by_bytes,
    decode_requests,
    decode_results,
    encode_requests,
    encode_results,
)
from service.workers.messages import ProtocolError
from tests.paths import ROOT

BOUNDS = ModelBounds(vocabulary=100, segments=2, max_tokens=12)


@st.composite
def tokens(draw: st.DrawFn) -> Tokens:
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = draw(st.integers(1, BOUNDS.max_tokens))
    outputs = draw(st.sets(st.sampled_from(sorted(OUTPUTS)), min_size=1, max_size=4))
    kinds = {OUTPUTS[name] for name in outputs}
    masks = draw(st.integers(1 if {MASK, TARGET} & kinds else 0, 4))
    targets = draw(st.integers(1 if TARGET in kinds else 0, 4))
    return Tokens(
        ids=noise.integers(0, BOUNDS.vocabulary, length, np.int32),
        types=noise.integers(0, 2, length, np.int32),
        outputs=frozenset(outputs),
        masks=tuple(noise.integers(0, length, masks).tolist()),
        top_k=int(noise.integers(1, BOUNDS.vocabulary)),
        targets=tuple(noise.integers(0, BOUNDS.vocabulary, targets).tolist()),
    )


@st.composite
def parcels(draw: st.DrawFn) -> list[RemoteRequest]:
    numbers = draw(st.lists(st.integers(0, 2**40), max_size=4, unique=True))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    return [
        RemoteRequest(number=n, deadline=draw(finite), work=draw(st.lists(tokens(), min_size=1, max_size=4)))
        for n in numbers
    ]


@st.composite
def replies(draw: st.DrawFn) -> list[RemoteResult]:
    """Of random bits: NaNs of all kinds among them."""
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
        RemoteResult(
            number=n, rows=draw(st.lists(rows, min_size=1, max_size=4)), forward_seconds=draw(st.floats(0, 100))
        )
        for n in numbers
    ]


def through_the_wire(message: wire.Message, *, from_api: bool) -> Any:
    """What the other side reads."""

    async def read() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(wire.frame(message))
        reader.feed_eof()
        return await (wire.read_from_api(reader) if from_api else wire.read_from_engine(reader))

    return asyncio.run(read())


def read_bytes(content: bytes, *, limit: int = wire.MAX_FRAME_BYTES) -> Any:
    async def read() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return await wire.read_from_api(reader, limit=limit)

    return asyncio.run(read())


def plain(one: Tokens) -> tuple[object, ...]:
    return one.ids.tolist(), one.types.tolist(), one.outputs, one.masks, one.top_k, one.targets


@given(parcels())
def test_requests_come_out_as_they_were_packed(sent: list[RemoteRequest]) -> None:
    found = decode_requests(through_the_wire(encode_requests(sent), from_api=True), BOUNDS) if sent else []
    assert [(p.number, p.deadline, [plain(t) for t in p.work]) for p in found] == [
        (p.number, p.deadline, [plain(t) for t in p.work]) for p in sent
    ]
    assert all(t.ids.dtype == t.types.dtype == np.int32 for p in found for t in p.work)


@given(replies())
def test_answers_come_out_bit_for_bit_as_they_were_packed(sent: list[RemoteResult]) -> None:
    found = decode_results(through_the_wire(encode_results(sent), from_api=False))
    assert [(r.number, r.forward_seconds, len(r.rows)) for r in found] == [
        (r.number, r.forward_seconds, len(r.rows)) for r in sent
    ]
    for one, other in zip((row for r in found for row in r.rows), (row for r in sent for row in r.rows), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            assert one[name].shape == other[name].shape
            assert one[name].tobytes() == other[name].tobytes()


@pytest.mark.parametrize("kind", sorted(wire.ERRORS))
def test_errors_keep_their_class_their_code_their_input_and_their_patience(kind: str) -> None:
    sent = wire.ERRORS[kind]("a sentence with 7", code="mine", index=3, retry_after=1.5)
    found = wire.to_exception(through_the_wire(wire.refusal(9, sent), from_api=False))
    assert (type(found), found.message, found.code, found.index, found.retry_after, found.status) == (
        type(sent),
        "a sentence with 7",
        "mine",
        3,
        1.5,
        sent.status,
    )


def test_every_error_that_the_line_may_raise_has_a_name_on_the_wire() -> None:
    raised = {
        "Overloaded",
        "TooLarge",
        "DeadlineExceeded",
        "Unavailable",
        "InferenceFailed",
        "NotFinite",
        "OutOfMemory",
    }
    assert raised <= set(wire.ERRORS)
    assert all(issubclass(kind, errors.ServiceError) for kind in wire.ERRORS.values())


GOOD = encode_requests(
    [
        RemoteRequest(
            number=1,
            deadline=5.0,
            work=[
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
        {"numbers": (1, 2)},
        {"numbers": (1, 1), "deadlines": (1.0, 1.0), "sequences": (1, 1)},
        {"deadlines": (float("nan"),)},
        {"sequences": (2,)},
        {"sequences": (0,)},
        {"sequences": (-1,)},
        {"lengths": ints(4)},
        {"lengths": ints(-3)},
        {"lengths": ints(0), "ids": ints(), "types": ints()},
        {"lengths": ints(13), "ids": ints(*[1] * 13), "types": ints(*[0] * 13)},
        {"ids": ints(1, 2)},
        {"ids": ints(1, 2, 100)},
        {"ids": ints(1, 2, -1)},
        {"ids": memoryview(b"12345678901")},
        {"types": ints(0, 0, 2)},
        {"asks": ints(1)},
        {"asks": ints(-1)},
        {"asks": ints()},
        {"masks": ints(3)},
        {"masks": ints(-1)},
        {"masks": ints(1, 1)},
        {"mask_counts": ints(2)},
        {"mask_counts": ints(0), "masks": ints()},
        {"asked": (wire.OutputSpec(("nothing",), 1, ints(4)),)},
        {"asked": (wire.OutputSpec((), 1, ints(4)),)},
        {"asked": (wire.OutputSpec(("cls",), 0, ints(4)),)},
        {"asked": (wire.OutputSpec(("cls",), 101, ints(4)),)},
        {"asked": (wire.OutputSpec(("target_logits",), 1, ints(100)),)},
        {"asked": (wire.OutputSpec(("target_logits",), 1, ints()),)},
    ],
    ids=str,
)
def test_a_request_that_contradicts_itself_or_leaves_the_bounds_is_refused(change: dict[str, Any]) -> None:
    assert len(decode_requests(GOOD, BOUNDS)) == 1
    with pytest.raises(ProtocolError):
        decode_requests(msgspec.structs.replace(GOOD, **change), BOUNDS)


ANSWER = encode_results([RemoteResult(number=1, rows=[{"cls": np.ones((1, 4), np.float32)}], forward_seconds=0.5)])


@pytest.mark.parametrize(
    "change",
    [
        {"numbers": ()},
        {"sequences": (0,)},
        {"sequences": (2,)},
        {"sequences": (10**15,)},
        {"blocks": ()},
        {"dtype": "O"},
        {"dtype": "<f2"},
        {"output": "nothing"},
        {"tail": (3,)},
        {"tail": (0,)},
        {"tail": (2**40, 2**40)},
        {"owners": ints(1)},
        {"owners": ints(-1)},
        {"counts": ints(2)},
        {"counts": ints(-1)},
        {"counts": ints(0, 1)},
        {"values": memoryview(b"123")},
    ],
    ids=str,
)
def test_an_answer_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    assert len(decode_results(ANSWER)) == 1
    blocks = tuple(
        msgspec.structs.replace(block, **{name: value for name, value in change.items() if hasattr(block, name)})
        for block in ANSWER.blocks
    )
    with pytest.raises(ProtocolError):
        decode_results(
            msgspec.structs.replace(
                ANSWER, **({"blocks": blocks} | {n: v for n, v in change.items() if hasattr(ANSWER, n)})
            )
        )


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes_are_told_apart_from_a_message(content: bytes) -> None:
    with pytest.raises((ProtocolError, asyncio.IncompleteReadError)):
        read_bytes(content)


@given(st.binary(min_size=1, max_size=100))
@settings(max_examples=300)
def test_a_frame_of_random_bytes_is_told_apart_from_a_message(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_bytes(wire.PREFIX.pack(len(body)) + body)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_message_with_a_changed_byte_is_refused_or_stays_within_the_bounds(place: int, byte: int) -> None:
    body = bytearray(wire.frame(GOOD))
    body[4 + place % (len(body) - 4)] = byte
    try:
        found = read_bytes(bytes(body))
        work = decode_requests(found, BOUNDS)[0].work if isinstance(found, wire.SubmitBatch) else []
    except ProtocolError:
        return
    assert all(t.ids.min() >= 0 and t.ids.max() < BOUNDS.vocabulary and len(t) <= BOUNDS.max_tokens for t in work)


def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="at most 4096"):
        read_bytes(wire.PREFIX.pack(5000), limit=4096)
    with pytest.raises(ProtocolError):
        read_bytes(wire.PREFIX.pack(0))


@given(st.lists(st.integers(1, 2 * MESSAGE_BYTES // 8), max_size=12))
@settings(max_examples=30)
def test_messages_are_of_a_few_megabytes_and_leave_nothing_out(lengths: Sequence[int]) -> None:
    zeros = np.zeros(2 * MESSAGE_BYTES // 8, np.int32)
    work = [
        RemoteRequest(number=i, deadline=1.0, work=[Tokens(ids=zeros[:n], types=zeros[:n], outputs=frozenset({"cls"}))])
        for i, n in enumerate(lengths)
    ]
    groups = chunk_by_bytes(work)
    assert [p.number for group in groups for p in group] == list(range(len(lengths)))
    assert all(len(group) == 1 or sum(p.size for p in group) <= MESSAGE_BYTES for group in groups)


def test_nothing_in_the_service_knows_pickle() -> None:
    for path in (ROOT / "service").glob("*.py"):
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
