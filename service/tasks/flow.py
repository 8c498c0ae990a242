"""The way of a request from its texts to its answer: a task says what to run and how to answer, `answer` runs it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from packbert.model_export.artifact.batch import Row

from ..artifact import Manifest
from ..errors import DeadlineExceeded, Invalid, NoSuchHead, ServiceError, TooLarge
from ..scheduling.batcher import Batcher
from ..scheduling.queue import BULK_SHARE
from ..scheduling.request import Chunk, Request
from ..settings import Settings
from ..tokenization.chunks import Chunks, TextChunk
from ..tokenization.encoding import Direction, EncodedText, EncodeOptions, TokenIds, no_tokens
from ..tokenization.tokenizer import Tokenizer
from ..tokenization.tokens import encode_ids
from ..turns import DEADLINE, in_turns
from .defaults import EmbeddingDefaults, embedding_defaults, scorer
from .inputs import SIDES, SpecialTokensField, TruncationFields

CHUNK_TOKENS = 2048  # of sequences that a task has made itself


@dataclass(slots=True, kw_only=True, eq=False)
class TaskResult:
    """The model's outputs for a request and what they cost; then the value of the response."""

    value: Any = None
    sequences: list[EncodedText] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)  # the input of each sequence, ascending: an input may be windows
    rows: list[Row] = field(default_factory=list)  # of each sequence, but for those that the task has taken
    windows: Sequence[int] = ()  # of a request for windows: how many each text has
    truncated: int = 0  # number of inputs that were cut
    tokens: int = 0
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0
    forward_seconds: float = 0.0
    format_seconds: float = 0.0  # set by HTTP, which writes the value as bytes
    received: float = 0.0  # when the rows arrived, by time.perf_counter
    compared: Sequence[Any] | None = None  # by a shadow: vectors, first candidates; None: those in the value
    model: str = ""  # digest of the model that answered, in a service that can swap it

    stage_seconds = property(attrgetter("tokenize_seconds", "queue_seconds", "forward_seconds", "format_seconds"))


Check = Callable[[TextChunk], None]


class Task(NamedTuple):
    """What a request asks of the model, and how its answer is made of the rows."""

    chunks: Callable[[], TextChunk | Chunks] | None  # None: the model does not run
    answer: Callable[[TaskResult], Awaitable[Any]]  # the value of the response
    check: Check | None = None  # raises for texts that the task does not take
    locate: Callable[[ServiceError], None] | None = None  # names the field of the input that an error has the index of
    accepts_empty: bool = False  # a text without tokens is read as its special tokens

    def then(self, shape: Callable[[Any, TaskResult], Any], **changes: Any) -> "Task":
        """This task with its value in another shape, and with `changes` of its other fields."""

        async def answer(result: TaskResult) -> Any:
            return shape(await self.answer(result), result)

        return self._replace(answer=answer, **changes)


