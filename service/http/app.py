"""The HTTP side as one ASGI application: the door, the tasks' routes, and FastAPI for the pages, the documentation and whatever is no route."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.routing import Route as ApplicationRoute

from service.backend import Backend
from service.errors import UNEXPECTED
from service.http.endpoints import TASKS, TaskEndpoint
from service.http.fast_path import TaskFastPath
from service.http.openapi import openapi
from service.http.responses import JSON, error_bytes
from service.metrics import CONTENT_TYPE

log = logging.getLogger("service")
CODES = {404: "not_found", 405: "method_not_allowed"}


def create_app(engine: Backend, *, on_failure: Callable[[], None] = lambda: None) -> TaskFastPath:
    """The application around an engine that is opened when the server starts and closed when it stops."""
    engine.on_fatal = on_failure

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
        await asyncio.wait((loading,), timeout=engine.startup_grace_seconds)
        yield
        await loading
        await engine.close()

    pages = FastAPIOffline(
        redoc_url=None, title="bert-service", summary="Trained BERT models over REST", version="1", lifespan=lifespan
    )
    pages.router.redirect_slashes = (
        False  # the address would be made of the Host header, and http behind a proxy that ends TLS
    )
    tasks = {path: TaskEndpoint(engine, task) for path, task in TASKS.items()}
    pages.router.routes += [
        ApplicationRoute(path, route, methods=["POST"], name=route.task.name) for path, route in tasks.items()
    ]
    _add_operational_routes(pages, engine)
    _add_errors(pages)
    pages.openapi = lambda: openapi(pages)  # type: ignore[method-assign]  # FastAPI's documented way to extend the schema
    return TaskFastPath(pages, tasks)


def _add_operational_routes(app: FastAPI, engine: Backend) -> None:
    @app.get("/health", summary="The process answers")
    async def health() -> Response:
        return _json(200, {"status": "ok"})

    @app.get(
        "/ready", summary="A real forward pass has gone through the real queue lately; 503 with the reason when not"
    )
    async def ready() -> Response:
        reason = await engine.ready()
        return _json(503 if reason else 200, {"status": reason or "ready"})

    @app.get("/info", summary="The model, its heads and limits, the execution provider in use")
    async def info() -> Response:
        return _json(200, await engine.info())

    @app.get("/metrics", summary="For Prometheus")
    async def metrics() -> Response:
        return Response(await engine.render_metrics(), media_type=CONTENT_TYPE)


def _add_errors(app: FastAPI) -> None:
    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = ", ".join([*TASKS, "/health", "/ready", "/info", "/metrics", "/docs"])
        message = f"{request.method} {request.url.path}: {error.detail}; this server has {known}"
        return _error(request, error.status_code, message, CODES.get(error.status_code, "http"), error.headers)

    async def unexpected(request: Request, _: Exception) -> Response:
        return _error(request, 500, UNEXPECTED, "internal", {})

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def _error(request: Request, status: int, message: str, code: str, headers: Any) -> Response:
    content = error_bytes(request.url.path, request.state.request_id, status, message, code)
    return Response(content, status, dict(headers or {}), JSON)


def _json(status: int, content: Any) -> Response:
    return Response(orjson.dumps(content), status, media_type=JSON)
