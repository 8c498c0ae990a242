"""The FastAPI application: all routes."""

import asyncio
import difflib
import hmac
from collections.abc import Awaitable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import UNEXPECTED, NotFound, ServiceError, Unauthorized
from ..models import Models, ServedModel
from ..observability.metrics import OPENMETRICS, Metrics
from ..observability.series import MISDIRECTED
from ..tasks.inputs import Body, Status
from .body import parse
from .dialects import kserve, model_lists, native, root, scores, vectors
from .dialects.spec import OPENAI_ERROR, SERVICE_ERROR, ErrorShape, TaskSpec
from .endpoint import TaskEndpoint, TaskFastPath, TaskRequest, check_size, trace
from .headers import REFUSAL, ApiKeys, find_key
from .openapi import (
    API_KEY,
    INFO_RESPONSE,
    OTHER_GROUP,
    PROTOCOL_ERRORS,
    SERVICE,
    Readiness,
    Responses,
    documented,
)
from .page.routes import open_page
from .responses import JSON, json_response
from .validation import example_of

TASKS = {
    **native.ROUTES,
    **vectors.ROUTES,
    **native.TEI_ROUTES,
    **scores.RERANK_ROUTES,
    **model_lists.ROUTES,
    **root.ROUTES,
    **scores.ROUTES,
    **native.TOKEN_ROUTES,
}
OPENAI_SEGMENTS = {  # of the paths of OpenAI's API and of Azure's, under a right or a wrong base URL
    *("v1", "openai", "embeddings", "models", "completions", "responses", "moderations", "files", "batches"),
    *("audio", "images", "fine_tuning", "assistants", "threads", "vector_stores", "uploads"),
}
PREFIX, KSERVE = "/models/", "/v2/models/"  # before a model's name
ADMIN_PATH = "/admin/models"
MAX_ADMIN_BYTES, SWAP_WAY_OUT = 2**12, "here: send model and source alone"
DOCUMENTATION = "/docs"
# on BERT_ADMIN_PORT: all paths that begin so
ADMIN_PATHS = (ADMIN_PATH, "/info", "/metrics", DOCUMENTATION, "/openapi.json", "/static-offline-docs")
PROBE_PATHS = ("/health", "/ready")  # on both ports
MIN_COMPRESSED_BYTES = 1024


def task_routes(model: ServedModel) -> dict[str, TaskSpec]:
    """`TASKS`, and the routes whose paths hold the model's name."""
    return TASKS | kserve.task_routes(model) | vectors.task_routes(model)


def error_shape_of(path: str) -> ErrorShape:
    """The shape of an error that no task raised, such as a 404 or a 405."""
    if "/" in (of_model := path.removeprefix(PREFIX)) and of_model != path:  # a route, of a model that is not there
        after_name = f"/{of_model.partition('/')[2]}"
        path = max((task for task in TASKS if path.endswith(task)), key=len, default=after_name)
    if path in TASKS:
        return TASKS[path].error_shape
    first, *others = path.removeprefix("/").split("/")
    is_own = first in ("v2", "admin")  # /v2: KServe and Cohere
    is_openai = not is_own and not OPENAI_SEGMENTS.isdisjoint((first, *others))
    return OPENAI_ERROR if is_openai else SERVICE_ERROR


def create_app(models: Models, keys: ApiKeys | None = None) -> ASGIApp:
    """The application of models that are open; without `keys` with those of BERT_API_KEY alone."""
    keys, tracing = keys or ApiKeys(models.settings), models.tracing
    endpoints: dict[str, ASGIApp] = {}
    apps = {name: _make_app(model, keys, endpoints) for name, model in models.group.items()}
    if tracing is not None:
        endpoints = {path: trace(endpoint, tracing) for path, endpoint in endpoints.items()}
    return serve_ports(apps, endpoints, models.settings.admin_port, models.metrics)


def _make_app(model: ServedModel, keys: ApiKeys, endpoints: dict[str, ASGIApp]) -> FastAPI:
    """All routes of a model. Adds its tasks to `endpoints`: under its name, and without a name if none is there yet."""
    app = FastAPIOffline(
        docs_url=DOCUMENTATION,
        redoc_url=None,
        title="packbert",
        summary="Trained BERT models over REST",
        description="[The page of this service](.)" if open_page(model.settings) else "",
        version=version("packbert"),
        redirect_slashes=False,  # redirects use the Host header, and http behind a proxy that ends TLS
        responses=PROTOCOL_ERRORS,
        generate_unique_id_function=lambda route: route.name,
        # the tasks are on the other port
        swagger_ui_parameters={"supportedSubmitMethods": []} if model.settings.admin_port else None,
    )
    named_path = f"{PREFIX}{model.name}"
    for path, spec in task_routes(model).items():
        endpoints[f"{named_path}{path}".rstrip("/")] = TaskEndpoint(model, spec, keys)
        unnamed = TaskEndpoint(model, spec, keys, by_body=path in TASKS and model.models.can_swap)
        endpoints.setdefault(path, unnamed)
        app.router.routes.append(Route(path, unnamed, methods=["POST"]))
    add_operational_routes(app, model)
    _add_dialects_get_routes(app, model, keys)
    _add_openapi_route(app)
    if model.models.can_swap:
        _add_model_routes(app, model.models)
    add_error_handlers(app)
    app.add_middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES)  # pages and metrics: not the fast path
    return app


