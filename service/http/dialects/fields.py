"""Fields that several servers share: of requests under their names for ours, and of responses."""

import random
import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from ...errors import Invalid
from ...tasks.flow import TaskResult, Tasks
from ...tasks.inputs import NO_EFFECT, Body, TruncationFields
from ...tasks.results import LongObject
from ...tokenization.encoding import Direction
from .spec import like

THEIRS = {  # field of this service -> its names in other servers' requests
    "truncate": ("truncation",),  # of Voyage
    "truncation_direction": ("truncation_side",),  # of vLLM
    "dimensions": ("output_dimension",),  # of Voyage and Cohere
    "normalize": ("normalized", "use_activation"),  # of Jina, of vLLM
    "encoding_format": ("embedding_type", "encoding_type"),  # of Jina, of LlamaIndex
}
DOCUMENT, QUERY = ("document", "passage", "corpus"), ("query",)  # names of their prompts, in the order of preference
KINDS = {  # what Voyage, Jina and Cohere call them
    **dict.fromkeys(("query", "retrieval.query", "search_query"), QUERY),
    **dict.fromkeys(("document", "passage", "retrieval.passage", "search_document"), DOCUMENT),
    "text": (),  # neither
}
USAGE = like("Usage", prompt_tokens=7, total_tokens=7)
LISTED = {"created": 1790000000, "object": "list", "model": "sample", "usage": USAGE}


class VllmFields(TruncationFields):
    """What clients of vLLM add to any request; a value that would change the answer otherwise is refused."""

    truncate_prompt_tokens: int | None = Field(None, description="-1, or the model's limit and more: as truncate: true")
    truncation_side: Direction | None = Field(None, description="as `truncation_direction`")
    use_activation: bool | None = Field(None, description="of vectors: as `normalize`; of labels: false gives logits")
    add_special_tokens: Literal[True] | None = Field(None, description=NO_EFFECT)
    padding: Literal["do_not_pad", "max_length"] | None = Field(None, description=NO_EFFECT)
    embed_dtype: Literal["float32"] | None = Field(None, description=NO_EFFECT)
    endianness: Literal["native", "little"] | None = Field(None, description=NO_EFFECT)
    priority: int | None = Field(None, description=NO_EFFECT)
    request_id: str | None = Field(None, description=NO_EFFECT)
    cache_salt: str | None = Field(None, description=NO_EFFECT)


def stated(request: Body, field: str) -> Any:
    """The value of the field under any of its names; None if none is set. Raises Invalid if two of them differ."""
    of_client = request.model_fields_set  # a field that is not set may have a default
    names = [name for name in (field, *THEIRS[field]) if name in of_client]
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    if len({*given.values()}) > 1:
        both = " and ".join(f"{name} is {str(value).lower()}" for name, value in given.items())
        raise Invalid(f"{both}, which mean the same: send one of them", code=names[0])
    return next(iter(given.values()), None)


def truncation_fields(tasks: Tasks, request: TruncationFields, *, truncates: bool | None = None) -> dict[str, Any]:
    """How the texts are read; `truncates`: if the request does not say it.

    Raises Invalid for another limit than the model's, and as `stated`.
    """
    truncate, side = stated(request, "truncate"), stated(request, "truncation_direction")
    if (limit := getattr(request, "truncate_prompt_tokens", None)) is not None:
        most = tasks.manifest.max_tokens
        if limit != -1 and limit < most:
            message = f"truncate_prompt_tokens is {limit}; this service truncates only at the model's limit of {most}"
            raise Invalid(f"{message} tokens: send -1, or cut the texts", code="truncate")
        if truncate in (False, "NONE"):
            message = f"truncate is {truncate} and truncate_prompt_tokens {limit}: send one of them"
            raise Invalid(message, code="truncate")
        truncate = truncate or True
    fields = {"special_tokens": request.special_tokens, "truncate": truncates if truncate is None else truncate}
    return fields if side is None else fields | {"truncation_direction": side}


def find_prompt_name(tasks: Tasks, field: str, name: str) -> str | None:
    """The checkpoint's prompt for what `field` calls `name`; None for the default, and if there are no prompts.

    Queries and documents without a prompt of their own get the default, as in sentence-transformers. Raises Invalid for
    another name that no prompt has.
    """
    prompts = tasks.manifest.embedding.prompts
    if not prompts or name in prompts:
        return name if name in prompts else None
    if (kind := KINDS.get(name)) is None:
        message = f"{field} is {name!r}; the prompts of this model are {', '.join(prompts)}"
        raise Invalid(f"{message}: send one of them, or `prompt` with a text", code="prompt")
    found = [prompt for prompt in kind if prompt in prompts]  # sentence-transformers adds `document`, empty
    return max(found, key=lambda prompt: bool(prompts[prompt]), default=None)


def response_id(kind: str) -> str:
    return f"{kind}-{random.getrandbits(64):016x}"  # names the response, no secret


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def listed(tasks: Tasks, result: TaskResult, kind: str, data: Sequence[Any], *, named: str = "list") -> LongObject:
    """vLLM's and infinity's response, whose `object` is `named`."""
    own = {"id": response_id(kind), "created": int(time.time()), "object": named}
    return LongObject(own, model=tasks.manifest.name, data=data, usage=usage(result.tokens))
