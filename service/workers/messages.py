"""Messages between the API workers and the engine worker, and their frames.

A frame is the length of its body (4 bytes, little-endian) and one msgpack message, in which token ids and rows are raw
little-endian arrays; never pickle. Both sides send Hello first. Then an API worker sends SubmitBatch, Begin, Cancel,
RejectedLocally and Query; the engine worker sends ResultBatch, ErrorReply and QueryReply. One SubmitBatch holds all
requests and parts of requests, one ResultBatch all results, that became ready in the same turn of the event loop.
Knows the types of the messages; knows nothing of connections, queues or the model's bounds.
"""

import asyncio
import struct
from typing import Annotated, Literal, TypeVar

import msgspec

from service import errors

VERSION = 7
MAX_FRAME_BYTES = 256 * 2**20
WHOLE = -1  # as SubmitBatch.reserved: the request has all of its sequences
MAX_HELLO_BYTES = 4096  # limit for the first frame of a connection
PREFIX = struct.Struct("<I")
QUEUE_ERRORS = (
    errors.DeadlineExceeded,
    errors.DeadlineTooShort,
    errors.Overloaded,
    errors.TooLarge,
    errors.TooMuchForDeadline,
    errors.Unavailable,
    errors.Invalid,
)
RUN_ERRORS = (errors.InferenceFailed, errors.NotFinite, errors.OutOfMemory)
ERROR_TYPES = {error_type.__name__: error_type for error_type in QUEUE_ERRORS + RUN_ERRORS}
Topic = Literal["ready", "info", "metrics"]
Trace = Annotated[str, msgspec.Meta(max_length=55)]  # the traceparent of a request's span; empty without traces
M = TypeVar("M")


class ProtocolError(Exception):
    """The other side sent a frame or message that the protocol does not allow: the connection has to be closed."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class Hello(Message, frozen=True):
    version: int
    artifact: str  # digest of the artifact that the sender has opened


class OutputSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is computed for a sequence; all sequences of a message with equal values share one."""

    outputs: tuple[str, ...]
    targets: memoryview  # [targets] int32
    top_k: int
    pooled_from: int  # as Tokens.pooled_from
    layers: tuple[int, ...]  # as Tokens.layers


class Begin(Message, frozen=True):
    """A request that is admitted before its sequences are known: SubmitBatches with its id bring them, in order."""

    request_id: int
    deadline: float  # as in SubmitBatch
    sequences: Annotated[int, msgspec.Meta(ge=1)]  # expected
    tokens: Annotated[int, msgspec.Meta(ge=0)]  # expected
    trace: Trace


class SubmitBatch(Message, frozen=True):
    request_ids: tuple[int, ...]  # [requests]
    reserved: tuple[int, ...]  # [requests], expected tokens of the sequences still to come, 0: none; WHOLE: no Begin
    deadlines: tuple[float, ...]  # [requests], seconds on the machine's monotonic clock
    sequence_counts: tuple[int, ...]  # [requests]
    traces: tuple[Trace, ...]  # [requests]
    specs: tuple[OutputSpec, ...]
    spec_index: memoryview  # [sequences] int32, into `specs`
    lengths: memoryview  # [sequences] int32
    token_ids: memoryview  # [tokens] int32
    type_ids: memoryview  # [tokens] int32
    mask_counts: memoryview  # [sequences] int32
    masks: memoryview  # [masks] int32, positions in their sequences


class Cancel(Message, frozen=True):
    request_id: int


class RejectedLocally(Message, frozen=True):
    """Number of requests that the API worker rejected without asking the engine, so that the engine counts them."""

    requests: Annotated[int, msgspec.Meta(ge=1)]


class Query(Message, frozen=True):
    query_id: int
    topic: Topic


class OutputBlock(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One output of many sequences: their rows, one after another."""

    output: str
    dtype: str
    row_shape: tuple[int, ...]
    owners: memoryview  # [owners] int32, index of the sequence in the message
    row_counts: memoryview  # [owners] int32
    values: memoryview  # [rows, *row_shape]


class ResultBatch(Message, frozen=True):
    request_ids: tuple[int, ...]  # [requests]
    sequence_counts: tuple[int, ...]  # [requests]
    forward_seconds: tuple[float, ...]  # [requests]
    blocks: tuple[OutputBlock, ...]


class ErrorReply(Message, frozen=True):
    request_id: int
    error_type: str  # a key of ERROR_TYPES
    message: str
    code: str
    index: int | None
    retry_after: float | None
    min_rejected_tokens: int  # any request of so many tokens is rejected at this moment; 0: no such statement


class QueryReply(Message, frozen=True):
    query_id: int
    content: bytes


FromApi = Hello | Begin | SubmitBatch | Cancel | RejectedLocally | Query
FromEngine = Hello | ResultBatch | ErrorReply | QueryReply
FROM_API: msgspec.msgpack.Decoder[FromApi] = msgspec.msgpack.Decoder(FromApi)
FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_encoder = msgspec.msgpack.Encoder()


def frame(message: Message) -> bytes:
    """Raises TooLarge where the body exceeds MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        limit = f"at most {MAX_FRAME_BYTES} pass between the processes"
        raise errors.TooLarge(f"the request or its answer has {len(body)} bytes; {limit}: send it in parts")
    return PREFIX.pack(len(body)) + body


async def read_message(
    reader: asyncio.StreamReader, decoder: "msgspec.msgpack.Decoder[M]", *, limit: int = MAX_FRAME_BYTES
) -> M:
    """Raises ProtocolError on an invalid frame, IncompleteReadError or OSError at the end of the connection."""
    (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
    if not 0 < size <= limit:
        raise ProtocolError(f"a frame of {size} bytes; at most {limit} are accepted")
    body = await reader.readexactly(size)
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a frame that is not a message: {error}") from None


async def read_hello(reader: asyncio.StreamReader, decoder: "msgspec.msgpack.Decoder[M]") -> Hello:
    """As `read_message`; raises ProtocolError where the first message is not a Hello of this version."""
    hello = await read_message(reader, decoder, limit=MAX_HELLO_BYTES)
    if not isinstance(hello, Hello) or hello.version != VERSION:
        raise ProtocolError(f"no hello of version {VERSION}")
    return hello


def to_error_reply(request_id: int, error: errors.ServiceError, *, min_rejected_tokens: int = 0) -> ErrorReply:
    name = type(error).__name__
    fields = (error.message, error.code, error.index, error.retry_after, min_rejected_tokens)
    return ErrorReply(request_id, name if name in ERROR_TYPES else "InferenceFailed", *fields)


def to_exception(reply: ErrorReply) -> errors.ServiceError:
    """Raises ProtocolError where the error's type is unknown."""
    if reply.error_type not in ERROR_TYPES:
        raise ProtocolError(f"an error of unknown type {reply.error_type[:40]!r}")
    error_type = ERROR_TYPES[reply.error_type]
    return error_type(reply.message, code=reply.code, index=reply.index, retry_after=reply.retry_after)
