"""The tasks' routes: a body's bytes in, the task's answer in the form that was asked for out."""

import logging
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.backend import Backend
from service.errors import UNEXPECTED, BadRequest, Invalid, ServiceError
from service.http.disconnect import ClientDisconnected
from service.http.request import Header, Receive, Scope, Send, TaskRequest
from service.http.responses import JSON, NPY, json_bytes, npy_bytes, openai_embeddings
from service.tasks import embed as embed_task
from service.tasks import fill_mask as fill_mask_task
from service.tasks import nsp as nsp_task
from service.tasks import predict as predict_task
from service.tasks import schemas
from service.tasks import tag as tag_task
from service.tasks.base import TaskResult, Tasks

B = TypeVar("B", bound=BaseModel)
MOST_FAULTS = 100  # that are looked at: a million unknown fields would take seconds
SHOWN_CHARACTERS = 100  # of a field's name, which may fill the body
TRIED = re.compile(r"str|Pair|list\[.*\]")  # what pydantic puts between the parts of a place for each alternative
log = logging.getLogger("service")
EncodedResponse = tuple[TaskResult, bytes, str]  # what was done, the body, its media type
Handler = Callable[[TaskRequest, Tasks, bytes, float], Coroutine[Any, Any, EncodedResponse]]


async def embed(call: TaskRequest, tasks: Tasks, body: bytes, timeout_seconds: float) -> EncodedResponse:
    done = await embed_task.embed(tasks, parse(schemas.EmbedRequest, body), timeout_seconds=timeout_seconds)
    if call.headers.get(b"accept") == NPY.encode():
        return done, npy_bytes(done.value), NPY
    return done, await json_bytes(done.value), JSON


async def fill_mask(_: TaskRequest, tasks: Tasks, body: bytes, timeout_seconds: float) -> EncodedResponse:
    done = await fill_mask_task.fill_mask(tasks, parse(schemas.FillMaskRequest, body), timeout_seconds=timeout_seconds)
    return done, await json_bytes(done.value), JSON


async def nsp(_: TaskRequest, tasks: Tasks, body: bytes, timeout_seconds: float) -> EncodedResponse:
    done = await nsp_task.nsp(tasks, parse(schemas.NspRequest, body), timeout_seconds=timeout_seconds)
    return done, await json_bytes(done.value), JSON


async def embeddings(_: TaskRequest, tasks: Tasks, body: bytes, timeout_seconds: float) -> EncodedResponse:
    asked = parse(schemas.EmbeddingsRequest, body)
    kept = asked.model_dump(include={"normalize", "dimensions", "truncate", "truncation_direction"})
    inner = schemas.EmbedRequest.model_validate(
        {"inputs": asked.input, "pooling": asked.pooling or tasks.manifest.pooling} | kept
    )
    done = await embed_task.embed(tasks, inner, timeout_seconds=timeout_seconds)
    base64_encoded = asked.encoding_format == "base64"
    return (
        done,
        await openai_embeddings(
            done.value, model=tasks.manifest.name, tokens=done.tokens, base64_encoded=base64_encoded
        ),
        JSON,
    )


async def predict(_: TaskRequest, tasks: Tasks, body: bytes, timeout_seconds: float) -> EncodedResponse:
    done = await predict_task.predict(tasks, parse(schemas.PredictRequest, body), timeout_seconds=timeout_seconds)
    return done, await json_bytes(done.value), JSON


