"""`POST /`, the artifact's own task as text-embeddings-inference and hosted endpoints run it; `GET /` and `/ping`.

The labels of a single text are a list of lists too, zero-shot labels a list of label and score, and tags are grouped
(aggregation simple): that is what the clients of hosted endpoints read. All else is as on the task's own route.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ...errors import ServiceError
from ...models import ServedModel
from ...settings import RootTask
from ...tasks.answer import QuestionAndContext
from ...tasks.choose import PromptAndChoices
from ...tasks.fill_mask import FillMaskRequest
from ...tasks.flow import Task, Tasks
from ...tasks.inputs import Body, EmbedRequest, FailFastList, Pair, SimilarityInputs, Status
from ...tasks.zero_shot import as_elements
from ..page.routes import open_page
from ..responses import json_response
from ..validation import validate
from . import native, scores
from .spec import TaskSpec, type_like

TASK_ROUTES = native.ROUTES | native.TEI_ROUTES | scores.RERANK_ROUTES
SPECS: dict[RootTask, TaskSpec] = {task: TASK_ROUTES[f"/{task}"] for task in get_args(RootTask)}
OF_FIELDS: dict[str, RootTask] = {"query": "rerank", "question": "answer", "choices": "choose"}  # no other has these
OF_INPUTS: dict[type, RootTask] = {  # the form of the inputs -> the task that alone takes it
    SimilarityInputs: "similarity",
    QuestionAndContext: "answer",
    PromptAndChoices: "choose",
}


class RootRequest(Body):
    """The request of the task that answers it (BERT_ROOT_TASK, or by heads and fields)."""

    model_config = ConfigDict(extra="allow")

    inputs: (
        str
        | Pair
        | SimilarityInputs
        | QuestionAndContext
        | PromptAndChoices
        | FailFastList[str | int | Pair | FailFastList[str | int] | QuestionAndContext | PromptAndChoices]
        | None
    ) = Field(None, examples=["my dog is hairy"], description="the texts: as on the route of the task")
    parameters: dict[str, Any] | None = Field(None, description="as on the route of the task")

    @model_validator(mode="after")
    def _require_inputs(self) -> Self:
        if self.inputs is None and not any((self.model_extra or {}).get(name) is not None for name in OF_FIELDS):
            raise PydanticCustomError("missing", "send inputs, a text or a list of texts; or query and texts to rank")
        return self


async def _root(tasks: Tasks, request: RootRequest) -> Task:
    """The artifact's own task, as text-embeddings-inference and hosted endpoints answer their clients."""
    fields = set_fields(request)
    task, given = choose_task(tasks, fields), _names(fields)
    if task == "predict":
        fields.setdefault("parameters", {})
    elif task == "tag" and "aggregation_strategy" not in given:
        fields.get("parameters", fields)["aggregation_strategy"] = "simple"
    spec = SPECS[task]
    try:
        parsed = validate(spec.request_model, fields)
    except ServiceError as error:
        error.message += f"; `POST /` is {task} for this request (BERT_ROOT_TASK names one for all)"
        raise
    tasks.require_head(spec.head)
    found = await spec.task(tasks, parsed)
    return found.then(lambda value, _: as_elements(value)) if "candidate_labels" in given else found


def set_fields(request: RootRequest) -> dict[str, Any]:
    """The fields that are not null, also of those under `parameters`."""
    fields = {name: value for name, value in request if value is not None}
    if request.parameters is not None:
        fields["parameters"] = {name: value for name, value in request.parameters.items() if value is not None}
    return fields


def _names(fields: Mapping[str, Any]) -> set[str]:
    """Of the fields at the top and of those under `parameters`."""
    return {*fields, *fields.get("parameters", {})}


def choose_task(tasks: Tasks, fields: Mapping[str, Any]) -> RootTask:
    """The task that alone takes such a request, else BERT_ROOT_TASK, else the task of the model's heads.

    A model with a fill-mask head gives vectors too: a request asks it for words if each text has the mask token, or if
    it has a field of /fill-mask.
    """
    heads, inputs = tasks.manifest.heads, fields.get("inputs")
    first = inputs[0] if isinstance(inputs, list) and inputs else inputs
    if found := next((task for field, task in OF_FIELDS.items() if field in fields), OF_INPUTS.get(type(first))):
        return found
    if "candidate_labels" in _names(fields):
        return "predict"
    if tasks.settings.root_task is not None:
        return tasks.settings.root_task
    if "labels" in heads:
        return "predict"
    if "tags" in heads:
        return "tag"
    return "fill-mask" if "fill_mask" in heads and _asks_for_words(tasks, fields) else "embed"


def _asks_for_words(tasks: Tasks, fields: Mapping[str, Any]) -> bool:
    of_vectors, of_words = EmbedRequest.model_fields.keys(), FillMaskRequest.model_fields.keys()
    if own := _names(fields) & (of_vectors ^ of_words):
        return not own.isdisjoint(of_words)
    inputs = fields["inputs"]
    texts = inputs if isinstance(inputs, list) else [inputs]
    mask = tasks.tokenizer.mask_token
    return bool(texts) and all(isinstance(text, str) and mask in text for text in texts)


ROOT = TaskSpec("root", _root, type_like(tuple(spec.response_model for spec in SPECS.values())))
ROUTES = {"/": ROOT, "/invocations": replace(ROOT, operation="invocations")}  # of SageMaker


def add_get_routes(app: APIRouter, model: ServedModel) -> None:
    page = open_page(model.settings)
    if page is not None:

        @app.get("/page/{name:path}", include_in_schema=False)
        async def page_file(request: Request, name: str) -> Response:
            return await page.respond(request, name)

    @app.get("/", response_model=Status, summary="The process responds; a browser gets the page or is sent to /docs")
    async def home(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", "") or model.settings.admin_port:
            return json_response({"status": "ok"}, headers={"vary": "accept"})
        target = "docs"  # relative, as links of the page are: a proxy may add a path
        if not request.scope["raw_path"].endswith(b"/"):  # the path of a model's name
            target = f"{request.scope['root_path'].rpartition('/')[2]}/"
        elif page is not None:
            return await page.respond_home(request)
        return RedirectResponse(target, headers={"vary": "accept"})

    @app.get("/ping", response_model=Status, summary="As /ready: SageMaker asks here whether to send requests")
    async def ping() -> Response:
        reason = model.ready()
        return json_response({"status": reason or "ready"}, 503 if reason else 200)
