"""The shapes of responses: documented by an example of each, and the parts that several dialects share."""

import base64
import random
import time
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, create_model

from ...tasks.flow import TaskResult, Tasks
from ...tasks.results import LongObject
from ..responses import Floats


class Explained(NamedTuple):
    """A value of an example, and a sentence about it."""

    example: Any
    about: str
    absent: bool = False  # in some responses


def like(model: str, about: str = "", /, **example: Any) -> type[BaseModel]:
    """The pydantic model, named `model`, that documents a JSON object of the form of `example`.

    A list is documented by its first item, a tuple holds alternatives, and a type stands for itself.
    """
    fields: dict[str, Any] = {}
    for key, value in example.items():
        one = value if isinstance(value, Explained) else Explained(value, "")
        shown = [one.example] if _is_plain(one.example) else None
        field = Field(None if one.absent else ..., description=one.about or None, examples=shown)
        fields[key] = (type_like(one.example), field)
    return create_model(model, __doc__=about or None, **fields)


def type_like(example: Any) -> Any:
    """The type of `example`, as in `like`."""
    if isinstance(example, tuple):
        return reduce(or_, map(type_like, example))
    if isinstance(example, list):
        return list[type_like(example[0])]  # type: ignore[misc]
    if isinstance(example, dict):
        return dict[str, Any]
    return type(example) if _is_plain(example) else example


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | dict) or (isinstance(value, list) and all(map(_is_plain, value)))


USAGE = like("Usage", prompt_tokens=7, total_tokens=7)
LISTED = {"created": 1790000000, "object": "list", "model": "sample", "usage": USAGE}


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def listed(tasks: Tasks, result: TaskResult, kind: str, data: Sequence[Any], *, named: str = "list") -> LongObject:
    """vLLM's and infinity's response, whose `object` is `named`."""
    own = {"id": response_id(kind), "created": int(time.time()), "object": named}
    return LongObject(own, model=tasks.manifest.name, data=data, usage=usage(result.tokens))


def response_id(kind: str) -> str:
    return f"{kind}-{random.getrandbits(64):016x}"  # names the response, no secret


def as_base64_text(row: Floats) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
