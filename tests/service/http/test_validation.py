"""Errors in a body: reported at the deepest path, with all valid alternatives, and at bounded cost."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from packbert.service.errors import Invalid
from packbert.service.http.app import TASKS
from packbert.service.http.dialects import kserve
from packbert.service.http.validation import example_of, parse
from packbert.service.tasks import inputs as schemas
from packbert.service.tasks.fill_mask import FillMaskRequest


@pytest.mark.parametrize("item", ["1", "[1]", "{}", "null", "[[]]"])
def test_a_list_of_many_invalid_items_gives_few_errors(item: str) -> None:
    for path, task in TASKS.items():
        of_ids = task.name in ("embeddings", "embed", "embed_all", "embed_sparse", "root")
        items = ", ".join(["{}" if of_ids else item] * 1000)  # numbers and lists of numbers are token ids there
        for field in ("input" if task.name == "embeddings" else "inputs", "targets"):
            with pytest.raises(ValidationError) as raised:
                task.request_model.model_validate_json(f'{{"{field}": [{items}]}}')
            assert raised.value.error_count() < 20, path  # some for each alternative of the first item


def test_many_unknown_fields_are_counted_and_not_listed() -> None:
    with pytest.raises(
        Invalid,
        match=r"the body has 1000 errors, most of them unknown fields; this route accepts long, .*pooling.*inputs",
    ):
        parse(schemas.EmbedRequest, json.dumps({f"field {n}": n for n in range(999)}).encode())


@pytest.mark.parametrize(
    ("schema", "body", "message", "index"),
    [
        (schemas.EmbedRequest, {"inputs": "a", "k" * 10_000: 1}, "k" * 100 + ": there is no such field", None),
        (schemas.NspRequest, {"inputs": [["a", "b"], ["a", 1]]}, "inputs.1.1: Input should be a valid string", 1),
        (
            FillMaskRequest,
            {"inputs": "[MASK]", "targets": ["a", 1]},
            "targets.1: Input should be a valid string",
            None,
        ),
    ],
)
def test_an_error_names_its_path_and_the_valid_alternatives(
    schema: type[BaseModel], body: Any, message: str, index: int | None
) -> None:
    with pytest.raises(Invalid) as raised:
        parse(schema, json.dumps(body).encode())
    assert raised.value.message.startswith(message)
    assert raised.value.index == index


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        ("/embed", {"text": "x"}, "text: did you mean inputs?"),
        ("/nsp", {"sentences": ["x", "y"]}, "sentences: did you mean inputs?"),
        ("/v1/embeddings", {"text": "x"}, "text: did you mean input?"),
        ("/rerank", {"query": "x", "docs": ["y"]}, "docs: did you mean documents?"),
        ("/embed", {"inputs": "x", "parameters": {"normalise": True}}, "parameters.normalise: did you mean normalize?"),
    ],
)
def test_an_unknown_field_names_the_field_that_was_probably_meant(path: str, body: Any, hint: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse(TASKS[path].request_model, json.dumps(body).encode())
    assert raised.value.message.startswith(hint)


def test_an_unknown_field_like_no_other_names_none() -> None:
    with pytest.raises(Invalid) as raised:
        parse(schemas.EmbedRequest, b'{"inputs": "x", "zzzz": 1}')
    assert "did you mean" not in raised.value.message


@pytest.mark.parametrize("task", [*TASKS.values(), kserve.INFER], ids=lambda task: task.name)
def test_the_example_of_each_route_is_a_body_that_it_accepts(task: Any) -> None:
    example = example_of(task.request_model)
    assert example
    assert parse(task.request_model, json.dumps(example).encode())


def test_a_null_of_a_field_with_a_default_is_not_set() -> None:
    plain = parse(schemas.EmbedRequest, b'{"inputs": ["a"]}')
    assert parse(schemas.EmbedRequest, b'{"inputs": ["a"], "truncation_direction": null, "pieces": null}') == plain
    for body in (b"null", b'{"inputs": null}', b'{"inputs": "a", "truncation_direction": null, "pieces": 1}'):
        with pytest.raises(Invalid, match=r"body|inputs|pieces: Input should be a valid boolean"):
            parse(schemas.EmbedRequest, body)