async def tag(_: TaskRequest, tasks: Tasks, body: bytes, timeout_seconds: float) -> EncodedResponse:
    done = await tag_task.tag(tasks, parse(schemas.TagRequest, body), timeout_seconds=timeout_seconds)
    return done, await json_bytes(done.value), JSON


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A route: its name in /metrics, what answers it, what its body holds, a line for the documentation."""

    name: str
    handler: Handler
    body: type[BaseModel]
    summary: str


TASKS = {
    "/embed": TaskSpec(
        "embed",
        embed,
        schemas.EmbedRequest,
        "Vectors of texts, always a list of lists: raw [CLS] unless asked otherwise",
    ),
    "/fill-mask": TaskSpec(
        "fill_mask",
        fill_mask,
        schemas.FillMaskRequest,
        "Words for the masks, as transformers' FillMaskPipeline gives them",
    ),
    "/nsp": TaskSpec("nsp", nsp, schemas.NspRequest, "Whether the second text follows the first"),
    "/v1/embeddings": TaskSpec(
        "embeddings",
        embeddings,
        schemas.EmbeddingsRequest,
        "OpenAI's embeddings route: the checkpoint's own pooling, to unit length unless asked otherwise",
    ),
    "/predict": TaskSpec(
        "predict",
        predict,
        schemas.PredictRequest,
        "A classifier's labels for a text or a pair, as text-embeddings-inference gives them",
    ),
    "/tag": TaskSpec(
        "tag",
        tag,
        schemas.TagRequest,
        "A classifier's tags for a text's tokens, as transformers' TokenClassificationPipeline gives them",
    ),
}


@dataclass(frozen=True, slots=True)
class TaskEndpoint:
    """A task as an ASGI application of its own."""

    serving: Backend
    task: TaskSpec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, metrics, name = TaskRequest.of(scope, receive, send), self.serving.metrics, self.task.name
        started = time.perf_counter()
        try:
            done, content, media_type = await self._answered(call)
        except ServiceError as error:
            await self._refuse(call, error)
        except ClientDisconnected:
            metrics.refused(name, 499, "client_closed")
            await call.answer(499, b"", JSON)  # nobody hears it
        except Exception:
            log.exception("request %s to %s failed", call.id.decode(), scope["path"])
            await self._refuse(call, ServiceError(UNEXPECTED))
        else:
            metrics.answered(name, seconds=time.perf_counter() - started, truncated=done.truncated)
            await call.answer(200, content, media_type, *_told(done))

    async def _refuse(self, call: TaskRequest, error: ServiceError) -> None:
        self.serving.metrics.refused(self.task.name, error.status, error.reason)
        await call.refuse(error)

    async def _answered(self, call: TaskRequest) -> EncodedResponse:
        serving = self.serving
        limit = serving.settings.max_body_bytes
        call.authenticate(serving.settings.api_key)
        try:
            tasks = serving.admit(call.stated_length)
        except ServiceError:
            if serving.draining:
                await call.body(limit)  # closed with an unread body, the connection would be reset and the answer lost
            raise
        body = await call.body(limit)
        work = self.task.handler(call, tasks, body, call.timeout_seconds(serving.settings.timeout_ms))
        return await call.presence.run_until_disconnect(work)


def parse(schema: type[B], body: bytes) -> B:
    """Raises BadRequest where the body is not JSON, Invalid where it is not what the route takes."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        refusal = _refusal(schema, error)
    raise refusal  # out here: the faults, which may be many, are let go of


def _refusal(schema: type[BaseModel], error: ValidationError) -> ServiceError:
    """Tells the fault that lies deepest in the body, with everything that could have stood in its place."""
    fields = f"this route takes {', '.join(schema.model_fields)}"
    if error.error_count() > MOST_FAULTS:
        return Invalid(f"the body has {error.error_count()} faults, unknown fields above all; {fields}")
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    if faults[0]["type"] == "json_invalid":
        return BadRequest(f"the body is not valid JSON in UTF-8: {faults[0]['msg']}")
    places = [_place(fault["loc"]) for fault in faults]
    deepest = max(places, key=len)
    first, *others = dict.fromkeys(
        fault["msg"] for fault, place in zip(faults, places, strict=True) if place == deepest
    )
    expected = " or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    where = ".".join(map(str, deepest))[:SHOWN_CHARACTERS] or "body"
    unknown = len(deepest) < 2 and any(fault["type"] == "extra_forbidden" for fault in faults)
    index = next((part for part in deepest if isinstance(part, int)), None) if where.startswith("input") else None
    return Invalid(f"{where}: {expected}" + f"; {fields}" * unknown, index=index)


def _place(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """In the body as its writer sees it: without the names of the types that were tried."""
    return tuple(part for part in location if not TRIED.fullmatch(str(part)))


def _told(done: TaskResult) -> list[Header]:
    """What the answer's head says of its cost, in milliseconds."""
    costs = (
        1e3 * done.tokenize_seconds,
        1e3 * done.queue_seconds,
        1e3 * done.forward_seconds,
        1e3 * done.format_seconds,
    )
    headers = [(b"server-timing", b"tokenize;dur=%.3f, queue;dur=%.3f, forward;dur=%.3f, format;dur=%.3f" % costs)]
    return [*headers, (b"x-truncated-inputs", b"%d" % done.truncated)] if done.truncated else headers
