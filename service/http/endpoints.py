"""The endpoint of a task: it takes a request from its bytes to its response."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from service.backend import Backend
from service.errors import UNEXPECTED, ServiceError, Unavailable
from service.http.dialects.spec import Content, TaskSpec
from service.http.headers.accept import accepts_coding, choose_media_type
from service.http.headers.api_keys import ApiKeys
from service.http.headers.coding import decode_body, encode_response
from service.http.limits.large_body import INLINE_BYTES, parse_in_pieces, parse_large
from service.http.limits.structure import BodyLimits
from service.http.request import TaskRequest
from service.http.responses import (
    JSON,
    NPY,
    as_one_array,
    build_timing_headers,
    describe_result,
    json_bytes,
    npy_bytes,
    stages_of,
)
from service.http.validation import parse
from service.logs import Fields
from service.metrics import PROCESS, RECEIVE
from service.settings import Settings
from service.tasks.base import TaskResult
from service.tasks.schemas import Body
from service.tracing.context import current_trace_id

if TYPE_CHECKING:
    from service.tracing.spans import Tracing

log = logging.getLogger("service")


@dataclass(frozen=True, slots=True)
class TaskEndpoint:
    """One task as an ASGI application. Does not know who routed the request to it."""

    backend: Backend
    spec: TaskSpec
    keys: ApiKeys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, backend, spec = TaskRequest(scope, receive, send), self.backend, self.spec
        settings, metrics = backend.settings, backend.metrics
        cells, stage = metrics.cells, RECEIVE
        cells[stage] += 1
        try:
            self.keys.check(request.headers)
            try:
                tasks = backend.admit(request.content_length)
            except Unavailable:
                if backend.draining:  # the connection closes after the response: an unread body would reset it first
                    await request.read_body(settings.max_body_bytes)
                raise
            spec.check_head(tasks)
            body = await request.read_body(settings.max_body_bytes)
            cells[RECEIVE], cells[stage := PROCESS] = cells[RECEIVE] - 1, cells[PROCESS] + 1
            if coding := request.headers.get(b"content-encoding"):
                body = await decode_body(body, coding, settings.max_body_bytes)
                request.hold_body(len(body))
            timeout_seconds = request.timeout_seconds(settings.timeout_ms)
            with request.connection.cancel_on_disconnect():
                parser, body_bytes = self._find_parser(request, body), len(body)
                if body_bytes <= INLINE_BYTES:
                    parsed = parser()
                else:
                    parsed, timeout_seconds = await parse_large(parser, body_bytes, timeout_seconds)
                del body, parser  # the texts that were parsed from it take as much
                result = await spec.run(tasks, parsed, timeout_seconds=timeout_seconds)
                content, media_type, headers = await self._write_content(request, result)
        except Exception as error:
            if not isinstance(error, ServiceError):
                log.exception("request %s to %s failed", request.id.decode(), request.path)
                error = ServiceError(UNEXPECTED)
            if not request.connection.rejected:
                metrics.refused(spec.name, error.status, error.reason, time.perf_counter() - request.received)
            await request.respond_error(error, spec.error_shape)
            self._note(request, error)
        else:
            self._count_answer(result, body_bytes, len(content), request.received)
            await request.respond(200, content, media_type, *headers)
            self._note(request, result)
        finally:
            cells[stage] -= 1
            request.release_body()

    def _find_parser(self, request: TaskRequest, body: bytes) -> Callable[[], Body]:
        spec = self.spec
        if spec.read_binary is not None and spec.binary_header in request.headers:
            return partial(spec.read_binary, request.headers, body)
        if len(body) <= INLINE_BYTES:
            return partial(parse, spec.request_model, body)
        return partial(parse_in_pieces, spec.request_model, body, BodyLimits.of(self.backend.settings))

    async def _write_content(
        self, request: TaskRequest, result: TaskResult
    ) -> tuple[bytes, str, list[tuple[bytes, bytes]]]:
        """The bytes of the response, their media type, and headers."""
        value, settings = result.value, self.backend.settings
        if self.spec.npy and _prefers_npy(request.headers.get(b"accept", b"")):
            value = _encode_array(value)
        content, media_type, more = value if isinstance(value, Content) else (await json_bytes(value), JSON, ())
        result.format_seconds = time.perf_counter() - result.received
        headers = [*build_timing_headers(result), *more]
        if settings.compress_bytes:
            content, headers = await compress(request, content, headers, settings)
        return content, media_type, headers

    def _count_answer(self, result: TaskResult, body_bytes: int, response_bytes: int, received: float) -> None:
        self.backend.metrics.answered(
            self.spec.name,
            seconds=time.perf_counter() - received,
            stages=result.stage_seconds,
            sizes=(len(result.sequences), result.tokens, body_bytes, response_bytes),
            truncated=result.truncated,
        )

    def _note(self, request: TaskRequest, outcome: TaskResult | ServiceError) -> None:
        """What the line of the access log says beside what the connection knows."""
        if self.backend.settings.access_log:
            noted: Fields = {"code": outcome.code} if isinstance(outcome, ServiceError) else describe_result(outcome)
            request.connection.noted = noted


@dataclass(frozen=True, slots=True)
class TracedTaskEndpoint(TaskEndpoint):
    """A task with a span for each request. A class of its own: without traces no request runs any of it."""

    tracing: "Tracing"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.tracing.trace_request(scope["path"], scope["headers"]):
            await TaskEndpoint.__call__(self, scope, receive, send)  # super() does not know a class with slots

    def _note(self, request: TaskRequest, outcome: TaskResult | ServiceError) -> None:
        """Also what became of the request into its span, and its trace into the line."""
        TaskEndpoint._note(self, request, outcome)
        if self.backend.settings.access_log and (trace_id := current_trace_id()):
            request.connection.noted["trace_id"] = trace_id
        named: Fields = {"bert.request_id": request.id.decode()}
        if isinstance(outcome, ServiceError):
            self.tracing.record_outcome(outcome.status, named, outcome.code)
        else:
            size = {"bert.sequences": len(outcome.sequences), "bert.tokens": outcome.tokens}
            self.tracing.record_outcome(200, named | size)
            self.tracing.record_stages(stages_of(outcome))


def make_endpoint(backend: Backend, spec: TaskSpec, keys: ApiKeys) -> TaskEndpoint:
    if backend.tracing is None:
        return TaskEndpoint(backend, spec, keys)
    return TracedTaskEndpoint(backend, spec, keys, backend.tracing)


def _prefers_npy(accept: bytes) -> bool:
    """Most requests name no type: they are not parsed."""
    return (
        accept not in (b"", b"*/*", JSON.encode()) and choose_media_type(accept.decode("latin-1"), (JSON, NPY)) == NPY
    )


def _encode_array(value: Any) -> Any:
    """The value in NPY; as it is where it is no array."""
    array, headers = as_one_array(value)
    return value if array is None else Content(npy_bytes(array), NPY, tuple(headers))


async def compress(
    request: TaskRequest, content: bytes, headers: list[tuple[bytes, bytes]], settings: Settings
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The content and the headers of a response, with gzip where the settings and the client want it."""
    if not 0 < settings.compress_bytes <= len(content):
        return content, headers
    headers = [*headers, (b"vary", b"accept-encoding")]
    if not accepts_coding(request.headers.get(b"accept-encoding", b"").decode("latin-1"), "gzip"):
        return content, headers
    return await encode_response(content), [*headers, (b"content-encoding", b"gzip")]
