"""Several models in an application: the paths of each, the 404 of an unknown name, and the swap of a model."""

import hmac
from collections.abc import Awaitable, Mapping

from fastapi import FastAPI, Request, Response
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import NotFound, Unauthorized
from ..models import Models
from ..tasks.inputs import Body
from .body import parse
from .endpoint import TaskRequest
from .headers import REFUSAL, find_key
from .responses import json_response

PREFIX, KSERVE = "/models/", "/v2/models/"  # before a model's name
ADMIN_PATH = "/admin/models"
MAX_ADMIN_BYTES = 2**12


def by_name(apps: Mapping[str, ASGIApp]) -> ASGIApp:
    """Calls the application of the model that the path names, or that of the default model, which is the first."""
    default = next(iter(apps.values()))
    named = [(f"{PREFIX}{name}", f"{KSERVE}{name}/", app) for name, app in sorted(apps.items(), reverse=True)]

    def call(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope.get("path", "")
        for root, kserve, app in named if path.startswith((PREFIX, KSERVE)) else ():
            if of_model := f"{path}/".startswith(f"{root}/"):
                scope["path"], scope["root_path"] = path[len(root) :] or "/", root
            if of_model or f"{path}/".startswith(kserve):
                return app(scope, receive, send)
        return default(scope, receive, send)

    return call


class SwapRequest(Body):
    model: str = Field(description="the name of the model, as in /v1/models")
    source: str = Field("", description="a hub id, a checkpoint's folder or an artifact; empty: the one before, again")


def add_model_routes(app: FastAPI, models: Models) -> None:
    """`POST /admin/models`, if there is a key for it, and the 404 of an unknown model."""
    key = models.settings.admin_key.encode()

    async def swap(request: Request) -> Response:
        if not hmac.compare_digest(find_key(dict(request.scope["headers"])), key):
            raise Unauthorized(REFUSAL)
        body = TaskRequest(request.scope, request.receive, request._send)
        content = await body.read_body(MAX_ADMIN_BYTES, "here: send model and source alone")
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
        app.add_api_route(ADMIN_PATH, swap, methods=["POST"], include_in_schema=False)
    for prefix in (PREFIX, KSERVE):
        methods = ["GET", "POST"]
        app.add_api_route(prefix + "{name:path}", unknown, methods=methods, include_in_schema=False)