Read = Callable[["Tasks", Any], Awaitable[Task]]  # of a request model


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """The context of every task: a model and its settings."""

    manifest: Manifest
    tokenizer: Tokenizer
    queue: Batcher
    settings: Settings
    alone: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)  # held by the /attention request that runs

    @cached_property
    def embedding(self) -> EmbeddingDefaults:
        return embedding_defaults(self.manifest, self.settings)

    @cached_property
    def scorer(self) -> str | None:
        return scorer(self.manifest, self.settings)

    @property
    def max_tokens(self) -> int:
        """Of a request whose answer grows with its tokens, or whose texts are run several times."""
        return int(self.settings.max_waiting_tokens * BULK_SHARE)

    def check_tokens(self, tokens: int, *, cost: str, done: str, way_out: str) -> None:
        """Raises TooLarge for more than `max_tokens`; {} in the text `cost` is their number, if it is there."""
        if tokens > (most := self.max_tokens):
            limit = f"at most {most} are {done} (nine tenths of BERT_MAX_WAITING_TOKENS)"
            raise TooLarge(f"{cost.format(tokens)}; {limit}: {way_out}")

    def require_head(self, head: str) -> None:
        """Raises NoSuchHead; an empty `head` is none."""
        if head and head not in self.manifest.heads:
            why = self.manifest.missing.get(head, f"family {self.manifest.family} has none")
            raise NoSuchHead(f"this model has no {head} head: {why}; it has {', '.join(self.manifest.heads)}")

    def chunks(
        self, texts: str | Sequence[Any], request: TruncationFields, options: EncodeOptions, *, beside: int = 0
    ) -> TextChunk | Chunks:
        """The sequences of a text or of texts, which may be TokenIds; `beside`: texts that do not count as inputs.

        Raises Invalid for no texts, TooLarge for too many, and what the tokenizer raises.
        """
        texts = [texts] if isinstance(texts, str) else texts
        self.check_count(texts, beside=beside)
        truncation, options = self.truncation(request), self.reading(request, options)
        if isinstance(texts, TokenIds):
            return self._chunks_of_ids(texts, options, truncation)
        return self.tokenizer.chunks(texts, options, truncation)

    async def _chunks_of_ids(self, texts: TokenIds, options: EncodeOptions, truncation: Direction | None) -> Chunks:
        sequences = await encode_ids(self.tokenizer, texts, options, truncation)
        async for chunk in in_chunks(enumerate(sequences), sum(len(one.ids) for one in sequences)):
            yield chunk

    def check_count(self, inputs: Sequence[object], *, beside: int = 0) -> None:
        count, most = len(inputs) - beside, self.settings.max_inputs
        if count < 1:
            raise Invalid("the request has no inputs: send at least one", code="empty")
        if count > most:
            raise TooLarge(f"the request has {count} inputs; at most {most} are allowed (BERT_MAX_INPUTS): split it")

    def truncation(self, request: TruncationFields) -> Direction | None:
        """The side to cut texts that are too long on; None to refuse them."""
        truncate = self.settings.truncate if request.truncate is None else request.truncate
        if isinstance(truncate, str):
            return SIDES[truncate]
        return request.truncation_direction if truncate else None

    def reading(self, request: SpecialTokensField, options: EncodeOptions) -> EncodeOptions:
        """The options with the special tokens that the request asks for."""
        asked = self.settings.special_tokens if request.special_tokens is None else request.special_tokens
        return replace(options, special_tokens=True) if asked else options


async def answer_request(tasks: Tasks, read: Read, request: Any, *, head: str = "") -> TaskResult:
    """Reads the request, runs the model on its chunks and makes the answer, within DEADLINE.

    Raises NoSuchHead too, for the `head` that every request to the task needs.
    """
    tasks.require_head(head)
    started, task, result = time.perf_counter(), await read(tasks, request), TaskResult()
    if task.chunks is None:
        result.value, result.received = await task.answer(result), time.perf_counter()
        result.tokenize_seconds = result.received - started
        return result
    try:
        await _run(tasks.queue, task, task.chunks(), result, started)
    except ServiceError as error:
        if task.locate is not None:
            task.locate(error)
        raise
    result.received = time.perf_counter()
    result.value = await task.answer(result)
    result.rows = []  # they keep the arrays of their whole batches in memory
    return result


def check_sum(size: Callable[[TextChunk], int], check: Callable[[int], None]) -> Check:
    """`check` gets the sum of the `size` of the chunks so far, and may raise."""
    total = 0

    def add(chunk: TextChunk) -> None:
        nonlocal total
        total += size(chunk)
        check(total)

    return add


