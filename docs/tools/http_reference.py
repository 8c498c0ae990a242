"""The page of routes, made from the service's own OpenAPI document."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs.tools.marks import markdown_table

Document = Mapping[str, Any]
WRONG_METHOD = {"405": "The path takes another method"}  # which no documented route answers


def task_routes(document: Document) -> str:
    """Markdown: a section for each request model, with its routes and its fields."""
    sections: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        if "post" in methods:
            sections.setdefault(_request_model(methods["post"]), []).append((path, methods["post"]))
    return "\n".join(_section(name, routes, document["components"]["schemas"]) for name, routes in sections.items())


def get_routes(document: Document) -> str:
    """Markdown, one row for each route that runs no model."""
    rows = [
        (f"`GET {path.replace('sample', 'NAME')}`", methods["get"]["summary"])
        for path, methods in document["paths"].items()
        if "get" in methods and path != "/"  # which older versions of FastAPI leave out beside POST /
    ]
    return markdown_table(("route", "what it answers"), *rows)


def errors(document: Document) -> str:
    """Markdown, one row for each status that a task or its path may answer."""
    responses = document["paths"]["/embed"]["post"]["responses"]
    found = {status: one["description"] for status, one in responses.items() if status != "200"}
    return markdown_table(("status", "when"), *sorted((found | WRONG_METHOD).items()))


def _request_model(operation: Mapping[str, Any]) -> str:
    reference: str = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return reference.rpartition("/")[2]


def _section(name: str, routes: list[tuple[str, Mapping[str, Any]]], schemas: Document) -> str:
    paths = [path.replace("/sample/", "/NAME/") for path, _ in routes]
    summary = routes[0][1]["summary"]
    lines = [f"### {', '.join(paths[:1])}", "", f"{summary}.", ""]
    if len(paths) > 1:
        lines[2] += f" Also at {', '.join(f'`{path}`' for path in paths[1:])}."
    required = schemas[name].get("required", [])
    rows = [
        (
            f"`{field}`",
            _kind(one, schemas),
            _default(one, required=field in required),
            _cell(one.get("description", "")),
        )
        for field, one in schemas[name]["properties"].items()
    ]
    return "\n".join([*lines, markdown_table(("field", "type", "default", "meaning"), *rows)])


def _kind(field: Mapping[str, Any], schemas: Document) -> str:
    return _cell(" or ".join(dict.fromkeys(_kinds(field, schemas))))


def _kinds(field: Mapping[str, Any], schemas: Document) -> Iterator[str]:
    """The JSON types of a field, without null, which every optional field takes."""
    if "$ref" in field:
        yield from _kinds(schemas[field["$ref"].rpartition("/")[2]], schemas)
    elif "anyOf" in field:
        for one in field["anyOf"]:
            yield from _kinds(one, schemas)
    elif "const" in field:
        yield f"`{field['const']}`"
    elif "enum" in field:
        yield ", ".join(f"`{one}`" for one in field["enum"])
    elif field.get("type") == "array":
        inner = list(dict.fromkeys(_kinds(field.get("items", {}), schemas)))
        yield f"list of {' or '.join(inner)}" if inner else "list"
    elif field.get("type", "null") != "null":
        yield field["type"]


def _default(field: Mapping[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    value = field.get("default")
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
