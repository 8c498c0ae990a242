"""What the tasks share: their context, and the steps from texts to the model's outputs."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service.artifact import Manifest
from packbert.service.errors import Invalid, NoSuchHead, ServiceError, TooLarge
from packbert.service.scheduling.request import InferenceQueue, Request
from packbert.service.settings import RootTask
from packbert.service.tasks.deadline import DEADLINE
from packbert.service.tasks.defaults import EmbeddingDefaults
from packbert.service.tasks.inputs import SpecialTokensField, TruncationFields
from packbert.service.tokenization.encoding import Direction, EncodedText, EncodeOptions, TokenIds, is_short, no_tokens
from packbert.service.tokenization.jobs import EncodingJob
from packbert.service.tokenization.tokenizer import Tokenizer
from packbert.service.tokenization.tokens import encode_ids

T = TypeVar("T")
Check = Callable[[Sequence[EncodedText], int], None]  # the next texts of a request, and the index of the first of them
Steps = AsyncGenerator[Sequence[EncodedText]]  # the sequences of a request, some at a time


@dataclass(slots=True, kw_only=True, eq=False)
class TaskResult:
    """The model's outputs for a request and what they cost; then, from `finish` on, the value of the response."""

    value: Any = None
    sequences: Sequence[EncodedText] = ()
    owners: Sequence[int] = ()  # the input of each sequence, ascending: an input may be several windows
    rows: Sequence[Row] = ()  # one for each sequence
    compared: Sequence[Any] | None = None  # by a shadow: vectors, first candidates; None: those in the value
    added: Sequence[int] = ()  # of a request for windows: the tokens of each that the window before it does not have
    truncated: int = 0  # number of inputs that were cut
    tokens: int = 0
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0
    forward_seconds: float = 0.0
    format_seconds: float = 0.0  # set by HTTP, which writes the value as bytes
    received: float  # when the rows arrived, by time.perf_counter
    model: str = ""  # digest of the model that answered, in a service where it can be swapped

    def finish(self, value: Any) -> "TaskResult":
        """Sets the value and lets go of the rows, which keep the arrays of their whole batches in memory."""
        self.value, self.rows = value, ()
        return self

    @property
    def stage_seconds(self) -> tuple[float, float, float, float]:
        """Of tokenizing, queue, forward pass and formatting."""
        return self.tokenize_seconds, self.queue_seconds, self.forward_seconds, self.format_seconds


@dataclass(slots=True, kw_only=True, eq=False)
class Forecast:
    """What a task expects of sequences that it makes itself; it keeps the numbers as an `EncodingJob` does."""

    expected_sequences: int
    expected_tokens: int  # of the sequences that are not made yet; 0 after the last
    owners: list[int] = field(default_factory=list)  # the input of each sequence


Job = EncodingJob | Forecast


def accept(sequences: Sequence[EncodedText], first: int) -> None:
    """The Check of a task that accepts all texts."""


