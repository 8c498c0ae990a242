"""Errors in a body: reported at the deepest path, with all valid alternatives, and at bounded cost."""

from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import from_json

from packbert.service.errors import Invalid
from packbert.service.http.app import TASKS
from packbert.service.http.validation import validate


@pytest.mark.parametrize("item", ["1", "[1]", "{}", "null", "[[]]"])
def test_a_list_of_many_invalid_items_gives_few_errors(item: str) -> None:
    for path, task in TASKS.items():
        of_ids = task.name in ("embeddings", "embed", "embed_all", "embed_sparse", "root")
        items = ", ".join(["{}" if of_ids else item] * 1000)  # numbers and lists of numbers are token ids there
        for field in ("input" if task.name == "embeddings" else "inputs", "targets"):
            with pytest.raises(ValidationError) as raised:
                task.request_model.model_validate(from_json(f'{{"{field}": [{items}]}}'))
            assert raised.value.error_count() < 20, path  # some for each alternative of the first item


def test_many_unknown_fields_are_counted_and_not_listed() -> None:
    fields = {f"field {n}": n for n in range(999)}
    message = r"the body has 1000 errors, most of them unknown fields; this route accepts long, .*pooling.*inputs"
    with pytest.raises(Invalid, match=message):
        validate(TASKS["/embed"].request_model, fields)


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
        validate(TASKS[path].request_model, body)
    assert raised.value.message.startswith(hint)
