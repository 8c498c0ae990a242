"""Messages between the API workers and the engine process: their types, frames, fields in columns, and bounds."""

import asyncio
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from packbert.model_export.artifact.batch import (
    ATTENTION_OUTPUTS,
    LAST,
    LAYER,
    MASK,
    OUTPUTS,
    TARGET,
    Row,
    Tokens,
    kinds_of,
)
from packbert.model_export.artifact.manifest import ModelBounds
from packbert.service import errors

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


def keeps_bounds(message: SubmitBatch, bounds: ModelBounds) -> bool:
    """Whether all ids, types, lengths and targets of a message that this process encoded are within the bounds."""
    lengths = np.frombuffer(message.lengths, "<u4") - 1  # of 0 the highest number
    if _highest(message.token_ids) >= bounds.vocabulary or _highest(message.type_ids) >= max(1, bounds.segments):
        return False
    for spec in message.specs:
        if spec.targets and _highest(spec.targets) >= bounds.vocabulary:
            return False
    return bool(np.maximum.reduce(lengths) < bounds.max_tokens)


def find_fault(sequences: Sequence[Tokens], bounds: ModelBounds) -> tuple[int, str] | None:
    """The index of the first sequence that leaves the bounds, and how; None where all keep them."""
    limits = {"token id": bounds.vocabulary, "type id": max(1, bounds.segments), "target id": bounds.vocabulary}
    for index, one in enumerate(sequences):
        if not 0 < len(one) <= bounds.max_tokens:
            return index, f"the input has {len(one)} tokens; this model takes 1 to {bounds.max_tokens}"
        parts: tuple[Sequence[int], ...] = (one.ids.tolist(), one.types.tolist(), one.targets)
        for (name, limit), values in zip(limits.items(), parts, strict=True):
            wrong = [value for value in values if not 0 <= value < limit]
            if wrong:
                remedy = "its tokenizer.json does not belong to its weights; export the checkpoint again"
                return index, f"the tokenizer gave the {name} {wrong[0]}; this model has 0 to {limit - 1}: {remedy}"
    return None


def _highest(numbers: memoryview) -> int:
    """Of int32 read as unsigned: a negative number is higher than any limit."""
    return int(np.maximum.reduce(np.frombuffer(numbers, "<u4")))


MESSAGE_BYTES = 4 * 2**20
DTYPES = ("<f4", "<f8", "<i4", "<i8")
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemoteRequest:
    """A request for the engine worker, or the next sequences of one."""

    id: int
    deadline: float  # seconds on the machine's monotonic clock
    sequences: Sequence[Tokens]
    trace: str = ""  # as SubmitBatch.traces
    reserved: int = WHOLE  # as SubmitBatch.reserved
    first: int = 0  # the index of the first sequence in its request; not sent

    @property
    def is_whole(self) -> bool:
        return self.reserved == WHOLE

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))

    @property
    def size(self) -> int:
        """Approximate bytes of its token ids and type ids."""
        return 8 * self.tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemoteResult:
    """The result of a RemoteRequest, with the same id."""

    id: int
    rows: list[Row]
    forward_seconds: float

    @property
    def size(self) -> int:
        """Bytes of its rows."""
        return sum(array.nbytes for row in self.rows for array in row.values())


P = TypeVar("P", RemoteRequest, RemoteResult)


def chunk_by_bytes(items: Sequence[P]) -> list[list[P]]:
    """Groups for one message each: MESSAGE_BYTES at most, or a single larger item."""
    groups: list[list[P]] = []
    room = 0
    for item in items:
        size = item.size
        if size > room:
            groups.append([])
            room = MESSAGE_BYTES
        groups[-1].append(item)
        room -= size
    return groups


