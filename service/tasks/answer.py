"""/answer: the parts of a context that answer a question, as transformers' question-answering pipeline finds them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

import numpy as np
from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from packbert.model_export.artifact.batch import Row

from ..errors import Invalid
from ..tokenization.encoding import EncodedText, EncodeOptions
from ..tokenization.windows import DEFAULT_MAX_TOKENS, QuestionsReader
from ..turns import in_turns
from .flow import Task, TaskResult, Tasks
from .inputs import MAX_TOP_K, PARAMETERS, Body, ClientFields, FailFastList, SpecialTokensField, merge_parameters
from .predict import Floats, softmax
from .results import LongList

OPTIONS = EncodeOptions(outputs=frozenset({"spans"}), spans=True)
DEFAULT_ANSWER_TOKENS = 15  # of the pipeline, as the other defaults
CONTEXT = "My name is Clara and I live in Berkeley."


class QuestionAndContext(Body):
    question: str = Field(examples=["Where do I live?"])
    context: str = Field(examples=[CONTEXT])


class AnswerParameters(SpecialTokensField):
    top_k: int | None = Field(None, ge=1, description="number of answers (default 1); more than 1: a list of answers")
    max_answer_len: int | None = Field(None, ge=1, description="tokens of an answer (default 15)")
    max_seq_len: int | None = Field(
        None, ge=1, description="tokens of a window: question, context and special tokens (default 384, or the model's)"
    )
    doc_stride: int | None = Field(
        None, ge=0, description="tokens of the context that two windows share (default 128, or half of a window)"
    )
    max_question_len: int | None = Field(
        None, ge=1, description="cut a question to so many tokens; null: one that leaves no room is an error"
    )
    handle_impossible_answer: bool | None = Field(
        None, description="the empty answer is one of the answers, with the probability of [CLS]"
    )
    align_to_words: bool | None = Field(None, description="answers are of whole words (default true)")


class AnswerRequest(ClientFields, AnswerParameters):
    inputs: QuestionAndContext | FailFastList[QuestionAndContext] | None = Field(
        None, examples=[{"question": "Where do I live?", "context": CONTEXT}], description="or question and context"
    )
    question: str | None = Field(None, description="with context, instead of inputs")
    context: str | None = Field(None, description="of any length: a long one is read in windows")
    parameters: AnswerParameters | None = Field(None, description=PARAMETERS)

    @model_validator(mode="after")
    def _require_one_form(self) -> Self:
        alone = (self.question is None, self.context is None)
        if alone != ((True, True) if self.inputs is not None else (False, False)):
            raise PydanticCustomError("missing", "send question and context, or inputs with both")
        return self


class Answer(BaseModel):
    score: float = Field(description="the probability; those of equal answers are added up", examples=[0.98])
    start: int = Field(description="first character in the context", examples=[31])
    end: int = Field(description="one past the last character", examples=[39])
    answer: str = Field(description="the text there; empty: the context has no answer", examples=["Berkeley"])


Answers = Answer | list[Answer]
AnswerResponse = Answers | list[Answers]


async def answer(tasks: Tasks, request: AnswerRequest) -> Task:
    """The parts of a context of any length that answer a question, in the format of transformers'
    QuestionAnsweringPipeline. For one question an answer, or a list of at most `top_k` if that is more than 1; for a
    list a list of these."""
    request = merge_parameters(request)
    pairs = _pairs(request)
    tasks.check_count(pairs)
    if (top_k := request.top_k or 1) > MAX_TOP_K:
        raise Invalid(f"top_k is {top_k}; at most {MAX_TOP_K} are allowed", code="top_k")
    chunks = partial(
        tasks.tokenizer.chunks,
        pairs,
        tasks.reading(request, OPTIONS),
        kind=QuestionsReader,
        limit=_window_size(tasks, request),
        most=tasks.settings.max_inputs,
        asked_stride=request.doc_stride,
        question_limit=request.max_question_len,
        align_to_words=request.align_to_words is not False,
    )

    async def best(result: TaskResult) -> Any:
        found = [_Candidates(context, request) for _, context in pairs]
        async for index, tokens, row in in_turns(zip(result.owners, result.sequences, result.rows, strict=True)):
            found[index].add(tokens, row)
        value = LongList([one.best() async for one in in_turns(found)])
        return value if isinstance(request.inputs, list) else value[0]

    return Task(chunks, best)


def _pairs(request: AnswerRequest) -> list[tuple[str, str]]:
    inputs = request.inputs if isinstance(request.inputs, list) else [request.inputs or request]
    return [(cast(str, one.question), cast(str, one.context)) for one in inputs]  # the request has both


def _window_size(tasks: Tasks, request: AnswerParameters) -> int:
    """The tokens of a window. Raises Invalid for more than the model takes, and for a stride that is not less."""
    most = tasks.manifest.max_tokens
    limit = min(most, DEFAULT_MAX_TOKENS) if request.max_seq_len is None else request.max_seq_len
    if limit > most:
        raise Invalid(f"max_seq_len is {limit}; this model takes at most {most} tokens", code="max_seq_len")
    if request.doc_stride is not None and request.doc_stride >= limit:
        message = f"doc_stride is {request.doc_stride}; it must be less than the {limit} tokens of a window"
        raise Invalid(f"{message} (max_seq_len)", code="stride")
    return limit


@dataclass(slots=True)
class _Candidates:
    """The answers to a question, from the windows of its context one after another."""

    context: str
    asked: AnswerParameters
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)  # by their text in lower case
    empty_score: float = 1.0  # that no window has an answer: the least of the windows so far

    def add(self, tokens: EncodedText, row: Row) -> None:
        """The candidates of a window; as the pipeline, more than `top_k`, since words and repetitions merge some.

        The score of tokens s to e is P_start(s) P_end(e), each the softmax over the context and [CLS].
        """
        own = np.flatnonzero(tokens.spans[:, 0] >= 0)
        starts, ends = tokens.spans[own].T.tolist()
        start, end = softmax(row["spans"][np.append(0, own)].astype(np.float64).T)
        self.empty_score = min(self.empty_score, float(start[0] * end[0]))
        top_k = self.asked.top_k or 1
        count = top_k if self.asked.align_to_words is False else 2 * top_k + 10
        longest = self.asked.max_answer_len or DEFAULT_ANSWER_TOKENS
        for first, last, score in best_spans(start[1:], end[1:], count, longest):
            text = self.context[starts[first] : ends[last]]
            answer = {"score": 0.0, "start": starts[first], "end": ends[last], "answer": text}
            self.answers.setdefault(text.lower(), answer)["score"] += score

    def best(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The answer, or a list of at most `top_k` if that is more than 1."""
        found = list(self.answers.values())
        if self.asked.handle_impossible_answer:
            found.append({"score": self.empty_score, "start": 0, "end": 0, "answer": ""})
        found.sort(key=lambda one: -one["score"])
        return found[0] if self.asked.top_k in (None, 1) else found[: self.asked.top_k]


def best_spans(start: Floats, end: Floats, count: int, longest: int) -> Iterator[tuple[int, int, float]]:
    """First token, last token and score of the `count` likeliest spans of at most `longest` tokens, best first.

    `start` and `end` are probabilities [length].
    """
    width = min(longest, len(start))
    ends = np.lib.stride_tricks.sliding_window_view(np.append(end, np.full(width - 1, -1.0)), width)
    scores = np.where(ends >= 0, start[:, None] * ends, -1.0).ravel()  # [length * width], of first token and length
    count = min(count, int((ends >= 0).sum()))
    best = np.argpartition(-scores, count - 1)[:count]
    for place in best[np.argsort(-scores[best], kind="stable")].tolist():
        first, more = divmod(place, width)
        yield first, first + more, float(scores[place])
