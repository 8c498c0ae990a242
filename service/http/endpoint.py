"""The endpoints of tasks, each from the bytes of a request to the bytes of its response, and the direct way to them."""

import logging
import random
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import UNEXPECTED, Invalid, ServiceError, TooLarge
from ..logs import Fields
from ..models import ServedModel
from ..observability.metrics import Metrics
from ..observability.series import MISDIRECTED, PROCESS, RECEIVE, UNKNOWN
from ..settings import MAX_TIMEOUT_MS, Settings
from ..tasks.flow import TaskResult
from ..tasks.inputs import Body
from ..turns import DEADLINE, Deadline, current_trace_id
from .body import INLINE_BYTES, on_thread
from .dialects.spec import Content, ErrorShape, TaskSpec
from .exchange import CONNECTION_KEY, ClientConnection, ClientDisconnected
from .headers import ApiKeys, accepts_coding, choose_media_type, decode_body
from .limits import UNCOUNTED_BYTES
from .responses import JSON, NPY, Json, build_headers, describe_result, json_bytes, npy_bytes, stages_of
from .shares import answer_shared

if TYPE_CHECKING:
    from ..observability.spans import Tracing

Headers = dict[bytes, bytes]  # by name in lower case; the last of those that have the same name
VALID_ID = re.compile(rb"[!-~]{1,128}")
SPLIT = "(BERT_MAX_BODY_BYTES): split it"
TIMEOUT = b"x-request-timeout-ms"
MAX_DIGITS = 20  # including leading zeros; Python refuses to parse more than 4,300
OTHER = "other"  # the path of a response that no FastAPI route gave, such as that of /openapi.json
log = logging.getLogger("service")


class TaskFastPath:
    """ASGI application in front of `fallback`, the FastAPI application, which declares the same endpoints.

    Through FastAPI's middlewares, router and wrappers a request takes 104 Python calls instead of 32, and 25 us more
    (null model, no socket); they do nothing for an endpoint that reads its own bytes.
    """

    def __init__(self, fallback: ASGIApp, endpoints: Mapping[str, ASGIApp], metrics: Metrics) -> None:
        self.fallback, self.metrics = fallback, metrics
        self._endpoints = endpoints

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self.fallback(scope, receive, send)
        path = scope["path"]
        endpoint = self._endpoints.get(path) if scope["method"] == "POST" else None
        if endpoint is None and path.endswith("/") and path != "/":  # answered as without; no redirect: it names a host
            return self({**scope, "path": path.rstrip("/") or "/"}, receive, send)
        return (endpoint or self._call_fallback)(scope, receive, send)

    async def _call_fallback(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        own_id = request_id(headers)
        scope["state"] = {**scope.get("state", {}), "request_id": own_id.decode()}
        if not accepts_coding(headers.get(b"accept-encoding", b"").decode("latin-1"), "gzip"):
            # GZipMiddleware finds gzip in `gzip;q=0` too
            scope["headers"] = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
        if scope["method"] == "HEAD":  # the response to HEAD is that to GET; the connection writes no body
            scope = {**scope, "method": "GET"}
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", own_id)]
            await send(message)

        try:
            await self.fallback(scope, receive, send_with_id)
        finally:
            if status:
                self._count(scope, status)

    def _count(self, scope: Scope, status: int) -> None:
        """404 and 405 are misdirected requests of tasks; the other responses are those of probes and pages."""
        if status in MISDIRECTED:
            self.metrics.refused(UNKNOWN, status, MISDIRECTED[status])
        else:
            path = scope["path"] if scope["path"] in self._endpoints else OTHER
            self.metrics.operational(str(getattr(scope.get("route"), "path", path)), status)


class TaskRequest:
    """A POST on a task's path: its head, its body and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.path: str = scope["path"]
        self.headers: Headers = dict(scope["headers"])
        self.id = request_id(self.headers)
        stated = self.headers.get(b"content-length", b"")
        self.content_length = int(stated) if stated.isdigit() else 0  # bytes; 0 for a chunked body
        self.received = time.perf_counter()  # the head, then the last byte of the body
        self._held = 0  # bytes of the body that are counted
        self.asked: str | None = None  # the model that the body names, empty if it is unknown; None: that of the route
        # a server that reports no disconnects puts no connection into the scope
        self.connection: ClientConnection = scope.get("state", {}).get(CONNECTION_KEY) or ClientConnection()

    def deadline(self, settings: Settings) -> Deadline:
        """The client's deadline, or the default. It counts from the last byte of the body. Raises Invalid."""
        stated = self.headers.get(TIMEOUT)
        if stated is None:
            return Deadline(settings.timeout_ms / 1000, MAX_TIMEOUT_MS / 1000, self.received)
        if not stated.isdigit() or len(stated) > MAX_DIGITS or not 0 < int(stated) <= MAX_TIMEOUT_MS:
            shown = stated[:20].decode("latin-1")
            text = f"x-request-timeout-ms is {shown!r}: send whole milliseconds from 1 to {MAX_TIMEOUT_MS}"
            raise Invalid(text, code="timeout")
        return Deadline(int(stated) / 1000, started=self.received)

    async def read_body(self, limit: int, way_out: str = SPLIT) -> bytes:
        """Raises ClientDisconnected, TooLarge over `limit` bytes, and BuffersFull if all requests hold too many: before
        reading if content-length says so."""
        parts, size, more = [], 0, True
        if self.content_length > UNCOUNTED_BYTES:
            self.connection.buffered.check_size(self.content_length)
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part, more = message.get("body", b""), message.get("more_body", False)
            parts.append(part)
            size += len(part)
            check_size(size, limit, way_out)
            if size > UNCOUNTED_BYTES:
                self.hold_body(size)
        self.received = time.perf_counter()
        return b"".join(parts)

    def hold_body(self, size: int) -> None:
        """Counts the body with `size` bytes until the request ends. Raises BuffersFull."""
        if size > max(self._held, UNCOUNTED_BYTES):
            self.connection.buffered.hold(size - self._held)
            self._held = size

    def release_body(self) -> None:
        """The request has ended: nothing of its body is held any more."""
        if self._held:
            self.connection.buffered.release(self._held)
            self._held = 0

    async def respond(
        self, status: int, content: bytes | bytearray, media_type: str, *more: tuple[bytes, bytes]
    ) -> None:
        headers = [
            (b"content-length", b"%d" % len(content)),
            (b"content-type", media_type.encode()),
            *more,
            (b"x-request-id", self.id),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})

    async def respond_error(self, error: ServiceError, shape: ErrorShape) -> None:
        content = shape.write(self.id.decode(), error)
        headers = ((name.encode(), value.encode()) for name, value in error.headers.items())
        await self.respond(error.status, content, JSON, *headers)


def check_size(size: int, limit: int, way_out: str = SPLIT) -> None:
    """Raises TooLarge if the body has more than `limit` bytes."""
    if size > limit:
        text = f"the body has {size} bytes or more; at most {limit} are accepted"
        raise TooLarge(f"{text} {way_out}", code="body_too_large")


def request_id(headers: Headers) -> bytes:
    """The client's own x-request-id if it is safe in a log and in a header, else a random id."""
    stated = headers.get(b"x-request-id", b"")
    return stated if VALID_ID.fullmatch(stated) else b"%016x" % random.getrandbits(64)  # names the request, no secret


@dataclass(frozen=True, slots=True)
class TaskEndpoint:
    """A task as an ASGI application. It does not know who routed the request to it."""

    model: ServedModel
    spec: TaskSpec
    keys: ApiKeys
    by_body: bool = False  # the body may name another model

    def __post_init__(self) -> None:
        self.model.metrics.add_task(self.spec.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, model, spec = TaskRequest(scope, receive, send), self.model, self.spec
        settings, metrics = model.settings, model.metrics
        cells, stage = metrics.cells, RECEIVE
        cells[RECEIVE] += 1
        try:
            if self.keys.required:
                self.keys.check(request.headers)
            check_size(request.content_length, settings.max_body_bytes)  # before the queue: no wait helps it
            if model.models.refuses:  # a connection may close after the response, and an unread body would reset it
                await request.read_body(settings.max_body_bytes)
                model.refuse()
            body = await request.read_body(settings.max_body_bytes)
            stage = PROCESS
            cells[RECEIVE] -= 1
            cells[PROCESS] += 1
            DEADLINE.set(request.deadline(settings))
            with request.connection:
                body_bytes = len(body)
                if body_bytes > INLINE_BYTES or b"content-encoding" in request.headers:
                    when = f"while the body of {body_bytes} bytes was read"
                    parsed, body_bytes = await DEADLINE.get().wait_for(self._read_on_thread(request, body), when)
                else:
                    parsed = spec.read(request.headers, body, settings)
                del body  # the texts that were parsed from it take as much
                result = await self.answer(request, parsed)
                content, media_type, headers = await self._write_content(request, result)
            metrics.answered(
                spec.name,
                seconds=time.perf_counter() - request.received,
                stages=result.stage_seconds,
                sizes=(len(result.sequences), result.tokens, body_bytes, len(content)),
                truncated=result.truncated,
            )
        except Exception as error:
            if not isinstance(error, ServiceError):
                log.exception("request %s to %s failed", request.id.decode(), request.path)
                error = ServiceError(UNEXPECTED)
            if not request.connection.rejected:
                metrics.refused(spec.name, error.status, error.reason, time.perf_counter() - request.received)
            await request.respond_error(error, spec.error_shape)
            self._note(request, error)
        else:
            await request.respond(200, content, media_type, *headers)
            self._note(request, result)
        finally:
            cells[stage] -= 1
            request.release_body()

    def answer(self, request: TaskRequest, body: Body) -> Awaitable[TaskResult]:
        """The answer of the model that the body names, or of the route's model. Raises NotFound too."""
        model = self.model
        if self.by_body and isinstance(name := getattr(body, "model", None), str):
            request.asked = ""
            model = model.models.find(name)
            request.asked = model.name
        return answer_shared(self.spec, model, body) if model.shares else self.spec.answer(model, body)

    async def _read_on_thread(self, request: TaskRequest, body: bytes) -> tuple[Body, int]:
        """The request in a large or coded body, and its bytes without coding."""
        settings, coding = self.model.settings, request.headers.get(b"content-encoding", b"")
        body = await decode_body(body, coding, settings.max_body_bytes)
        request.hold_body(len(body))
        return await on_thread(partial(self.spec.read, request.headers, body, settings)), len(body)

    async def _write_content(
        self, request: TaskRequest, result: TaskResult
    ) -> tuple[Json, str, list[tuple[bytes, bytes]]]:
        """The bytes of the response, their media type, and headers."""
        value = result.value
        if self.spec.npy and _prefers_npy(request.headers.get(b"accept", b"")):
            encoded = await npy_bytes(value)
            value = value if encoded is None else Content(encoded[0], NPY, tuple(encoded[1]))
        content, media_type, more = value if isinstance(value, Content) else (await json_bytes(value), JSON, ())
        result.format_seconds = time.perf_counter() - result.received
        device = self.model.current.artifact.manifest.device if self.spec.of_tei else ""
        return content, media_type, [*build_headers(result, device, time.perf_counter() - request.received), *more]

    def _note(self, request: TaskRequest, outcome: TaskResult | ServiceError) -> None:
        """Writes how the request ended into its span, and into what the connection knows for the access log."""
        access_log, tracing = self.model.settings.access_log, self.model.tracing
        if not access_log and tracing is None:
            return
        # empty if the body names a model that is not there: that is the client's text; None while the models load
        name = self.model.name if request.asked is None else request.asked
        if access_log:
            known: Fields = {"code": outcome.code} if isinstance(outcome, ServiceError) else describe_result(outcome)
            named = {"model": name, **known, "trace_id": current_trace_id()}
            request.connection.noted = {key: value for key, value in named.items() if value not in (None, "")}
        if tracing is not None:
            attributes: Fields = {"bert.request_id": request.id.decode()}
            if name:
                attributes["gen_ai.request.model"] = name
            if isinstance(outcome, ServiceError):
                waited = outcome.queue_seconds
                tracing.record(attributes, [("queue", time.perf_counter() - waited, waited)], outcome)
            else:
                size: Fields = {"bert.sequences": len(outcome.sequences), "bert.tokens": outcome.tokens}
                tracing.record(attributes | size, stages_of(outcome))


def trace(endpoint: ASGIApp, tracing: "Tracing") -> ASGIApp:
    """The endpoint with a span for each request. Without traces no request runs any of this."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        with tracing.trace_request(scope):
            await endpoint(scope, receive, send)

    return call


def _prefers_npy(accept: bytes) -> bool:
    """Whether the client prefers NPY. Most requests name no type: then the header is not parsed."""
    is_named = accept not in (b"", b"*/*", JSON.encode())
    return is_named and choose_media_type(accept.decode("latin-1"), (JSON, NPY)) == NPY
