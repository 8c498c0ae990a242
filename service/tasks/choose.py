"""/choose: which of several choices fits a prompt best, by the multiple-choice head of a fine-tuned model."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from ..errors import Invalid, ServiceError
from ..tokenization.encoding import EncodeOptions
from ..turns import in_turns
from .flow import Task, TaskResult, Tasks
from .inputs import Body, ClientFields, FailFastList, TruncationFields
from .predict import Floats, softmax
from .results import LongList

OPTIONS = EncodeOptions(outputs=frozenset({"choices"}))
EXAMPLE_CHOICES = ["It is eaten with a fork.", "It is eaten while held in the hand."]


class PromptAndChoices(Body):
    prompt: str = Field(examples=["How is pizza eaten in Italy?"])
    choices: FailFastList[str] = Field(examples=[EXAMPLE_CHOICES])


class ChooseRequest(ClientFields, TruncationFields):
    inputs: str | PromptAndChoices | FailFastList[PromptAndChoices] | None = Field(
        None, description="the prompt; or prompt and choices, or a list of these"
    )
    prompt: str | None = Field(None, examples=["How is pizza eaten in Italy?"], description="as inputs")
    choices: FailFastList[str] | None = Field(None, examples=[EXAMPLE_CHOICES], description="with one prompt")

    @model_validator(mode="after")
    def _require_one_form(self) -> Self:
        given = [one for one in (self.inputs, self.prompt) if one is not None]
        if len(given) != 1 or isinstance(given[0], str) is (self.choices is None):
            raise PydanticCustomError("missing", "send prompt and choices, or inputs with both")
        return self


class Choice(BaseModel):
    index: int = Field(description="of the choice in the request", examples=[0])
    score: float = Field(description="the probability among these choices", examples=[0.87])
    choice: str = Field(examples=EXAMPLE_CHOICES[:1])


ChooseResponse = list[Choice] | list[list[Choice]]


async def choose(tasks: Tasks, request: ChooseRequest) -> Task:
    """The choices of a prompt by their probability, from a multiple-choice head. A list for one prompt, a list of lists
    for a list of prompts."""
    inputs = _inputs(request)
    if (empty := next((index for index, one in enumerate(inputs) if not one.choices), None)) is not None:
        raise Invalid("choices is empty: send at least one", code="empty", index=empty)
    owners = [index for index, one in enumerate(inputs) for _ in one.choices]
    pairs = [(one.prompt, choice) for one in inputs for choice in one.choices]

    def locate(error: ServiceError) -> None:
        if error.index is not None:
            place = error.index - owners.index(owners[error.index])
            error.message = f"choice {place}: {error.message}"
            error.index = owners[error.index]

    async def answer(result: TaskResult) -> Any:
        logits = np.array([row["choices"][0, 0] for row in result.rows], np.float64)
        parts = zip(inputs, np.split(logits, np.cumsum([len(one.choices) for one in inputs])[:-1]), strict=True)
        value = LongList([_rank(one.choices, softmax(part)) async for one, part in in_turns(parts)])
        return value if isinstance(request.inputs, list) else value[0]

    return Task(partial(tasks.chunks, pairs, request, OPTIONS), answer, locate=locate)


def _inputs(request: ChooseRequest) -> Sequence[PromptAndChoices]:
    if isinstance(request.inputs, list):
        return request.inputs
    if isinstance(request.inputs, PromptAndChoices):
        return [request.inputs]
    prompt = request.inputs if request.prompt is None else request.prompt
    return [PromptAndChoices.model_validate({"prompt": prompt, "choices": request.choices})]


def _rank(choices: Sequence[str], scores: Floats) -> list[dict[str, Any]]:
    order = np.argsort(-scores, kind="stable").tolist()
    return [{"index": i, "score": float(scores[i]), "choice": choices[i]} for i in order]
