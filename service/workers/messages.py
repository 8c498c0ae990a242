"""Messages between the API workers and the engine process: their types, their frames, and requests and rows in them."""

import asyncio
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service import errors

VERSION = 11
MAX_FRAME_BYTES = 256 * 2**20
READ_AHEAD_BYTES = 2**20  # of a connection
PREFIX = struct.Struct("<I")
ERROR_TYPES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.ServiceError)
}
Topic = Literal["ready", "info", "metrics", "rate"]
Trace = Annotated[str, msgspec.Meta(max_length=55)]  # the traceparent of a request's span; empty without traces
Count = Annotated[int, msgspec.Meta(ge=0)]
M = TypeVar("M")


class ProtocolError(Exception):
    """The other side sent a frame or message that the protocol does not allow: the connection has to be closed."""


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Message(Record, frozen=True, tag=True):
    pass


class Hello(Message, frozen=True):
    version: int
    artifact: str  # digest of the artifact that the sender has opened
    name: str = ""  # of the model, where there may be several: the connection is for this one's requests
    folder: str = ""  # of the artifact
    process: int = 0  # of the sender
    source: str = ""  # what the artifact was made of, where it answers for its name from now on
    fault: str = ""  # why the engine cannot serve it: the connection ends


class Asked(Record, frozen=True):
    """What is computed for a sequence: the fields of Tokens without its ids and types."""

    outputs: frozenset[str]
    masks: tuple[int, ...]
    top_k: int
    targets: tuple[int, ...]
    pooled_from: int
    layers: tuple[int, ...]
    unattended: int


class Sequences(Record, frozen=True):
    """The ids of all sequences one after another, their types likewise."""

    asked: list[Asked]  # [sequences]
    lengths: list[int]  # [sequences]
    ids: memoryview  # [tokens] int32
    types: memoryview  # [tokens] int32


class Submit(Message, frozen=True):
    """A request with all of its sequences, or one that is admitted before they are known: Appends bring them."""

    request_id: int
    deadline: float  # seconds on the machine's monotonic clock
    trace: Trace
    missing: Count  # sequences that are expected in Appends; 0: it has all of them
    reserved: Count  # tokens that are expected of those
    part: Count  # the most of its tokens in the queue; 0: all
    sequences: Sequences


class Append(Message, frozen=True):
    """The next sequences of a request."""

    request_id: int
    reserved: Count  # tokens that are expected of the sequences after these; 0: these are the last
    sequences: Sequences


class Cancel(Message, frozen=True):
    request_id: int


class RejectedLocally(Message, frozen=True):
    """Number of requests that the API worker rejected without asking the engine, so that the engine counts them."""

    requests: Annotated[int, msgspec.Meta(ge=1)]


class Query(Message, frozen=True):
    query_id: int
    topic: Topic


class Block(Record, frozen=True):
    """One output of many sequences: their rows, one after another."""

    output: str
    dtype: str
    row_shape: tuple[int, ...]
    owners: list[int]  # index of the sequence in the request
    row_counts: list[int]  # of each owner
    values: memoryview  # [rows, *row_shape]


class Result(Message, frozen=True):
    """The rows of a request's next sequences: all that have been sent and that no Result has brought."""

    request_id: int
    forward_seconds: float  # of all of its runs so far
    sequences: int
    blocks: list[Block]


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


class TakenOver(Message, frozen=True):
    """Another artifact answers for the name of this connection's model, see WorkerSpec.swapped."""


FromApi = Submit | Append | Cancel | RejectedLocally | Query
FromEngine = Result | ErrorReply | QueryReply | TakenOver
HELLO: msgspec.msgpack.Decoder[Hello] = msgspec.msgpack.Decoder(Hello)
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


@dataclass(slots=True, eq=False)
class MessageWriter:
    """Sends messages in their order; those of one turn of the event loop leave together."""

    stream: asyncio.StreamWriter
    _frames: list[bytes] = field(default_factory=list)

    @property
    def unread_bytes(self) -> int:
        """That the other side has not read, without those of this turn."""
        return self.stream.transport.get_write_buffer_size()

    def send(self, message: Message) -> None:
        """Raises as `frame`."""
        content = frame(message)
        if not self._frames:
            asyncio.get_running_loop().call_soon(self.flush)
        self._frames.append(content)

    def flush(self) -> None:
        frames, self._frames = self._frames, []
        self.stream.writelines(frames)


