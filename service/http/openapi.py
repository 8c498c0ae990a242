"""The OpenAPI page: every request, answer and error of the task routes, with examples."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.http.endpoints import TASKS, TaskSpec
from service.http.request import MAX_TIMEOUT_MS
from service.tasks import schemas

MODELS = (
    schemas.EmbedRequest,
    schemas.FillMaskRequest,
    schemas.NspRequest,
    schemas.EmbeddingsRequest,
    schemas.Candidate,
    schemas.PairScore,
    schemas.ErrorBody,
    schemas.PredictRequest,
    schemas.TagRequest,
    schemas.Label,
    schemas.Tag,
    schemas.EmbeddingsResponse,
    schemas.OpenAIErrorBody,
    schemas.Status,
)
REFERENCE = "#/components/schemas/{model}"
STATUSES = {
    "400": "The body is not JSON, or not UTF-8",
    "401": "An API key is set, and it is missing or wrong",
    "413": "The body, the number of inputs, or what the answer would hold is over the limit",
    "422": "Wrong fields or types, an empty input, no mask, too long without truncation",
    "429": "The line is full; Retry-After says when to try again. Nothing of the request was computed",
    "500": "A run failed, or an answer was not finite",
    "501": "This model has no such head",
    "503": "Loading, shutting down, or the deadline passed before the run",
}
AT_THE_DOOR = {  # before the path is looked at, so in one shape everywhere
    "408": "The request did not arrive in time; the connection closes",
    "431": "The request's head is over the limit; the connection closes",
}
TIMEOUT = {
    "name": "x-request-timeout-ms",
    "in": "header",
    "description": "the deadline; without it BERT_TIMEOUT_MS",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS},
}
KEY = "key"  # the name of what a caller may have to show


def openapi(app: FastAPI) -> dict[str, Any]:
    page = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    _, definitions = models_json_schema([(model, "validation") for model in MODELS], ref_template=REFERENCE)
    page.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    answers = _answers()
    page["components"]["securitySchemes"] = {
        KEY: {"type": "http", "scheme": "bearer", "description": "where BERT_API_KEY is set"}
    }
    page["paths"] = {path: {"post": _task(path, task, answers[path])} for path, task in TASKS.items()} | page["paths"]
    page["paths"]["/ready"]["get"]["responses"]["503"] = {
        "description": "Why it is not",
        "content": _json(_reference(schemas.Status)),
    }
    page["paths"]["/metrics"]["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return page


def _task(path: str, task: TaskSpec, answer: dict[str, Any]) -> dict[str, Any]:
    """A route that parses its own bytes."""
    told = schemas.OpenAIErrorBody if path.startswith("/v1/") else schemas.ErrorBody
    errors = {status: {"description": text, "content": _json(_reference(told))} for status, text in STATUSES.items()}
    errors |= {
        status: {"description": text, "content": _json(_reference(schemas.ErrorBody))}
        for status, text in AT_THE_DOOR.items()
    }
    return {
        "summary": task.summary,
        "operationId": task.name,
        "security": [{}, {KEY: []}],
        "parameters": [TIMEOUT],
        "requestBody": {"required": True, "content": _json(_reference(task.body))},
        "responses": {"200": {"description": "The answer", "content": answer}} | dict(sorted(errors.items())),
    }


def _answers() -> dict[str, Any]:
    numbers = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "example": [[0.1, -0.2, 0.3]]}
    one_mask = {"type": "array", "items": _reference(schemas.Candidate)}
    masks = {"type": "array", "items": one_mask}
    scores = _reference(schemas.PairScore)
    labels, tags = ({"type": "array", "items": _reference(schema)} for schema in (schemas.Label, schemas.Tag))
    return {
        "/embed": _json(numbers) | {"application/x-npy": {"schema": {"type": "string", "format": "binary"}}},
        "/fill-mask": _json({"anyOf": [one_mask, masks, {"type": "array", "items": {"anyOf": [one_mask, masks]}}]}),
        "/nsp": _json({"anyOf": [scores, {"type": "array", "items": scores}]}),
        "/v1/embeddings": _json(_reference(schemas.EmbeddingsResponse)),
        "/predict": _json({"anyOf": [labels, {"type": "array", "items": labels}]}),
        "/tag": _json({"anyOf": [tags, {"type": "array", "items": tags}]}),
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _reference(schema: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(model=schema.__name__)}