def serve_ports(
    apps: Mapping[str, FastAPI], endpoints: Mapping[str, ASGIApp], admin_port: int | None, metrics: Metrics
) -> ASGIApp:
    """`endpoints` by path, and behind them the applications of models by name, the default first.

    With an `admin_port` the routes of ADMIN_PATHS are on that port only, and the others, but for PROBE_PATHS, on any
    other. The port is that of the socket which accepted the connection, so no header of a request chooses it.
    """
    if not admin_port:
        return TaskFastPath(by_name(apps), endpoints, metrics)
    public = TaskFastPath(by_name({name: _take_public_routes(app) for name, app in apps.items()}), endpoints, metrics)
    admin = TaskFastPath(by_name(apps), {}, metrics)

    def call(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_public = scope["type"] == "http" and scope["server"][1] != admin_port
        return (public if is_public else admin)(scope, receive, send)

    return call


def by_name(apps: Mapping[str, ASGIApp]) -> ASGIApp:
    """Calls the application of the model that the path names, or that of the default model, which is the first."""
    default = next(iter(apps.values()))
    named = [(f"{PREFIX}{name}", f"{KSERVE}{name}/", app) for name, app in sorted(apps.items(), reverse=True)]

    def call(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope.get("path", "")
        for start, of_kserve, app in named if path.startswith((PREFIX, KSERVE)) else ():
            if is_named := f"{path}/".startswith(f"{start}/"):
                scope["path"], scope["root_path"] = path[len(start) :] or "/", start
            if is_named or f"{path}/".startswith(of_kserve):
                return app(scope, receive, send)
        return default(scope, receive, send)

    return call


def _take_public_routes(app: FastAPI) -> FastAPI:
    """An application with the routes of `app` that are not for BERT_ADMIN_PORT; `app` keeps those and the probes."""
    public = FastAPI(openapi_url=None, redirect_slashes=False, middleware=app.user_middleware)
    add_error_handlers(public)
    public.router.default = app.router.default
    public.router.routes = [route for route in app.routes if not _path(route).startswith(ADMIN_PATHS)]
    app.router.routes = [route for route in app.routes if _path(route).startswith((*ADMIN_PATHS, *PROBE_PATHS))]
    return public


def _path(route: BaseRoute) -> str:
    return str(getattr(route, "path", ""))


def allow_origins(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """`app`, for pages of other origins too. A service without BERT_CORS_ORIGINS has no such middleware."""
    if not origins:
        return app
    exposed = ["x-request-id", "server-timing", "retry-after", "x-truncated-inputs", "x-windows", "x-model-digest"]
    exposed += ["x-npy-rows", "inference-header-content-length"]
    methods = ["GET", "HEAD", "POST"]
    return CORSMiddleware(app, origins, allow_methods=methods, allow_headers=["*"], expose_headers=exposed)


def add_operational_routes(app: FastAPI, model: ServedModel) -> None:
    """Adds /health, /ready, /info and /metrics. The response models only document what these functions build."""
    get = partial(app.get, tags=[SERVICE])

    @get("/health", response_model=Status, summary="The process responds")
    async def health() -> Response:
        return json_response({"status": "ok"})

    not_ready: Responses = {503: {"model": Readiness, "description": "Not ready; status is the reason"}}

    @get("/ready", response_model=Readiness, responses=not_ready, summary="The model answered a known input lately")
    async def ready() -> Response:
        reason = model.ready()
        content: dict[str, Any] = {"status": reason or "ready"}
        if degraded := model.artifact.degraded:
            content["degraded"] = degraded
        if len(model.group) > 1 and model is model.models.default:
            of_each = model.models.readiness()
            content["models"] = {name: reason or "ready" for name, reason in of_each.items()}
        return json_response(content, 503 if reason else 200)

    @get("/info", response_model=INFO_RESPONSE, summary="The model, its heads and limits, the execution provider")
    async def info() -> Response:
        content = model.current.info()
        of_tei = {key: read(content) for key, (read, _) in native.INFO.items()}
        return json_response(content | of_tei | {"models": list(model.group)})

    string = {"schema": {"type": "string"}}
    text: Responses = {200: {"content": {"text/plain": string, OPENMETRICS: string}}}

    @get("/metrics", response_class=Response, responses=text, summary="Metrics for Prometheus")
    async def metrics(request: Request) -> Response:
        content, media_type = await model.models.render_metrics(request.headers.get("accept", ""))
        return Response(content, media_type=media_type)


def _add_dialects_get_routes(app: FastAPI, model: ServedModel, keys: ApiKeys) -> None:
    async def check_key(request: Request) -> None:
        keys.check(dict(request.scope["headers"]))

    router = APIRouter(tags=[OTHER_GROUP])
    for add_routes in (kserve.add_server_routes, kserve.add_get_routes, root.add_get_routes):
        add_routes(router, model)
    app.include_router(router)
    with_key = APIRouter(dependencies=[API_KEY, Depends(check_key)] if keys.required else [], tags=[OTHER_GROUP])
    model_lists.add_get_routes(with_key, model)
    app.include_router(with_key)


def _add_openapi_route(app: FastAPI) -> None:
    """Replaces FastAPI's route, which writes the document again for each request: 20 ms of the event loop.

    It has all routes, also those that are on another port. The task routes get FastAPI's form only when the document is
    asked for: that takes 0.16 s.
    """
    url = str(app.openapi_url)
    routes = [route for route in app.router.routes if _path(route) != url]
    written: dict[str, bytes] = {}  # by the path of the model, which its routes begin with

    def write(root: str) -> bytes:
        document = FastAPI(title=app.title, summary=app.summary, version=app.version, description=app.description)
        document.servers = [{"url": root}] if root else []
        document.router.routes = [documented(route) for route in routes]
        return orjson.dumps(document.openapi())

    async def openapi(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        if root not in written:
            written[root] = await asyncio.to_thread(write, root)
        return Response(written[root], media_type=JSON)

    app.router.routes = list(routes)
    app.add_route(url, openapi, include_in_schema=False)


class SwapRequest(Body):
    model: str = Field(description="the name of the model, as in /v1/models")
    source: str = Field("", description="a hub id, a checkpoint's folder or an artifact; empty: the one before, again")


def _add_model_routes(app: FastAPI, models: Models) -> None:
    """`POST /admin/models`, if there is a key for it, and the 404 of an unknown model."""
    key, add = models.settings.admin_key.encode(), partial(app.add_api_route, include_in_schema=False)

    async def swap(request: Request) -> Response:
        if not hmac.compare_digest(find_key(dict(request.scope["headers"])), key):
            raise Unauthorized(REFUSAL)
        body = TaskRequest(request.scope, request.receive, request._send)
        check_size(body.content_length, MAX_ADMIN_BYTES, SWAP_WAY_OUT)
        content = await body.read_body(MAX_ADMIN_BYTES, SWAP_WAY_OUT)
        asked = parse(SwapRequest, content, models.settings)
        model = models.find(asked.model)
        digest, swapped = await model.swap(asked.source)
        return json_response({"model": model.name, "digest": digest, "swapped": swapped})

    async def unknown(request: Request) -> Response:
        known = ", ".join(models.group)
        if request.path_params["name"].partition("/")[0] in models.group:  # no route of this model
            raise HTTPException(404)
        raise NotFound(f"{request.url.path} names no model: this server has {known}", code="model_not_found")

    if key:
        add(ADMIN_PATH, swap, methods=["POST"])
    for prefix in (PREFIX, KSERVE):
        add(prefix + "{name:path}", unknown, methods=["GET", "POST"])


def add_error_handlers(app: FastAPI) -> None:
    for kind in (HTTPException, ServiceError, Exception):
        app.add_exception_handler(kind, _respond_error)


async def _respond_error(request: Request, error: Exception) -> Response:
    path = request.url.path
    refusal = error if isinstance(error, ServiceError) else ServiceError(UNEXPECTED)
    headers: Mapping[str, str] | None = refusal.headers
    if isinstance(error, HTTPException):
        refusal.status, headers = error.status_code, error.headers
        refusal.code = MISDIRECTED.get(refusal.status, "http")
        refusal.message = f"{request.method} {path}: {error.detail}; {_name_paths(request.app, path)}"
    if refusal.status == 405:
        routes = _routes_at(request)
        headers = {"allow": ", ".join(sorted({*routes, "OPTIONS", *(["HEAD"] if "GET" in routes else [])}))}
        refusal.message = f"{request.method} {path}: send {' or '.join(routes)}"
        if isinstance(endpoint := getattr(routes.get("POST"), "endpoint", None), TaskEndpoint):
            example = orjson.dumps(example_of(endpoint.spec.request_model)).decode()
            refusal.message = f"{request.method} {path}: send POST with a JSON body, for example {example}"
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
    content = error_shape_of(path).write(request.state.request_id, refusal)
    return Response(content, refusal.status, headers, JSON)


def _name_paths(app: FastAPI, path: str) -> str:
    """The paths of this server, and first the path that is most like `path`."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    known = list(dict.fromkeys(each.path for each in routes if each.include_in_schema or each.path == DOCUMENTATION))
    near = difflib.get_close_matches(path, known, n=1)
    others = f", and others: {app.openapi_url}" if app.openapi_url else ""
    return (f"did you mean {near[0]}? " if near else "") + f"this server has {', '.join(known)}{others}"


def _routes_at(request: Request) -> dict[str, BaseRoute]:
    """The route of each method at the path, without HEAD, which `TaskFastPath` turns into GET."""
    asked = [(method, {**request.scope, "method": method}) for method in ("GET", "POST")]
    routes: list[BaseRoute] = request.app.routes
    return {method: route for method, scope in asked for route in routes if route.matches(scope)[0] is Match.FULL}