WHOLE_TOKENS = 8192  # of the largest batch, and of the smallest part
WHOLE_SHARE = 0.8  # of what the queue takes: a request that is expected to have so many tokens fits as a whole
PART_SECONDS = 5.0  # of the device, which a part takes: so long another large request waits for it
TIMES_ALONE = 4  # the default deadline of a larger request, in times that it takes alone: others share the device
MAX_TOP_K = 1000  # candidates of a mask, answers of a question, targets
MAX_ATTENTION = 128  # tokens of an /attention request
SIDES: dict[str, Direction | None] = {"NONE": None, "START": "left", "END": "right"}  # of words of truncation


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_inputs: int
    truncate: bool  # for requests that do not set it
    special_tokens: bool = False  # likewise
    max_tokens: int = 2**62  # of a request that is not in parts

    @property
    def whole_tokens(self) -> int:
        """A request of at most so many tokens is never in parts."""
        return min(WHOLE_TOKENS, self.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The context of every task."""

    manifest: Manifest
    tokenizer: Tokenizer
    queue: InferenceQueue
    limits: Limits
    embedding: EmbeddingDefaults
    rerank_by_cosine: bool = False  # of a model that is no cross-encoder
    root_task: RootTask | None = None  # of a request that names no task; None: by the heads and the request
    accepts_empty: bool = False  # a text without tokens is read as its special tokens
    alone: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)  # of `run_alone`

    def require_head(self, head: str) -> None:
        """Raises NoSuchHead."""
        if head not in self.manifest.heads:
            why = self.manifest.missing.get(head, f"family {self.manifest.family} has none")
            raise NoSuchHead(f"this model has no {head} head: {why}; it has {', '.join(self.manifest.heads)}")

    async def run(
        self,
        texts: Sequence[Any],
        request: TruncationFields,
        options: EncodeOptions,
        *,
        check: Check = accept,
        in_parts: bool = True,
    ) -> TaskResult:
        """Tokenizes the texts, which may be TokenIds, and runs the model on them; the deadline includes both.

        `in_parts`: not where each token may have an answer. Raises Invalid for no texts or, unless `accepts_empty`, a
        text without tokens, TooLarge for too many texts, and what the tokenizer, `check` and the queue raise.
        """
        self.check_count(texts)
        started, truncation, options = time.perf_counter(), self.truncation(request), self.reading(request, options)
        if isinstance(texts, TokenIds):
            sequences = await encode_ids(self.tokenizer, texts, options, truncation)
            if (tokens := sum([len(one.ids) for one in sequences])) > self.limits.whole_tokens:
                return await self._run_made(sequences, tokens, check=check)
        elif is_short(sizes := self.tokenizer.measure(texts)):
            sequences = self.tokenizer.encode_sync(texts, options, truncation)
        else:
            job = self.tokenizer.start_job(texts, sizes, options, truncation)
            return await self.run_job(job, check=check, in_parts=in_parts)
        return await self._run_whole(sequences, range(len(sequences)), started, check)

    async def run_job(self, job: EncodingJob, *, check: Check = accept, in_parts: bool = True) -> TaskResult:
        """As `run`, for a job that makes one or more sequences of each text. An error has the index of the text.

        Short texts are tokenized at once. Long ones take turns with those of other requests, and the model runs on the
        first of them while later ones are tokenized. A request that is too large for the queue or for a default
        deadline is run in parts, and a part is tokenized when the model has run the one before it.
        """
        started = time.perf_counter()
        if is_short(job.sizes):
            sequences: list[EncodedText] = []
            while not job.done:
                sequences += job.step()
            return await self._run_whole(sequences, job.owners, started, check)
        request = await self._begin(job, in_parts=in_parts)
        sequences = await self._append_all(request, job, self.tokenizer.run_job(job, queued=True), check)
        tokenize_seconds = 0.0 if request.part else time.perf_counter() - started  # of parts beside the model's runs
        result = await _finish(request, sequences, job.owners)
        tokenize_seconds = min(tokenize_seconds, result.queue_seconds)  # the rest of it passed beside the model's runs
        result.tokenize_seconds, result.queue_seconds = tokenize_seconds, result.queue_seconds - tokenize_seconds
        return result

    async def run_steps(
        self, job: Job, steps: Callable[[Request], Steps], *, check: Check = accept, in_parts: bool = False
    ) -> TaskResult:
        """Runs the model on what `steps` makes for the request that is passed to it; the model runs on the first of
        these while later ones are made. The result has no time of tokenizing."""
        request = await self._begin(job, in_parts=in_parts)
        return await _finish(request, await self._append_all(request, job, steps(request), check), job.owners)

    async def _run_made(
        self, sequences: Sequence[EncodedText], tokens: int, *, check: Check = accept, after: asyncio.Lock | None = None
    ) -> TaskResult:
        """Runs sequences that count as so many tokens: in parts where they are too many, or whole `after` others."""
        job = Forecast(expected_sequences=len(sequences), expected_tokens=tokens, owners=[*range(len(sequences))])

        async def steps(request: Request) -> Steps:
            async with after or nullcontext():
                job.expected_tokens = 0
                yield sequences
                await request.caught_up()

        return await self.run_steps(job, steps, check=check, in_parts=after is None)

    async def run_alone(self, sequences: Sequence[EncodedText], *, cost: int) -> TaskResult:
        """Runs sequences that cost as much as `cost` tokens, one request at a time: the queue counts so many for it."""
        return await self._run_made(sequences, cost, after=self.alone)

    async def _begin(self, job: Job, *, in_parts: bool) -> Request:
        """Admits a request by what its job expects: by a part of that where it is `in_parts` and too large.

        The deadline of a large one follows its size, unless the client has set it. Raises DeadlineExceeded where it has
        passed: the queue would say that the request is too large.
        """
        sequences, tokens, part = job.expected_sequences, job.expected_tokens, 0
        deadline = DEADLINE.get()
        if (seconds := deadline.seconds_left) <= 0:
            raise deadline.exceeded("before the request was queued: send less or allow more time")
        if tokens > self.limits.whole_tokens:
            most, rate = self.limits.max_tokens, await self.queue.rate()
            if in_parts and tokens > min(WHOLE_SHARE * most, rate * seconds):
                part = max(1, int(min(most // 2, max(WHOLE_TOKENS, PART_SECONDS * rate))))
            seconds = max(seconds, min(deadline.max_seconds, TIMES_ALONE * tokens / rate))
        return self.queue.begin((), sequences=sequences, tokens=tokens, part=part, timeout_seconds=seconds)

    async def _run_whole(
        self, sequences: Sequence[EncodedText], owners: Sequence[int], started: float, check: Check = accept
    ) -> TaskResult:
        """Runs all sequences of a request, which has been tokenized since `started`."""
        check_tokens(sequences, owners, accepts_empty=self.accepts_empty)
        tokenize_seconds = time.perf_counter() - started
        check(sequences, 0)
        request = self.queue.begin(sequences, timeout_seconds=DEADLINE.get().seconds_left)
        result = await _finish(request, sequences, owners)
        result.tokenize_seconds = tokenize_seconds
        return result

    async def _append_all(self, request: Request, job: Job, steps: Steps, check: Check) -> list[EncodedText]:
        """Appends all sequences to the request as they are made; fewer where it fails meanwhile."""
        sequences, room = list[EncodedText](), request.part
        async with _until_failed(request), aclosing(steps):
            async for made in steps:
                owners = job.owners[len(sequences) : len(sequences) + len(made)]
                check_tokens(made, owners, accepts_empty=self.accepts_empty)
                check(made, len(sequences))
                sequences += made
                if request.part:
                    room = await append_in_parts(request, made, job.expected_tokens, room)
                else:
                    request.append(made, job.expected_tokens)
        return sequences

    async def prepare(self, tokenized: Awaitable[T]) -> tuple[T, float]:
        """What is tokenized before the texts, and the seconds that it took. Raises DeadlineExceeded."""
        started, deadline = time.perf_counter(), DEADLINE.get()
        try:
            async with asyncio.timeout(deadline.seconds_left):
                result = await tokenized
        except TimeoutError:
            raise deadline.exceeded("before the texts were tokenized: send less or allow more time") from None
        return result, time.perf_counter() - started

    def allowing(self, inputs: int) -> "Tasks":
        """For a request that makes so many texts of inputs whose number it has checked."""
        return replace(self, limits=replace(self.limits, max_inputs=inputs))

    def accepting_empty(self) -> "Tasks":
        """For a route of other servers, whose clients send texts without tokens among others."""
        return replace(self, accepts_empty=True)

    def check_count(self, inputs: Sequence[object]) -> None:
        if not inputs:
            raise Invalid("the request has no inputs: send at least one", code="empty")
        count, most = len(inputs), self.limits.max_inputs
        if count > most:
            raise TooLarge(f"the request has {count} inputs; at most {most} are allowed (BERT_MAX_INPUTS): split it")

    def truncation(self, request: TruncationFields) -> Direction | None:
        """The side to cut texts that are too long on; None to refuse them."""
        truncate = self.limits.truncate if request.truncate is None else request.truncate
        if isinstance(truncate, str):
            return SIDES[truncate]
        return request.truncation_direction if truncate else None

    def reads_special_tokens(self, request: SpecialTokensField) -> bool:
        """Whether all special tokens in a text are read as such."""
        return self.limits.special_tokens if request.special_tokens is None else request.special_tokens

    def reading(self, request: SpecialTokensField, options: EncodeOptions) -> EncodeOptions:
        """The options with the special tokens that the request asks for."""
        return replace(options, special_tokens=True) if self.reads_special_tokens(request) else options


class LongList(list[Any]):
    """Answers that are long together: HTTP writes one after another, so that other requests get a turn."""


class MadeList(Sequence[Any]):
    """As LongList, but each answer is made when it is read: memory holds the bytes of all, and the values of one."""

    def __init__(self, make: Callable[..., Any], *columns: Any) -> None:  # sequences or arrays
        self._make, self._columns = make, columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, at: Any) -> Any:  # a place or a slice
        if isinstance(at, slice):
            return MadeList(self._make, *(column[at] for column in self._columns))
        return self._make(*(column[at] for column in self._columns))

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, *self._columns)


def as_lists(value: Any) -> Any:
    """The value with lists in the place of MadeList."""
    return [as_lists(one) for one in value] if isinstance(value, MadeList) else value


class LongObject(dict[str, Any]):
    """An object with long values: HTTP writes each in chunks, and as NPY its one array."""


def check_tokens(sequences: Sequence[EncodedText], owners: Sequence[int], *, accepts_empty: bool = False) -> None:
    """Raises Invalid for a sequence without tokens, with the index of its text, which `owners` has.

    `accepts_empty`: only for one without special tokens too, which leaves the model nothing to read.
    """
    for index, one in zip(owners, sequences, strict=True):
        if one.empty and not (accepts_empty and len(one.ids)):
            raise no_tokens("input", index)


def with_index_of_text(error: ServiceError, owners: Sequence[int]) -> ServiceError:
    """An error of the queue, which has the index of a sequence: from here on it has that of its text."""
    if error.index is not None:
        error.index = owners[error.index]
    return error


async def _finish(request: Request, sequences: Sequence[EncodedText], owners: Sequence[int]) -> TaskResult:
    """The result of the request, without a value; each sequence that is cut counts as a truncated input."""
    try:
        await request.finish()
    except ServiceError as error:
        raise with_index_of_text(error, owners) from None
    truncated = tokens = 0
    for one in sequences:
        truncated += one.truncated
        tokens += len(one.ids)
    return TaskResult(
        sequences=sequences,
        owners=owners,
        rows=request.rows,
        truncated=truncated,
        tokens=tokens,
        queue_seconds=request.queue_seconds,
        forward_seconds=request.forward_seconds,
        received=time.perf_counter(),
    )


async def append_in_parts(request: Request, made: Sequence[Tokens], expected: int, room: int) -> int:
    """Appends sequences after which `expected` tokens follow; those that do not fit into the `room` that is left of a
    part wait until the model has run what is before them. Returns the room that is left then."""
    some: list[Tokens] = []
    expected += sum([len(one.ids) for one in made])
    for one in made:
        if len(one.ids) > room and room < request.part:
            if some:
                request.append(some, expected)
                some = []
            with suppress(ServiceError):  # of `finish`
                await request.caught_up()
            room = request.part
        some.append(one)
        room -= len(one.ids)
        expected -= len(one.ids)
    request.append(some, expected)
    return room


@asynccontextmanager
async def _until_failed(request: Request) -> AsyncIterator[None]:
    """What is inside ends as soon as the request has failed, also by its deadline: then `finish` says how.

    Withdraws the request where what is inside raises.
    """
    try:
        async with asyncio.timeout(None) as working:
            request.ended.add_done_callback(partial(_stop_if_failed, working))
            yield
    except TimeoutError:
        pass
    except BaseException:
        request.withdraw()
        raise


def _stop_if_failed(working: asyncio.Timeout, ended: "asyncio.Future[None]") -> None:
    if ended.cancelled() or ended.exception():
        with suppress(RuntimeError):  # what was inside has ended in the same turn of the loop
            working.reschedule(asyncio.get_running_loop().time())


def as_list(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs
