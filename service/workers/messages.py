"""What an API process and the engine say to each other: frames of msgpack in which tokens and rows are raw little-endian arrays.

Knows bytes and what they may hold; knows nothing of connections, callers or queues. Never pickle.

A frame is its length (4 bytes, little-endian) and one message. The API process says Hello, Work, Cancel, Refused and Question; the engine says
Welcome, Rows, Refusal and Told. One Work holds the requests, one Rows the answers, that were ready in the same turn of the loop.
"""

import asyncio
import struct
from typing import Annotated, Literal, TypeVar

import msgspec

from service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    Invalid,
    NotFinite,
    OutOfMemory,
    Overloaded,
    ServiceError,
    TooLarge,
    Unavailable,
)

VERSION = 2
MAX_FRAME_BYTES = 256 * 2**20
MAX_HELLO_BYTES = 4096  # before a connection has said who it is
PREFIX = struct.Struct("<I")
ERRORS = {
    kind.__name__: kind
    for kind in (DeadlineExceeded, Invalid, NotFinite, OutOfMemory, Overloaded, InferenceFailed, TooLarge, Unavailable)
}

About = Literal["ready", "info", "metrics"]
M = TypeVar("M")


class ProtocolError(Exception):
    """The other side sent what is no message: the connection is not worth keeping."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class Hello(Message, frozen=True):
    version: int


class Welcome(Message, frozen=True):
    version: int
    artifact: str  # its digest: whose tokens the engine takes


class OutputSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is asked of a sequence; sequences that ask for the same share one."""

    outputs: tuple[str, ...]
    top_k: int
    targets: memoryview  # [targets] int32


class SubmitBatch(Message, frozen=True):
    numbers: tuple[int, ...]  # [requests], by which the answers are told apart
    deadlines: tuple[float, ...]  # [requests], seconds on the machine's monotonic clock
    sequences: tuple[int, ...]  # [requests], how many of them
    asked: tuple[OutputSpec, ...]
    asks: memoryview  # [sequences] int32, into `asked`
    lengths: memoryview  # [sequences] int32
    ids: memoryview  # [tokens] int32
    types: memoryview  # [tokens] int32
    mask_counts: memoryview  # [sequences] int32
    masks: memoryview  # [masks] int32, positions in their sequences


class Cancel(Message, frozen=True):
    number: int


class RejectedLocally(Message, frozen=True):
    """So many requests the API process has refused by itself, since the line was full a moment ago; the engine counts them."""

    requests: Annotated[int, msgspec.Meta(ge=1)]


class Query(Message, frozen=True):
    number: int
    about: About


class Block(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One output of many sequences: their rows, one after another."""

    output: str
    dtype: str
    tail: tuple[int, ...]  # the shape of a row
    owners: memoryview  # [owners] int32, sequences of the message, counted through all its requests
    counts: memoryview  # [owners] int32, rows of each
    values: memoryview  # [rows, *tail]


class ResultBatch(Message, frozen=True):
    numbers: tuple[int, ...]  # [requests]
    sequences: tuple[int, ...]  # [requests]
    forward_seconds: tuple[float, ...]  # [requests]
    blocks: tuple[Block, ...]


class ErrorReply(Message, frozen=True):
    """A request that was not answered; `kind` is a class of service.errors."""

    number: int
    kind: str
    message: str
    code: str
    index: int | None
    retry_after: float | None
    full_for: int  # so many tokens would be refused to anyone at this moment; 0: it is this request's own fault


class QueryReply(Message, frozen=True):
    """The answer to a Question."""

    number: int
    content: bytes


_encoder = msgspec.msgpack.Encoder()
FromApi = Hello | SubmitBatch | Cancel | RejectedLocally | Query
FromEngine = Welcome | ResultBatch | ErrorReply | QueryReply
_from_api: msgspec.msgpack.Decoder[FromApi] = msgspec.msgpack.Decoder(FromApi)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def frame(message: Message) -> bytes:
    """Raises TooLarge where the other side would not take it."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise TooLarge(
            f"the request or its answer has {len(body)} bytes; at most {MAX_FRAME_BYTES} pass between the processes: send it in parts"
        )
    return PREFIX.pack(len(body)) + body


async def read_from_api(reader: asyncio.StreamReader, *, limit: int = MAX_FRAME_BYTES) -> FromApi:
    """Raises WireError on what is no message, IncompleteReadError or OSError at the end."""
    return _decoded(_from_api, await _body(reader, limit))


async def read_from_engine(reader: asyncio.StreamReader, *, limit: int = MAX_FRAME_BYTES) -> FromEngine:
    """As `read_from_api`."""
    return _decoded(_from_engine, await _body(reader, limit))


def refusal(number: int, error: ServiceError, *, full_for: int = 0) -> ErrorReply:
    kind = type(error).__name__
    return ErrorReply(
        number,
        kind if kind in ERRORS else "InferenceFailed",
        error.message,
        error.code,
        error.index,
        error.retry_after,
        full_for,
    )


def to_exception(said: ErrorReply) -> ServiceError:
    """Raises WireError where its kind is unknown."""
    if said.kind not in ERRORS:
        raise ProtocolError(f"an error of unknown kind {said.kind[:40]!r}")
    return ERRORS[said.kind](said.message, code=said.code, index=said.index, retry_after=said.retry_after)


async def _body(reader: asyncio.StreamReader, limit: int) -> bytes:
    (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
    if not 0 < size <= limit:
        raise ProtocolError(f"a frame of {size} bytes; at most {limit} are taken")
    return await reader.readexactly(size)


def _decoded(decoder: msgspec.msgpack.Decoder[M], body: bytes) -> M:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a frame that is no message: {error}") from None
