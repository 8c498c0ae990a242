"""All task routes, by path, and the modules of dialects with further GET routes."""

from collections.abc import Callable

from fastapi import APIRouter

from service.backend import Backend
from service.http.dialects import infinity, native, openai, rerank, root, tei, tokens, vllm
from service.http.dialects.errors import OPENAI_ERROR, SERVICE_ERROR, ErrorShape
from service.http.dialects.kserve import routes
from service.http.dialects.spec import TaskSpec

TASKS = {
    **native.ROUTES,
    **openai.ROUTES,
    **tei.ROUTES,
    **rerank.ROUTES,
    **root.ROUTES,
    **infinity.ROUTES,
    **vllm.ROUTES,
    **tokens.ROUTES,
}
AddGetRoutes = Callable[[APIRouter, Backend], None]
GET_ROUTES: tuple[AddGetRoutes, ...] = (routes.add_get_routes, root.add_get_routes)
GET_ROUTES_WITH_KEY: tuple[AddGetRoutes, ...] = (openai.add_get_routes, infinity.add_get_routes)
OPENAI_SEGMENTS = {  # of the paths of OpenAI's API and of Azure's, under a right or a wrong base URL
    *("v1", "openai", "embeddings", "models", "completions", "responses", "moderations", "files", "batches"),
    *("audio", "images", "fine_tuning", "assistants", "threads", "vector_stores", "uploads"),
}


def task_routes(backend: Backend) -> dict[str, TaskSpec]:
    """`TASKS`, and the routes whose paths hold the model's name."""
    return TASKS | routes.task_routes(backend)


def error_shape_of(path: str) -> ErrorShape:
    """The shape of an error that no task raised, such as a 404 or a 405."""
    if path in TASKS:
        return TASKS[path].error_shape
    first, *others = path.removeprefix("/").split("/")
    is_openai = first != "v2" and not OPENAI_SEGMENTS.isdisjoint((first, *others))  # /v2: KServe and Cohere
    return OPENAI_ERROR if is_openai else SERVICE_ERROR