async def read_message(reader: asyncio.StreamReader, decoder: "msgspec.msgpack.Decoder[M]") -> M:
    """Raises ProtocolError on an invalid frame, IncompleteReadError or OSError at the end of the connection."""
    (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
    if not 0 < size <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are accepted")
    body = await reader.readexactly(size)
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a frame that is not a message: {error}") from None


async def read_hello(reader: asyncio.StreamReader) -> Hello:
    """The first message of a connection. Raises as `read_message`, and ProtocolError for another version."""
    hello = await read_message(reader, HELLO)
    if hello.version != VERSION:
        raise ProtocolError(f"a hello of version {hello.version}; this is version {VERSION}")
    return hello


def to_error_reply(request_id: int, error: errors.ServiceError, *, min_rejected_tokens: int = 0) -> ErrorReply:
    fields = (error.message, error.code, error.index, error.retry_after, min_rejected_tokens)
    return ErrorReply(request_id, type(error).__name__, *fields)


def to_exception(reply: ErrorReply) -> errors.ServiceError:
    """Raises ProtocolError where the error's type is unknown."""
    if reply.error_type not in ERROR_TYPES:
        raise ProtocolError(f"an error of unknown type {reply.error_type[:40]!r}")
    error_type = ERROR_TYPES[reply.error_type]
    return error_type(reply.message, code=reply.code, index=reply.index, retry_after=reply.retry_after)


def encode_sequences(work: Sequence[Tokens]) -> Sequences:
    return Sequences(
        asked=[
            Asked(one.outputs, one.masks, one.top_k, one.targets, one.pooled_from, one.layers, one.unattended)
            for one in work
        ],
        lengths=[len(one.ids) for one in work],
        ids=_to_bytes([one.ids for one in work]),
        types=_to_bytes([one.types for one in work]),
    )


def decode_sequences(sent: Sequences) -> list[Tokens]:
    """Raises ProtocolError where the fields have different sizes. Ids and types are checked where they are packed."""
    ids, types = _to_array(sent.ids, "<i4"), _to_array(sent.types, "<i4")
    if len(sent.asked) != len(sent.lengths) or not sum(sent.lengths) == len(ids) == len(types):
        raise ProtocolError("sequences whose fields have different sizes")
    return [
        Tokens(
            ids=ids[start:end],
            types=types[start:end],
            outputs=asked.outputs,
            masks=asked.masks,
            top_k=asked.top_k,
            targets=asked.targets,
            pooled_from=asked.pooled_from,
            layers=asked.layers,
            unattended=asked.unattended,
        )
        for asked, (start, end) in zip(sent.asked, pairwise(accumulate(sent.lengths, initial=0)), strict=True)
    ]


def encode_rows(rows: Sequence[Row]) -> list[Block]:
    """Rows of one output, dtype and shape form one block."""
    blocks: dict[tuple[str, str, tuple[int, ...]], list[tuple[int, NDArray[np.generic]]]] = {}
    for owner, row in enumerate(rows):
        for output, array in row.items():
            blocks.setdefault((output, array.dtype.str, array.shape[1:]), []).append((owner, array))
    return [
        Block(
            *key,
            owners=[owner for owner, _ in parts],
            row_counts=[len(array) for _, array in parts],
            values=_to_bytes([array for _, array in parts]),
        )
        for key, parts in blocks.items()
    ]


def decode_rows(sent: Result) -> list[Row]:
    """Raises ProtocolError where the fields contradict each other."""
    rows: list[Row] = [{} for _ in range(sent.sequences)]
    try:
        for block in sent.blocks:
            values = _to_array(block.values, block.dtype).reshape(sum(block.row_counts), *block.row_shape)
            places = pairwise(accumulate(block.row_counts, initial=0))
            for owner, (start, end) in zip(block.owners, places, strict=True):
                rows[owner][block.output] = values[start:end]
    except (IndexError, ValueError) as error:
        raise ProtocolError(f"rows whose fields contradict each other: {error}") from None
    return rows


def _to_bytes(arrays: Iterable[NDArray[np.generic]]) -> memoryview:
    """One after another."""
    return memoryview(b"".join([np.ascontiguousarray(array).data for array in arrays]))


def _to_array(content: memoryview, dtype: str) -> NDArray[Any]:
    try:
        return np.frombuffer(content, dtype)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"an array that is none: {error}") from None
