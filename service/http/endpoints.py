"""The task routes: one row per task, and the endpoint that takes a request from its bytes to its response."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from service.backend import Backend
from service.errors import UNEXPECTED, ServiceError, Unavailable
from service.http.request import TaskRequest
from service.http.responses import JSON, NPY, build_openai_embeddings, build_timing_headers, json_bytes, npy_bytes
from service.http.validation import parse
from service.tasks import embed, fill_mask, nsp, predict, schemas, tag
from service.tasks.base import TaskResult, Tasks

log = logging.getLogger("service")


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One row: all that HTTP knows of a task."""

    name: str  # in /metrics; the operation id in OpenAPI
    run: Callable[..., Awaitable[TaskResult]]  # (Tasks, request_model, *, timeout_seconds)
    request_model: type[schemas.Body]
    response_model: object  # documents what `run` returns as its value, and does not validate it
    summary: str
    npy: bool = False  # the value is one array, which is also served as NPY


async def _openai_embeddings(tasks: Tasks, request: schemas.EmbeddingsRequest, *, timeout_seconds: float) -> TaskResult:
    fields = request.model_dump(include=set(schemas.EmbeddingFields.model_fields)) | {"inputs": request.input}
    if request.normalize is None:
        fields["normalize"] = tasks.embedding.openai_normalize
    result = await embed.embed(tasks, schemas.EmbedRequest.model_validate(fields), timeout_seconds=timeout_seconds)
    as_base64 = request.encoding_format == "base64"
    result.value = await build_openai_embeddings(result.value, tasks.manifest.name, result.tokens, as_base64=as_base64)
    return result


TASKS = {
    "/embed": TaskSpec(
        "embed",
        embed.embed,
        schemas.EmbedRequest,
        schemas.EmbedResponse,
        "One vector per text, always as a list of lists; by default as the checkpoint says, else the state of [CLS]",
        npy=True,
    ),
    "/fill-mask": TaskSpec(
        "fill_mask",
        fill_mask.fill_mask,
        schemas.FillMaskRequest,
        schemas.FillMaskResponse,
        "Candidates for masked words, in the format of transformers' FillMaskPipeline",
    ),
    "/nsp": TaskSpec(
        "nsp",
        nsp.nsp,
        schemas.NspRequest,
        schemas.NspResponse,
        "Whether the second text follows the first",
    ),
    "/v1/embeddings": TaskSpec(
        "embeddings",
        _openai_embeddings,
        schemas.EmbeddingsRequest,
        schemas.EmbeddingsResponse,
        "OpenAI's embeddings route; by default with the checkpoint's own pooling, scaled to unit length",
    ),
    "/predict": TaskSpec(
        "predict",
        predict.predict,
        schemas.PredictRequest,
        schemas.PredictResponse,
        "A classifier's labels for a text or a pair, in the format of text-embeddings-inference",
    ),
    "/tag": TaskSpec(
        "tag",
        tag.tag,
        schemas.TagRequest,
        schemas.TagResponse,
        "A classifier's tags for the tokens of a text, in the format of transformers' TokenClassificationPipeline",
    ),
}


@dataclass(frozen=True, slots=True)
class TaskEndpoint:
    """One task as an ASGI application. Does not know who routed the request to it."""

    backend: Backend
    spec: TaskSpec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, backend, spec = TaskRequest(scope, receive, send), self.backend, self.spec
        settings, metrics = backend.settings, backend.metrics
        started = time.perf_counter()
        try:
            request.authenticate(settings.api_key)
            try:
                tasks = backend.admit(request.content_length)
            except Unavailable:
                if backend.draining:  # the connection closes after the response: an unread body would reset it first
                    await request.read_body(settings.max_body_bytes)
                raise
            body = await request.read_body(settings.max_body_bytes)
            timeout_seconds = request.timeout_seconds(settings.timeout_ms)
            with request.connection.cancel_on_disconnect():
                parsed = parse(spec.request_model, body)
                result = await spec.run(tasks, parsed, timeout_seconds=timeout_seconds)
                if spec.npy and request.headers.get(b"accept") == NPY.encode():
                    content, media_type = npy_bytes(result.value), NPY
                else:
                    content, media_type = await json_bytes(result.value), JSON
                headers = build_timing_headers(result)
        except Exception as error:
            if not isinstance(error, ServiceError):
                log.exception("request %s to %s failed", request.id.decode(), request.path)
                error = ServiceError(UNEXPECTED)
            metrics.refused(spec.name, error.status, error.reason)
            await request.respond_error(error)
        else:
            metrics.answered(spec.name, seconds=time.perf_counter() - started, truncated=result.truncated)
            await request.respond(200, content, media_type, *headers)
