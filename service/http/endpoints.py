"""The endpoint of a task: it takes a request from its bytes to its response."""

import logging
import time
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from service.backend import Backend
from service.errors import UNEXPECTED, ServiceError, Unavailable
from service.http.dialects.spec import TaskSpec
from service.http.request import TaskRequest
from service.http.responses import JSON, NPY, as_one_array, build_timing_headers, json_bytes, npy_bytes
from service.http.validation import parse

log = logging.getLogger("service")


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
                headers, array = build_timing_headers(result), None
                if spec.npy and request.headers.get(b"accept") == NPY.encode():
                    array, more = as_one_array(result.value)
                    headers += more
                if array is not None:
                    content, media_type = npy_bytes(array), NPY
                else:
                    content, media_type = await json_bytes(result.value), JSON
        except Exception as error:
            if not isinstance(error, ServiceError):
                log.exception("request %s to %s failed", request.id.decode(), request.path)
                error = ServiceError(UNEXPECTED)
            metrics.refused(spec.name, error.status, error.reason)
            await request.respond_error(error, spec.error_shape)
        else:
            metrics.answered(spec.name, seconds=time.perf_counter() - started, truncated=result.truncated)
            await request.respond(200, content, media_type, *headers)
