"""Requests and answers packed for the wire and unpacked again: sequences of many requests as a few flat arrays, rows as one block per output.

What is unpacked has been checked: nothing in it can hurt the engine or be taken for another request's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.batch import MASK, OUTPUTS, TARGET, Row, Tokens
from service.workers.messages import MAX_FRAME_BYTES, Block, OutputSpec, ProtocolError, ResultBatch, SubmitBatch

MESSAGE_BYTES = 4 * 2**20
DTYPES = ("<f4", "<f8", "<i4", "<i8")
Ints = NDArray[np.int32]
_Kind = tuple[frozenset[str], int, tuple[int, ...]]  # outputs, top_k, targets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemoteRequest:
    """A request on its way to the engine."""

    number: int
    deadline: float  # seconds on the machine's monotonic clock
    work: Sequence[Tokens]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.work))

    @property
    def size(self) -> int:
        """Bytes of its tokens, about."""
        return 8 * self.tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemoteResult:
    """An answer on its way back."""

    number: int
    rows: Sequence[Row]
    forward_seconds: float

    @property
    def size(self) -> int:
        """Bytes of its rows."""
        return sum(array.nbytes for row in self.rows for array in row.values())


P = TypeVar("P", RemoteRequest, RemoteResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBounds:
    """What the model's tokens keep within."""

    vocabulary: int
    segments: int
    max_tokens: int


def chunk_by_bytes(parts: Sequence[P]) -> list[list[P]]:
    """Groups for one message each: of a few megabytes, or a single larger one."""
    groups: list[list[P]] = []
    room = 0
    for part in parts:
        if part.size > room:
            groups.append([])
            room = MESSAGE_BYTES
        groups[-1].append(part)
        room -= part.size
    return groups


def encode_requests(parcels: Sequence[RemoteRequest]) -> SubmitBatch:
    sequences = [tokens for parcel in parcels for tokens in parcel.work]
    kinds: dict[_Kind, int] = {}
    asks = [kinds.setdefault((tokens.outputs, tokens.top_k, tokens.targets), len(kinds)) for tokens in sequences]
    return SubmitBatch(
        numbers=tuple(parcel.number for parcel in parcels),
        deadlines=tuple(parcel.deadline for parcel in parcels),
        sequences=tuple(len(parcel.work) for parcel in parcels),
        asked=tuple(OutputSpec(tuple(sorted(outputs)), top_k, _ints(targets)) for outputs, top_k, targets in kinds),
        asks=_ints(asks),
        lengths=_ints([len(tokens) for tokens in sequences]),
        ids=_flat([tokens.ids for tokens in sequences]),
        types=_flat([tokens.types for tokens in sequences]),
        mask_counts=_ints([len(tokens.masks) for tokens in sequences]),
        masks=_ints([position for tokens in sequences for position in tokens.masks]),
    )


def decode_requests(said: SubmitBatch, bounds: ModelBounds) -> list[RemoteRequest]:
    """Raises WireError where the parts contradict each other or leave the model's bounds."""
    asks, lengths, ids, types = (_read(part) for part in (said.asks, said.lengths, said.ids, said.types))
    mask_counts, masks = _read(said.mask_counts), _read(said.masks)
    count = _check_requests(said)
    _check(len(asks) == len(lengths) == len(mask_counts) == count, "lists of different lengths")
    _check(_within(lengths, 1, bounds.max_tokens) and _within(mask_counts, 0, len(masks)), "a length out of bounds")
    _check(int(lengths.sum(dtype=np.int64)) == len(ids) == len(types), "tokens and lengths that differ")
    _check(int(mask_counts.sum(dtype=np.int64)) == len(masks), "masks and their counts that differ")
    _check(
        _within(ids, 0, bounds.vocabulary - 1) and _within(types, 0, max(1, bounds.segments) - 1),
        "an id or a type out of bounds",
    )
    _check(bool(np.all((masks >= 0) & (masks < np.repeat(lengths, mask_counts)))), "a mask outside its sequence")
    _check(_within(asks, 0, len(said.asked) - 1), "a reference to nothing")
    kinds = [_kind(asked, bounds) for asked in said.asked]
    scored = np.array([any(OUTPUTS[name] in (MASK, TARGET) for name in outputs) for outputs, _, _ in kinds], bool)
    _check(not np.any(scored[asks] & (mask_counts == 0)), "scores asked for no mask")
    ends, mask_ends = np.cumsum(lengths).tolist(), np.cumsum(mask_counts).tolist()
    work = [
        _tokens(kinds[ask], ids[end - length : end], types[end - length : end], masks[mask_end - mask_count : mask_end])
        for ask, length, end, mask_count, mask_end in zip(
            asks.tolist(), lengths.tolist(), ends, mask_counts.tolist(), mask_ends, strict=True
        )
    ]
    return [
        RemoteRequest(number=number, deadline=deadline, work=part) for number, deadline, part in _by_request(said, work)
    ]