async def _run(queue: Batcher, task: Task, chunks: TextChunk | Chunks, result: TaskResult, started: float) -> None:
    """Runs the model on the chunks, of which at most a window is in the queue; `result` gets their rows.

    The request takes its place by what the first chunk shows, and each chunk corrects it. An error has the index of the
    input.
    """
    later = None if isinstance(chunks, Chunk) else chunks
    chunk: TextChunk | None = chunks if isinstance(chunks, Chunk) else await anext(chunks)
    assert chunk is not None
    request, answered = _admit(queue, task, chunk, result, started), False
    sent, waited = list[TextChunk](), 0.0
    try:
        while chunk is not None:
            result.owners += chunk.owners
            queue.send(request, chunk)
            sent.append(chunk)
            if later is None:
                break
            while sent and (chunk.needs_rows or _is_full(request, sent)):
                await sent[0].done
                _take(sent.pop(0), result)
            rows, began = None, time.perf_counter()
            if chunk.needs_rows:
                rows, result.rows = result.rows, []
            chunk = await _next(task, later, rows)
            waited += time.perf_counter() - began if rows is None else 0.0
        while sent:
            await sent[0].done
            _take(sent.pop(0), result)
        answered = True
    except ServiceError as error:
        if error is request.error and error.index is not None:
            error.index = result.owners[error.index]
        elif isinstance(error, DeadlineExceeded):
            request.fail(error)
        raise
    finally:
        if later is not None:
            await later.aclose()
        queue.leave(request, answered=answered)
        waited = min(waited, request.queue_seconds)  # for the tokenizer, while no run was in progress
        result.tokenize_seconds += waited
        result.queue_seconds, result.forward_seconds = request.queue_seconds - waited, request.forward_seconds


def _admit(queue: Batcher, task: Task, first: TextChunk, result: TaskResult, started: float) -> Request:
    """The place of a request with this first chunk. Raises DeadlineExceeded, and what the queue raises."""
    check_chunk(first, task.check, accepts_empty=task.accepts_empty)
    now, deadline = time.perf_counter(), DEADLINE.get()
    result.tokenize_seconds, seconds = now - started, deadline.started + deadline.seconds - now
    if seconds <= 0:
        when = "before the request was queued: send less or allow more time"
        raise DeadlineExceeded(f"the deadline passed after {deadline.seconds:.3f} s, {when}")
    inputs = len(first.work) + (first.left and round(len(first.work) * first.left / max(1, first.tokens)))
    tokens = first.tokens + first.left
    request = queue.admit(tokens, inputs, timeout_seconds=seconds, max_seconds=deadline.max_seconds)
    if first.left:
        deadline.seconds += max(0.0, request.deadline - request.arrived - seconds)
    return request


def check_chunk(chunk: TextChunk, check: Check | None, *, accepts_empty: bool = False) -> None:
    """Raises Invalid for a text without tokens, with its index, and what `check` raises.

    `accepts_empty`: only for a text without special tokens too, which leaves the model nothing to read.
    """
    for index, one in zip(chunk.owners, chunk.work, strict=True):
        if one.empty and not (accepts_empty and len(one.ids)):
            raise no_tokens("input", index)
    if check is not None:
        check(chunk)


def _is_full(request: Request, sent: Sequence[TextChunk]) -> bool:
    """Whether a window is in the queue; two chunks may always be there: while one ends, the other runs."""
    return len(sent) > 1 and sum([chunk.tokens for chunk in sent]) > request.model.window


def _take(chunk: TextChunk, result: TaskResult) -> None:
    """The rows of a chunk that is done. Raises what has ended the request."""
    if (error := chunk.request.error) is not None:
        raise error
    result.sequences += chunk.work
    result.rows += chunk.rows
    result.tokens += chunk.tokens
    for one in chunk.work:
        result.truncated += one.truncated


async def _next(task: Task, chunks: Chunks, rows: list[Row] | None) -> TextChunk | None:
    """The chunk that is made with these rows; None after the last."""
    try:
        chunk = await chunks.asend(rows)
    except StopAsyncIteration:
        return None
    check_chunk(chunk, task.check, accepts_empty=task.accepts_empty)
    return chunk


async def in_chunks(sequences: Iterable[tuple[int, EncodedText]], tokens: int) -> Chunks:
    """Chunks of sequences that a task makes itself, each with its input; they have so many `tokens` in all."""
    work, owners, size = list[EncodedText](), list[int](), 0
    async for owner, one in in_turns(sequences):
        if size and size + len(one) > CHUNK_TOKENS:
            tokens -= size
            yield Chunk(work, owners, left=max(1, tokens))
            work, owners, size = [], [], 0
        work.append(one)
        owners.append(owner)
        size += len(one)
    yield Chunk(work, owners)
