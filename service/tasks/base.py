"""What the tasks share: their context, and the steps from texts to the model's outputs. Knows nothing of HTTP."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from model_export.artifact.batch import Row, Tokens
from service.artifact import Manifest
from service.errors import Invalid, NoSuchHead, ServiceError, TooLarge
from service.scheduling.results import InferenceResult
from service.settings import RootTask
from service.tasks.defaults import EmbeddingDefaults
from service.tasks.schemas import TruncationFields
from service.tokenization.tokenizer import EncodedText, EncodeOptions, Tokenizer
from service.tokenization.truncation import Direction

Encode = Callable[[Sequence[Any], EncodeOptions, Direction | None], Awaitable[Sequence[EncodedText]]]


@dataclass(slots=True, kw_only=True, eq=False)
class TaskResult:
    """The model's outputs for a request and what they cost; then, from `finish` on, the value of the response."""

    value: Any = None
    sequences: Sequence[EncodedText]
    owners: Sequence[int]  # the input of each sequence, ascending: an input may be several windows
    rows: Sequence[Row]  # one for each sequence
    truncated: int  # number of inputs that were cut
    tokens: int
    tokenize_seconds: float
    queue_seconds: float
    forward_seconds: float
    format_seconds: float = 0.0
    received: float  # when the rows arrived, by time.perf_counter

    def finish(self, value: Any) -> "TaskResult":
        """Sets the value and lets go of the rows, which keep the arrays of their whole batches in memory."""
        self.value, self.rows, self.format_seconds = value, (), time.perf_counter() - self.received
        return self


class InferenceQueue(Protocol):
    """Where sequences wait for the model, in this process or in the engine's."""

    async def submit(self, work: Sequence[Tokens], *, timeout_seconds: float) -> InferenceResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_inputs: int
    max_top_k: int
    truncate: bool  # for requests that do not set it


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
        timeout_seconds: float,
        check: Callable[[Sequence[EncodedText]], None] = lambda _: None,
        encode: Encode | None = None,
    ) -> TaskResult:
        """Tokenizes the texts and runs the model on them; the deadline includes both.

        `encode` makes tokens of inputs that are no texts; by default the tokenizer makes them.
        Raises Invalid for no texts or a text without tokens, TooLarge for too many texts, and what the tokenizer,
        `check` and the queue raise.
        """
        self.check_count(texts)
        started = time.perf_counter()
        sequences = await (encode or self.tokenizer.encode)(texts, options, self.truncation(request))
        return await self._run(sequences, range(len(sequences)), started, timeout_seconds=timeout_seconds, check=check)

    async def run_windows(
        self, texts: Sequence[str], options: EncodeOptions, *, stride: int, timeout_seconds: float
    ) -> TaskResult:
        """As `run`, with a text that is too long as windows that overlap by `stride` tokens; none is cut.

        A window counts as an input, and its tokens count in the queue. An error has the index of the text.
        """
        self.check_count(texts)
        started = time.perf_counter()
        windows = await self.tokenizer.encode_windows(texts, options, stride, self.limits.max_inputs)
        owners = [index for index, of_text in enumerate(windows) for _ in of_text]
        sequences = [window for of_text in windows for window in of_text]
        try:
            return await self._run(sequences, owners, started, timeout_seconds=timeout_seconds)
        except ServiceError as error:
            if error.index is not None:
                error.index = owners[error.index]
            raise

    async def _run(
        self,
        sequences: Sequence[EncodedText],
        owners: Sequence[int],
        started: float,
        *,
        timeout_seconds: float,
        check: Callable[[Sequence[EncodedText]], None] = lambda _: None,
    ) -> TaskResult:
        """Runs the model on what was tokenized since `started`; an error has the index of the sequence."""
        truncated = tokens = 0
        for index, one in enumerate(sequences):
            if one.empty:
                message = "input has no tokens: it is empty, or holds only spaces and control characters"
                raise Invalid(message, code="empty", index=index)
            truncated += one.truncated
            tokens += len(one.ids)
        tokenize_seconds = time.perf_counter() - started
        check(sequences)
        result = await self.queue.submit(sequences, timeout_seconds=timeout_seconds - tokenize_seconds)
        return TaskResult(
            sequences=sequences,
            owners=owners,
            rows=result.rows,
            truncated=truncated,
            tokens=tokens,
            tokenize_seconds=tokenize_seconds,
            queue_seconds=result.queue_seconds,
            forward_seconds=result.forward_seconds,
            received=time.perf_counter(),
        )

    def check_count(self, inputs: Sequence[object]) -> None:
        if not inputs:
            raise Invalid("inputs is empty: send at least one", code="empty")
        count, most = len(inputs), self.limits.max_inputs
        if count > most:
            raise TooLarge(f"the request has {count} inputs; at most {most} are allowed (BERT_MAX_INPUTS): split it")

    def truncation(self, request: TruncationFields) -> Direction | None:
        """The side to cut texts that are too long on; None to refuse them."""
        truncate = self.limits.truncate if request.truncate is None else request.truncate
        return request.truncation_direction if truncate else None


class LongList(list[Any]):
    """Answers of which each may be long: HTTP writes one after another, so that other requests get a turn."""


def as_list(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs
