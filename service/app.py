"""The HTTP side: routes, the one error shape, documentation. A route reads a body, asks a task, and sends bytes."""

import asyncio
import gc
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from service import labels, schemas
from service.answers import JSON, NPY, json_bytes, npy_bytes, openai_embeddings
from service.documentation import body_of, openapi
from service.door import Door, Left, attended
from service.errors import BadRequest, Invalid, ServiceError, Unauthorized
from service.metrics import CONTENT_TYPE
from service.serving import Serving
from service.tasks import Done, Tasks

B = TypeVar("B", bound=BaseModel)
log = logging.getLogger("service")
CODES = {404: "not_found", 405: "method_not_allowed"}
Answered = tuple[Done, bytes, str]  # what was done, the body, its media type
Handler = Callable[[Request, Tasks, bytes, float], Coroutine[Any, Any, Answered]]


async def embed(request: Request, tasks: Tasks, body: bytes, timeout_seconds: float) -> Answered:
    done = await tasks.embed(parse(schemas.EmbedRequest, body), timeout_seconds=timeout_seconds)
    if request.headers.get("accept") == NPY:
        return done, npy_bytes(done.value), NPY
    return done, await json_bytes(done.value), JSON


async def fill_mask(_: Request, tasks: Tasks, body: bytes, timeout_seconds: float) -> Answered:
    done = await tasks.fill_mask(parse(schemas.FillMaskRequest, body), timeout_seconds=timeout_seconds)
    return done, await json_bytes(done.value), JSON


async def nsp(_: Request, tasks: Tasks, body: bytes, timeout_seconds: float) -> Answered:
    done = await tasks.next_sentence(parse(schemas.NspRequest, body), timeout_seconds=timeout_seconds)
    return done, await json_bytes(done.value), JSON


async def embeddings(_: Request, tasks: Tasks, body: bytes, timeout_seconds: float) -> Answered:
    asked = parse(schemas.EmbeddingsRequest, body)
    kept = asked.model_dump(include={"pooling", "normalize", "dimensions"})
    inner = schemas.EmbedRequest.model_validate({"inputs": asked.input} | kept)
    done = await tasks.embed(inner, timeout_seconds=timeout_seconds)
    shape = openai_embeddings(done.value, model=tasks.manifest.name, tokens=done.tokens, base64_encoded=asked.encoding_format == "base64")
    return done, await json_bytes(shape), JSON


async def predict(_: Request, tasks: Tasks, body: bytes, timeout_seconds: float) -> Answered:
    done = await labels.predict(tasks, parse(schemas.PredictRequest, body), timeout_seconds=timeout_seconds)
    return done, await json_bytes(done.value), JSON


async def tag(_: Request, tasks: Tasks, body: bytes, timeout_seconds: float) -> Answered:
    done = await labels.tag(tasks, parse(schemas.TagRequest, body), timeout_seconds=timeout_seconds)
    return done, await json_bytes(done.value), JSON


ROUTES: dict[str, tuple[str, Handler, type[BaseModel], str]] = {
    "/embed": ("embed", embed, schemas.EmbedRequest, "Vectors of texts, always a list of lists: raw [CLS] unless asked otherwise"),
    "/fill-mask": ("fill_mask", fill_mask, schemas.FillMaskRequest, "Words for the masks, as transformers' FillMaskPipeline gives them"),
    "/nsp": ("nsp", nsp, schemas.NspRequest, "Whether the second text follows the first"),
    "/v1/embeddings": (
        "embeddings",
        embeddings,
        schemas.EmbeddingsRequest,
        "OpenAI's embeddings route: [CLS], to unit length unless asked otherwise",
    ),
    "/predict": (
        "predict",
        predict,
        schemas.PredictRequest,
        "A classifier's labels for a text or a pair, as text-embeddings-inference gives them",
    ),
    "/tag": (
        "tag",
        tag,
        schemas.TagRequest,
        "A classifier's tags for a text's tokens, as transformers' TokenClassificationPipeline gives them",
    ),
}


def create_app(engine: Serving, *, on_failure: Callable[[], None] = lambda: None) -> FastAPI:
    """The application around an engine that is opened when the server starts and closed when it stops."""
    engine.when_failed(on_failure)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async def load() -> None:
            try:
                await engine.open()
                gc.collect()
                gc.freeze()  # what is here now stays: collecting goes through what requests leave behind, not through the libraries each time
            except Exception:
                log.exception("the model cannot be loaded")
                on_failure()

        loading = asyncio.create_task(load())
        await asyncio.wait((loading,), timeout=engine.shut_seconds)
        yield
        await loading
        await engine.close()

    app = FastAPIOffline(redoc_url=None, title="bert-service", summary="Trained BERT models over REST", version="1", lifespan=lifespan)
    for path, (task, handler, schema, summary) in ROUTES.items():
        app.add_api_route(path, _task_route(engine, task, handler), methods=["POST"], summary=summary, openapi_extra=body_of(schema), name=task)
    _add_pages(app, engine)
    _add_errors(app)
    app.add_middleware(Door, max_body_bytes=engine.settings.max_body_bytes)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]  # FastAPI's documented way to extend the schema
    return app


def parse(schema: type[B], body: bytes) -> B:
    """Raises BadRequest where the body is not JSON, Invalid where it is not what the route takes."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        first = max(error.errors(include_url=False), key=lambda e: len(e["loc"]))
        if first["type"] == "json_invalid":
            raise BadRequest(f"the body is not valid JSON in UTF-8: {first['msg']}") from None
        where = ".".join(str(part) for part in first["loc"]) or "body"
        index = next((part for part in first["loc"] if isinstance(part, int)), None)
        raise Invalid(f"{where}: {first['msg']}", index=index) from None


def _task_route(engine: Serving, task: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        started = time.perf_counter()
        try:
            check_key(request, engine.settings.api_key)
            if engine.draining:
                await request.body()  # the connection closes after this answer: closed with an unread body, it would be reset and the answer lost
            engine.check_open(stated_length(request))
            body = await request.body()
            timeout_seconds = deadline(request, engine.settings.timeout_ms)
            done, content, media_type = await attended(request.receive, handler(request, engine.tasks, body, timeout_seconds))
        except ServiceError as error:
            engine.metrics.refused(task, error.status, error.code)
            raise
        except Left:
            engine.metrics.refused(task, 499, "left")
            return Response(status_code=499)
        engine.metrics.answered(task, seconds=time.perf_counter() - started, truncated=done.truncated)
        headers = {"server-timing": server_timing(done)}
        if done.truncated:
            headers["x-truncated-inputs"] = str(done.truncated)
        return Response(content, media_type=media_type, headers=headers)

    return route


def check_key(request: Request, key: str) -> None:
    if key and not hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {key}".encode()):
        raise Unauthorized("this server wants `Authorization: Bearer KEY`, and the key is missing or wrong")


def deadline(request: Request, default_ms: int) -> float:
    """Seconds until the request is worthless."""
    stated = request.headers.get("x-request-timeout-ms")
    if stated is None:
        return default_ms / 1000
    if not stated.isascii() or not stated.isdigit() or not 0 < int(stated) <= 3_600_000:
        raise Invalid(f"x-request-timeout-ms is {stated[:20]!r}: send whole milliseconds from 1 to 3600000", code="timeout")
    return int(stated) / 1000


def stated_length(request: Request) -> int:
    """0 where the body comes in chunks."""
    stated = request.headers.get("content-length", "")
    return int(stated) if stated.isascii() and stated.isdigit() else 0


def server_timing(done: Done) -> str:
    parts = {"tokenize": done.tokenize_seconds, "queue": done.queue_seconds, "forward": done.forward_seconds, "format": done.format_seconds}
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in parts.items())


def _add_pages(app: FastAPI, engine: Serving) -> None:
    @app.get("/health", summary="The process answers")
    async def health() -> Response:
        return _json(200, {"status": "ok"})

    @app.get("/ready", summary="A real forward pass has gone through the real queue lately; 503 with the reason when not")
    async def ready() -> Response:
        reason = await engine.ready()
        return _json(503 if reason else 200, {"status": reason or "ready"})

    @app.get("/info", summary="The model, its heads and limits, the execution provider in use")
    async def info() -> Response:
        return _json(200, await engine.info())

    @app.get("/metrics", summary="For Prometheus")
    async def metrics() -> Response:
        return Response(await engine.scrape(), media_type=CONTENT_TYPE)


def _add_errors(app: FastAPI) -> None:
    async def service_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        headers = {"retry-after": str(max(1, round(error.retry_after + 0.5)))} if error.retry_after is not None else {}
        return _error(request, error.status, error.message, error.code, error.index, headers)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = ", ".join([*ROUTES, "/health", "/ready", "/info", "/metrics", "/docs"])
        message = f"{request.method} {request.url.path}: {error.detail}; this server has {known}"
        return _error(request, error.status_code, message, CODES.get(error.status_code, "http"), None, dict(error.headers or {}))

    async def unexpected(request: Request, _: Exception) -> Response:
        return _error(request, 500, "something went wrong in the server; its log has the details under this request_id", "internal", None, {})

    app.add_exception_handler(ServiceError, service_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def _error(request: Request, status: int, message: str, code: str, index: int | None, headers: dict[str, str]) -> Response:
    if request.url.path.startswith("/v1/"):
        kind = "invalid_request_error" if status < 500 else "server_error"
        return _json(status, {"error": {"message": message, "type": kind, "param": None, "code": code}}, headers)
    content = {"error": message, "code": code, "request_id": request.state.request_id}
    return _json(status, content | ({"index": index} if index is not None else {}), headers)


def _json(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, JSON)
