"""The OpenAPI page: every request, answer and error of the task routes, with examples."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service import schemas
from service.routes import TASKS, Task

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
)
REFERENCE = "#/components/schemas/{model}"
STATUSES = {
    "400": "The body is not JSON, or not UTF-8",
    "401": "An API key is set, and it is missing or wrong",
    "413": "The body, or the number of inputs, is over the limit",
    "422": "Wrong fields or types, an empty input, no mask, too long without truncation",
    "429": "The line is full; Retry-After says when to try again. Nothing of the request was computed",
    "500": "A run failed, or an answer was not finite",
    "501": "This model has no such head",
    "503": "Loading, shutting down, or the deadline passed before the run",
}


def openapi(app: FastAPI) -> dict[str, Any]:
    page = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    _, definitions = models_json_schema([(model, "validation") for model in MODELS], ref_template=REFERENCE)
    page.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    answers = _answers()
    page["paths"] = {path: {"post": _task(task, answers[path])} for path, task in TASKS.items()} | page["paths"]
    return page


def _task(task: Task, answer: dict[str, Any]) -> dict[str, Any]:
    """A route that parses its own bytes."""
    errors = {status: {"description": text, "content": _json(_reference(schemas.ErrorBody))} for status, text in STATUSES.items()}
    return {
        "summary": task.summary,
        "operationId": task.name,
        "requestBody": {"required": True, "content": _json(_reference(task.body))},
        "responses": {"200": {"description": "The answer", "content": answer}} | errors,
    }


def _answers() -> dict[str, Any]:
    numbers = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "example": [[0.1, -0.2, 0.3]]}
    candidates = {"type": "array", "items": _reference(schemas.Candidate)}
    scores = _reference(schemas.PairScore)
    labels, tags = ({"type": "array", "items": _reference(schema)} for schema in (schemas.Label, schemas.Tag))
    return {
        "/embed": _json(numbers) | {"application/x-npy": {"schema": {"type": "string", "format": "binary"}}},
        "/fill-mask": _json({"anyOf": [candidates, {"type": "array", "items": candidates}]}),
        "/nsp": _json({"anyOf": [scores, {"type": "array", "items": scores}]}),
        "/v1/embeddings": _json({"type": "object"}),
        "/predict": _json({"anyOf": [labels, {"type": "array", "items": labels}]}),
        "/tag": _json({"anyOf": [tags, {"type": "array", "items": tags}]}),
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _reference(schema: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(model=schema.__name__)}