def encode_requests(requests: Sequence[RemoteRequest]) -> SubmitBatch:
    sequences = [tokens for request in requests for tokens in request.sequences]
    keys = [(one.outputs, one.targets, one.top_k, one.pooled_from, one.layers) for one in sequences]
    specs = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return SubmitBatch(
        request_ids=tuple(request.id for request in requests),
        reserved=tuple(request.reserved for request in requests),
        deadlines=tuple(request.deadline for request in requests),
        sequence_counts=tuple(len(request.sequences) for request in requests),
        traces=tuple(request.trace for request in requests),
        specs=tuple(
            OutputSpec(tuple(sorted(outputs)), _to_bytes(targets), top_k, pooled_from, layers)
            for outputs, targets, top_k, pooled_from, layers in specs
        ),
        spec_index=_to_bytes([specs[key] for key in keys]),
        lengths=_to_bytes([len(tokens) for tokens in sequences]),
        token_ids=_to_bytes(np.concatenate([tokens.ids for tokens in sequences])),
        type_ids=_to_bytes(np.concatenate([tokens.types for tokens in sequences])),
        mask_counts=_to_bytes([len(tokens.masks) for tokens in sequences]),
        masks=_to_bytes([position for tokens in sequences for position in tokens.masks]),
    )


def decode_requests(message: SubmitBatch, bounds: ModelBounds) -> list[RemoteRequest]:
    """Raises ProtocolError where the fields contradict each other or leave the model's bounds."""
    counts = message.sequence_counts
    per_request = (message.request_ids, message.reserved, message.deadlines, message.traces)
    _check(all(len(each) == len(counts) for each in per_request), "lists of different lengths")
    _check(min(message.reserved, default=WHOLE) >= WHOLE, "a reservation out of bounds")
    _check(min(counts, default=0) >= 1, "a request without sequences")
    _check(len(set(message.request_ids)) == len(counts), "a repeated request id")
    _check(all(map(math.isfinite, message.deadlines)), "a deadline that is not finite")
    spec_index = _to_ints(message.spec_index, "a spec index", 0, len(message.specs) - 1)
    lengths = _to_ints(message.lengths, "a length", 1, bounds.max_tokens)
    ids = _to_ints(message.token_ids, "a token id", 0, bounds.vocabulary - 1)
    types = _to_ints(message.type_ids, "a type id", 0, max(1, bounds.segments) - 1)
    masks = _to_ints(message.masks, "a mask position", 0, bounds.max_tokens - 1)
    mask_counts = _to_ints(message.mask_counts, "a mask count", 0, len(masks))
    _check(len(spec_index) == len(lengths) == len(mask_counts) == sum(counts), "lists of different lengths")
    _check(_total(lengths) == len(ids) == len(types), "lengths that do not sum to the tokens")
    _check(_total(mask_counts) == len(masks), "mask counts that do not sum to the masks")
    _check(bool(np.all(masks < np.repeat(lengths, mask_counts))), "a mask outside its sequence")
    specs = [_decode_spec(spec, bounds) for spec in message.specs]
    scored = np.array([not kinds_of(spec["outputs"]).isdisjoint((MASK, TARGET)) for spec in specs], bool)
    _check(not np.any(scored[spec_index] & (mask_counts == 0)), "vocabulary scores without a mask")
    firsts = np.array([spec["pooled_from"] for spec in specs], np.int64)
    _check(not np.any(firsts[spec_index] >= lengths), "pooling from beyond the end of a sequence")
    positions = tuple(masks.tolist())
    sequences = [
        Tokens(ids=ids[own], types=types[own], masks=positions[own_masks], **specs[index])
        for own, own_masks, index in zip(_slices(lengths), _slices(mask_counts), spec_index.tolist(), strict=True)
    ]
    return [
        RemoteRequest(id=request_id, deadline=deadline, sequences=sequences[own], reserved=reserved, trace=trace)
        for request_id, reserved, deadline, trace, own in zip(*per_request, _slices(counts), strict=True)
    ]


def encode_results(results: Sequence[RemoteResult]) -> ResultBatch:
    """Rows of one output, dtype and shape form one block, over all requests."""
    blocks: dict[tuple[str, str, tuple[int, ...]], list[tuple[int, NDArray[np.generic]]]] = {}
    for owner, row in enumerate(row for result in results for row in result.rows):
        for output, array in row.items():
            key = (output, array.dtype.newbyteorder("<").str, array.shape[1:])
            blocks.setdefault(key, []).append((owner, array))
    return ResultBatch(
        request_ids=tuple(result.id for result in results),
        sequence_counts=tuple(len(result.rows) for result in results),
        forward_seconds=tuple(result.forward_seconds for result in results),
        blocks=tuple(
            OutputBlock(
                *key,
                owners=_to_bytes([owner for owner, _ in parts]),
                row_counts=_to_bytes([len(array) for _, array in parts]),
                values=_to_bytes(np.concatenate([array for _, array in parts]), key[1]),
            )
            for key, parts in blocks.items()
        ),
    )


