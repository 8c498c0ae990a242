"""What the tasks share: their context, and the steps from texts to the model's outputs. Knows nothing of HTTP."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from model_export.artifact.batch import Row, Tokens
from service.artifact import Manifest
from service.errors import Invalid, NoSuchHead, TooLarge
from service.scheduling.results import InferenceResult
from service.tasks.defaults import EmbeddingDefaults
from service.tasks.schemas import TruncationFields
from service.tokenization.tokenizer import Direction, EncodedText, EncodeOptions, Text, Tokenizer


@dataclass(slots=True, kw_only=True, eq=False)
class TaskResult:
    """The model's outputs for a request and what they cost; then, from `finish` on, the value of the response."""

    value: Any = None
    sequences: Sequence[EncodedText]
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

    def require_head(self, head: str) -> None:
        """Raises NoSuchHead."""
        if head not in self.manifest.heads:
            why = self.manifest.missing.get(head, f"family {self.manifest.family} has none")
            raise NoSuchHead(f"this model has no {head} head: {why}; it has {', '.join(self.manifest.heads)}")

    async def run(
        self,
        texts: Sequence[Text],
        request: TruncationFields,
        options: EncodeOptions,
        *,
        timeout_seconds: float,
        check: Callable[[Sequence[EncodedText]], None] = lambda _: None,
    ) -> TaskResult:
        """Tokenizes the texts and runs the model on them; the deadline includes both.

        Raises Invalid for no texts or a text without tokens, TooLarge for too many texts, and what the tokenizer,
        `check` and the queue raise.
        """
        self.check_count(texts)
        started = time.perf_counter()
        sequences = await self.tokenizer.encode(texts, options, self.truncation(request))
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