def encode_results(replies: Sequence[RemoteResult]) -> ResultBatch:
    """Rows of one output and shape lie together, whichever request they belong to."""
    together: dict[tuple[str, str, tuple[int, ...]], list[tuple[int, NDArray[np.generic]]]] = {}
    for owner, row in enumerate(row for reply in replies for row in reply.rows):
        for output, array in row.items():
            together.setdefault((output, array.dtype.newbyteorder("<").str, array.shape[1:]), []).append((owner, array))
    return ResultBatch(
        numbers=tuple(reply.number for reply in replies),
        sequences=tuple(len(reply.rows) for reply in replies),
        forward_seconds=tuple(reply.forward_seconds for reply in replies),
        blocks=tuple(
            Block(
                output=output,
                dtype=dtype,
                tail=tail,
                owners=_ints([owner for owner, _ in parts]),
                counts=_ints([len(array) for _, array in parts]),
                values=_bytes(np.concatenate([array for _, array in parts]).astype(dtype, copy=False)),
            )
            for (output, dtype, tail), parts in together.items()
        ),
    )


def decode_results(said: ResultBatch) -> list[RemoteResult]:
    """Raises WireError where the parts contradict each other."""
    count = sum(said.sequences)
    _check(len(said.numbers) == len(said.sequences) == len(said.forward_seconds), "lists of different lengths")
    _check(min(said.sequences, default=1) >= 1, "an answer of nothing")
    _check(count <= sum(block.owners.nbytes // 4 for block in said.blocks), "a sequence without rows")
    rows: list[Row] = [{} for _ in range(count)]
    for block in said.blocks:
        owners, counts = _read(block.owners), _read(block.counts)
        array = _values(block)
        _check(
            len(owners) == len(counts) and _within(owners, 0, count - 1) and _within(counts, 0, len(array)),
            "an owner or a count out of bounds",
        )
        _check(int(counts.sum(dtype=np.int64)) == len(array), "rows and counts that differ")
        for owner, size, end in zip(owners.tolist(), counts.tolist(), np.cumsum(counts).tolist(), strict=True):
            rows[owner][block.output] = array[end - size : end]
    _check(all(rows), "a sequence without rows")
    ends = np.cumsum(said.sequences).tolist()
    return [
        RemoteResult(number=number, rows=rows[end - size : end], forward_seconds=seconds)
        for number, size, end, seconds in zip(said.numbers, said.sequences, ends, said.forward_seconds, strict=True)
    ]


def _check_requests(said: SubmitBatch) -> int:
    """How many sequences the requests have together."""
    _check(len(said.numbers) == len(said.deadlines) == len(said.sequences), "lists of different lengths")
    _check(
        min(said.sequences, default=0) >= 1 and len(set(said.numbers)) == len(said.numbers),
        "a request of nothing, or twice the same",
    )
    _check(all(map(math.isfinite, said.deadlines)), "a deadline that is no time")
    return sum(said.sequences)


def _by_request(said: SubmitBatch, work: Sequence[Tokens]) -> list[tuple[int, float, Sequence[Tokens]]]:
    ends = np.cumsum(said.sequences).tolist()
    return [
        (number, deadline, work[end - size : end])
        for number, deadline, size, end in zip(said.numbers, said.deadlines, said.sequences, ends, strict=True)
    ]


def _kind(asked: OutputSpec, bounds: ModelBounds) -> _Kind:
    targets = _read(asked.targets)
    _check(bool(asked.outputs) and set(asked.outputs) <= set(OUTPUTS), "an unknown output")
    _check(
        1 <= asked.top_k <= bounds.vocabulary and _within(targets, 0, bounds.vocabulary - 1), "candidates out of bounds"
    )
    _check(len(targets) > 0 or all(OUTPUTS[name] != TARGET for name in asked.outputs), "scores asked for no target")
    return frozenset(asked.outputs), asked.top_k, tuple(targets.tolist())


def _tokens(kind: _Kind, ids: Ints, types: Ints, masks: Ints) -> Tokens:
    outputs, top_k, targets = kind
    return Tokens(ids=ids, types=types, outputs=outputs, masks=tuple(masks.tolist()), top_k=top_k, targets=targets)


def _values(block: Block) -> NDArray[np.generic]:
    """[rows, *tail]"""
    _check(
        block.dtype in DTYPES and block.output in OUTPUTS and min(block.tail, default=1) >= 1,
        "an unknown output, type or shape",
    )
    dtype = np.dtype(block.dtype)
    width = dtype.itemsize * math.prod(block.tail)
    _check(block.values.nbytes % width == 0 and width < MAX_FRAME_BYTES, "a part of a row")
    return np.frombuffer(block.values, dtype).reshape(-1, *block.tail)


def _within(values: Ints, smallest: int, largest: int) -> bool:
    return not len(values) or (int(values.min()) >= smallest and int(values.max()) <= largest)


def _check(holds: bool, fault: str) -> None:
    if not holds:
        raise ProtocolError(f"a frame with {fault}")


def _ints(values: Sequence[int]) -> memoryview:
    return _bytes(np.array(values, "<i4"))


def _flat(arrays: Sequence[Ints]) -> memoryview:
    return _bytes(np.concatenate(arrays).astype("<i4", copy=False))


def _bytes(array: NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _read(part: memoryview) -> Ints:
    _check(part.nbytes % 4 == 0, "a part of a number")
    return np.frombuffer(part, "<i4").astype(np.int32, copy=False)