def decode_results(message: ResultBatch) -> list[RemoteResult]:
    """Raises ProtocolError where the fields contradict each other."""
    counts = message.sequence_counts
    total = sum(counts)
    _check(len(message.request_ids) == len(counts) == len(message.forward_seconds), "lists of different lengths")
    _check(min(counts, default=1) >= 1, "a result without sequences")
    # before `total` dicts are created
    _check(total <= sum(block.owners.nbytes // 4 for block in message.blocks), "a sequence without rows")
    rows: list[Row] = [{} for _ in range(total)]
    for block in message.blocks:
        values = _decode_values(block)
        owners = _to_ints(block.owners, "an owner", 0, total - 1)
        row_counts = _to_ints(block.row_counts, "a row count", 0, len(values))
        _check(len(owners) == len(row_counts), "lists of different lengths")
        _check(_total(row_counts) == len(values), "row counts that do not sum to the rows")
        for owner, own in zip(owners.tolist(), _slices(row_counts), strict=True):
            rows[owner][block.output] = values[own]
    _check(all(rows), "a sequence without rows")
    return [
        RemoteResult(id=request_id, rows=rows[own], forward_seconds=seconds)
        for request_id, seconds, own in zip(message.request_ids, message.forward_seconds, _slices(counts), strict=True)
    ]


def _decode_spec(spec: OutputSpec, bounds: ModelBounds) -> dict[str, Any]:
    """The fields of Tokens that it stands for."""
    targets = _to_ints(spec.targets, "a target", 0, bounds.vocabulary - 1)
    outputs = frozenset(spec.outputs)
    _check(bool(outputs) and outputs <= OUTPUTS.keys(), "an unknown output")
    _check(1 <= spec.top_k <= bounds.vocabulary, "top_k out of bounds")
    _check(len(targets) > 0 or TARGET not in kinds_of(outputs), "target scores without a target")
    _check(0 <= spec.pooled_from <= bounds.max_tokens, "pooled_from out of bounds")
    _check(all(LAST <= layer < bounds.layers for layer in spec.layers), "a layer out of bounds")
    _check(len(spec.layers) > 0 or LAYER not in kinds_of(outputs), "states of layers without a layer")
    _check(LAST not in spec.layers or outputs.isdisjoint(ATTENTION_OUTPUTS), "the attention after the last layer")
    return {
        "outputs": outputs,
        "top_k": spec.top_k,
        "targets": tuple(targets.tolist()),
        "pooled_from": spec.pooled_from,
        "layers": spec.layers,
    }


def _decode_values(block: OutputBlock) -> NDArray[np.generic]:
    """[rows, *row_shape]"""
    _check(block.output in OUTPUTS and block.dtype in DTYPES, "an unknown output or dtype")
    _check(min(block.row_shape, default=1) >= 1, "a row shape out of bounds")
    dtype = np.dtype(block.dtype)
    row_bytes = dtype.itemsize * math.prod(block.row_shape)
    _check(block.values.nbytes % row_bytes == 0 and row_bytes < MAX_FRAME_BYTES, "an incomplete row")
    return np.frombuffer(block.values, dtype).reshape(-1, *block.row_shape)


def _check(holds: bool, fault: str) -> None:
    if not holds:
        raise ProtocolError(f"a message with {fault}")


def _total(counts: Ints) -> int:
    return int(counts.sum(dtype=np.int64))


def _slices(sizes: Ints | Sequence[int]) -> list[slice]:
    """Consecutive slices of the given sizes."""
    numbers = sizes.tolist() if isinstance(sizes, np.ndarray) else sizes
    return list(map(slice, accumulate(numbers, initial=0), accumulate(numbers)))


def _to_bytes(values: ArrayLike, dtype: str = "<i4") -> memoryview:
    return np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8).data


def _to_ints(content: memoryview, name: str, smallest: int, largest: int) -> Ints:
    """[numbers] int32, each within the bounds."""
    _check(content.nbytes % 4 == 0, "an incomplete number")
    values = np.frombuffer(content, "<i4").astype(np.int32, copy=False)
    if len(values) and (int(values.min()) < smallest or int(values.max()) > largest):
        raise ProtocolError(f"a message with {name} out of bounds")
    return values
