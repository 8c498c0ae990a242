"""Makes a request of the content of a body, and a sentence of pydantic's errors."""

import difflib
import re
from collections.abc import Iterator
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..errors import Invalid

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[int | str, ...]  # from the body down to a value in it
MAX_ERRORS = 100  # formatting the errors of a million unknown fields would take seconds
MAX_PATH_CHARACTERS = 100  # a field's name may be as long as the body
MAX_HINTS = 3  # each costs up to a millisecond
MAX_NAME_CHARACTERS = 40  # of an unknown field that is compared with the known fields
TEXT_FIELDS = ("inputs", "input", "texts", "prompt", "query")  # the dialects' names of the texts
EXAMPLE_FIELDS = {"texts", "documents", "data", "text_1", "text_2", "choices"}  # optional because there are other forms
TEXT_NAMES = {
    *("text", "texts", "input", "inputs", "sentence", "sentences", "source_sentence", "content", "query", "data"),
}
INPUTS = ("input", "texts", "documents")  # the fields whose elements are a request's inputs
MESSAGES = {  # instead of pydantic's, which speak of Python and of inputs
    "list_type": "Input should be a valid array",
    "dict_type": "Input should be an object",
    "model_type": "Input should be an object",
    "extra_forbidden": "there is no such field",
}
# pydantic adds such a tag, which is not in the body, to the location for each alternative of a union
UNION_TAG = re.compile(
    r"str|int|bool|literal\[.*\]|Pair|Document|SimilarityInputs|QuestionAndContext|PromptAndChoices|list\[.*\]"
)


def validate(schema: type[Model], fields: Any) -> Model:
    """The request of JSON that is parsed. Raises Invalid if it does not match `schema`.

    Nulls of unknown fields, and of fields with a default, are not set: they are removed from `fields`.
    """
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        nulls, errors = _unset_nulls(schema, error), [_to_invalid(schema, error)]
    if nulls and all(_remove(fields, path) for path in nulls):
        return validate(schema, fields)
    # Outside the except block, which would keep pydantic's errors: they may be many. Without a name in this frame, else
    # the frame and the error would keep each other, and the body, until a collection.
    raise errors.pop()


def _remove(fields: Any, path: Path) -> bool:
    """Removes the value at `path`; False if there is none."""
    parent = fields
    for part in path[:-1]:  # None if a part names an alternative of a union
        parent = parent.get(part) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or path[-1] not in parent:
        return False
    del parent[path[-1]]
    return True


def _unset_nulls(schema: type[BaseModel], error: ValidationError) -> list[Path]:
    """The places of nulls for unknown fields, or for fields with a default: clients send them for what is not set.

    They are looked for only in a body that did not match: other requests pay nothing for it.
    """
    if error.error_count() > MAX_ERRORS:
        return []
    errors = error.errors(include_url=False, include_context=False)
    nulls = [(each["loc"], each["type"]) for each in errors if each["input"] is None]
    return [loc for loc, kind in nulls if kind == "extra_forbidden" or _has_default(schema, loc)]


def _has_default(schema: type[BaseModel], path: Path) -> bool:
    model = _model_at(schema, path[:-1])
    field = model.model_fields.get(str(path[-1])) if path and model else None
    return field is not None and not field.is_required()


def _to_invalid(schema: type[BaseModel], error: ValidationError) -> Invalid:
    """Reports the error deepest in the body, with all alternatives that would have been valid there."""
    fields = f"this route accepts {', '.join(schema.model_fields)}"
    if error.error_count() > MAX_ERRORS:
        return Invalid(f"the body has {error.error_count()} errors, most of them unknown fields; {fields}")
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    paths: list[Path] = [tuple(part for part in each["loc"] if not UNION_TAG.fullmatch(str(part))) for each in errors]
    deepest = max(paths, key=len)
    first, *others = dict.fromkeys(
        MESSAGES.get(each["type"], each["msg"]) for each, path in zip(errors, paths, strict=True) if path == deepest
    )
    expected = " or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    unknown = [path for each, path in zip(errors, paths, strict=True) if each["type"] == "extra_forbidden"]
    meant = {path: _meant_by(schema, path) for path in list(dict.fromkeys(unknown))[:MAX_HINTS]}
    hints = [f"{_show(path)}: did you mean {field}?" for path, field in meant.items() if field]
    shown, is_missing = _show(deepest), first == "Field required"
    if meant.get(deepest) or (is_missing and deepest in {(*path[:-1], field) for path, field in meant.items()}):
        message, more = " ".join(hints), f" ({fields})"  # a hint explains the error
    else:
        message, more = " ".join([*hints, f"{shown}: {expected}"]), f"; {fields}"
    unknown_field = len(deepest) < 2 and bool(unknown)
    index = next((part for part in deepest if isinstance(part, int)), None) if shown.startswith(INPUTS) else None
    return Invalid(message + more * unknown_field, index=index)


def _show(path: Path) -> str:
    return ".".join(map(str, path))[:MAX_PATH_CHARACTERS] or "body"


def _meant_by(schema: type[BaseModel], path: Path) -> str:
    """The field that the unknown field at `path` probably means; empty if none is like it."""
    name, model = str(path[-1]), _model_at(schema, path[:-1])
    known = list(model.model_fields) if model else []
    near = difflib.get_close_matches(name[:MAX_NAME_CHARACTERS], known, n=1)
    if name.lower() in TEXT_NAMES:
        near = near or [field for field in TEXT_FIELDS if field in known][:1]
    return near[0] if near else ""


def _model_at(schema: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model of the object at `path`; None if it is no object, or if several models are possible."""
    model: type[BaseModel] | None = schema
    for name in path:
        if isinstance(name, str) and model is not None:
            field = model.model_fields.get(name)
            models = list(_models_in(field.annotation)) if field else []
            model = models[0] if len(models) == 1 else None
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def example_of(schema: type[BaseModel]) -> dict[str, Any]:
    """A small body that `schema` accepts: its required fields, and those of texts that have an example."""
    required = {name for name, field in schema.model_fields.items() if field.is_required()}
    texts = EXAMPLE_FIELDS if required else {*EXAMPLE_FIELDS, "prompt"}
    examples = {
        name: _example(field)
        for name, field in schema.model_fields.items()
        if name in required or (name in texts and field.examples)
    }
    found = {name: example for name, example in examples.items() if example is not None}
    return found or {"inputs": _example(schema.model_fields["inputs"])}


def _example(field: FieldInfo) -> Any:
    if field.examples:
        return field.examples[0]
    models = list(_models_in(field.annotation))
    example = example_of(models[0]) if models else None
    return [example] if get_origin(field.annotation) is list else example
