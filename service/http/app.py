"""The FastAPI application: all routes."""

import asyncio
import difflib
from collections.abc import Awaitable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import UNEXPECTED, ServiceError
from ..models import Models, ServedModel
from ..observability.scrape import OPENMETRICS
from ..observability.series import MISDIRECTED
from ..tasks.inputs import Status
from .dialects import kserve, model_lists, native, rerank, root, scores, vectors
from .dialects.spec import OPENAI_ERROR, SERVICE_ERROR, ErrorShape, TaskSpec
from .endpoint import TaskEndpoint, TaskFastPath, make_endpoint
from .headers import ApiKeys
from .models import ADMIN_PATH, PREFIX, add_model_routes, by_name
from .openapi import (
    API_KEY,
    OTHER_GROUP,
    PROTOCOL_ERRORS,
    SERVICE,
    InfoResponse,
    Readiness,
    Responses,
    TaskRoute,
)
from .page.routes import open_page
from .responses import JSON, json_response
from .validation import example_of

TASKS = {
    **native.ROUTES,
    **vectors.ROUTES,
    **native.TEI_ROUTES,
    **rerank.ROUTES,
    **model_lists.ROUTES,
    **root.ROUTES,
    **scores.ROUTES,
    **native.TOKEN_ROUTES,
}
OPENAI_SEGMENTS = {  # of the paths of OpenAI's API and of Azure's, under a right or a wrong base URL
    *("v1", "openai", "embeddings", "models", "completions", "responses", "moderations", "files", "batches"),
    *("audio", "images", "fine_tuning", "assistants", "threads", "vector_stores", "uploads"),
}
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
    keys = keys or ApiKeys(models.settings)
    admin_port, metrics = models.settings.admin_port, models.metrics
    endpoints: dict[str, TaskEndpoint] = {}
    public: dict[str, ASGIApp] = {}
    admin: dict[str, ASGIApp] = {}
    for name, model in models.group.items():
        app, tasks = _make_app(model, keys, endpoints), task_routes(model)
        public[name] = _finish(take_public_routes(app) if admin_port else app, tasks)
        if admin_port:
            admin[name] = _finish(app, {})
    fast = TaskFastPath(by_name(public), endpoints, metrics)
    return split_ports(admin_port, admin=TaskFastPath(by_name(admin), {}, metrics), public=fast) if admin_port else fast


def _make_app(model: ServedModel, keys: ApiKeys, endpoints: dict[str, TaskEndpoint]) -> FastAPI:
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
        endpoints[f"{named_path}{path}".rstrip("/")] = make_endpoint(model, spec, keys, by_body=False)
        unnamed = make_endpoint(model, spec, keys, by_body=path in TASKS and model.models.can_swap)
        endpoints.setdefault(path, unnamed)
        app.router.routes.append(Route(path, unnamed, methods=["POST"]))
    add_operational_routes(app, model)
    _add_dialects_get_routes(app, model, keys)
    _add_openapi_route(app)
    if model.models.can_swap:
        add_model_routes(app, model.models)
    return app


def split_ports(admin_port: int, *, admin: ASGIApp, public: ASGIApp) -> ASGIApp:
    """An application for two ports: `admin` answers on `admin_port`, `public` on any other.

    The port is that of the socket which accepted the connection, so no header of a request chooses it.
    """

    def call(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_public = scope["type"] == "http" and scope["server"][1] != admin_port
        return (public if is_public else admin)(scope, receive, send)

    return call


def take_public_routes(app: FastAPI) -> FastAPI:
    """An application with the routes of `app` that are not for BERT_ADMIN_PORT; `app` keeps those and the probes."""
    public = FastAPI(openapi_url=None, redirect_slashes=False)
    public.router.routes = [route for route in app.routes if not _path(route).startswith(ADMIN_PATHS)]
    app.router.routes = [route for route in app.routes if _path(route).startswith((*ADMIN_PATHS, *PROBE_PATHS))]
    return public


def _path(route: BaseRoute) -> str:
    return str(getattr(route, "path", ""))


def _finish(app: FastAPI, tasks: Mapping[str, TaskSpec]) -> FastAPI:
    add_error_handlers(app, tasks)
    app.add_middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES)  # pages and metrics: not the fast path
    return app


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
        reason = await model.ready()
        content: dict[str, Any] = {"status": reason or "ready"}
        if degraded := model.artifact.degraded:
            content["degraded"] = degraded
        if of_each := await model.readiness():
            content["models"] = {name: one or "ready" for name, one in of_each.items()}
        return json_response(content, 503 if reason else 200)

    @get("/info", response_model=InfoResponse, summary="The model, its heads and limits, the execution provider")
    async def info() -> Response:
        content = model.current.info()
        return json_response(content | native.info_keys(content) | {"models": list(model.group)})

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
        document.router.routes = [_documented(route) for route in routes]
        return orjson.dumps(document.openapi())

    async def openapi(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        if root not in written:
            written[root] = await asyncio.to_thread(write, root)
        return Response(written[root], media_type=JSON)

    app.router.routes = list(routes)
    app.add_route(url, openapi, include_in_schema=False)


def _documented(route: BaseRoute) -> BaseRoute:
    """A task's route as FastAPI documents it; any other route as it is, also if it shares its path with a task."""
    if isinstance(route, Route) and isinstance(route.endpoint, TaskEndpoint):
        return TaskRoute(route.path, route.endpoint)
    return route


def add_error_handlers(app: FastAPI, tasks: Mapping[str, TaskSpec]) -> None:
    async def respond_error(request: Request, error: Exception) -> Response:
        path = request.url.path
        refusal = error if isinstance(error, ServiceError) else ServiceError(UNEXPECTED)
        headers: Mapping[str, str] | None = refusal.headers
        if isinstance(error, HTTPException):
            refusal.status, headers = error.status_code, error.headers
            refusal.code = MISDIRECTED.get(refusal.status, "http")
            refusal.message = f"{request.method} {path}: {error.detail}; {_name_paths(app, path)}"
        if refusal.status == 405:
            methods = _methods_at(app, request.scope)
            headers = {"allow": ", ".join(sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])}))}
            refusal.message = f"{request.method} {path}: send {' or '.join(methods)}"
            if path in tasks:
                example = orjson.dumps(example_of(tasks[path].request_model)).decode()
                refusal.message = f"{request.method} {path}: send POST with a JSON body, for example {example}"
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=headers)
        content = error_shape_of(path).write(request.state.request_id, refusal)
        return Response(content, refusal.status, headers, JSON)

    app.add_exception_handler(HTTPException, respond_error)
    app.add_exception_handler(ServiceError, respond_error)
    app.add_exception_handler(Exception, respond_error)


def _name_paths(app: FastAPI, path: str) -> str:
    """The paths of this server, and first the path that is most like `path`."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    known = list(dict.fromkeys(each.path for each in routes if each.include_in_schema or each.path == DOCUMENTATION))
    near = difflib.get_close_matches(path, known, n=1)
    others = f", and others: {app.openapi_url}" if app.openapi_url else ""
    return (f"did you mean {near[0]}? " if near else "") + f"this server has {', '.join(known)}{others}"


def _methods_at(app: FastAPI, scope: Scope) -> list[str]:
    """The methods that a route at the path of `scope` takes, without HEAD, which `TaskFastPath` turns into GET."""
    asked = ((method, {**scope, "method": method}) for method in ("GET", "POST"))
    return [method for method, one in asked if any(route.matches(one)[0] is Match.FULL for route in app.routes)]
