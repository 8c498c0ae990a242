"""Errors in a body: reported at the deepest path, with all valid alternatives, and at bounded cost."""

import pytest
from pydantic import ValidationError
from pydantic_core import from_json

from packbert.service.http.app import TASKS


@pytest.mark.parametrize("item", ["1", "[1]", "{}", "null", "[[]]"])
def test_a_list_of_many_invalid_items_gives_few_errors(item: str) -> None:
    for path, task in TASKS.items():
        of_ids = task.name in ("embeddings", "embed", "embed_all", "embed_sparse", "root")
        items = ", ".join(["{}" if of_ids else item] * 1000)  # numbers and lists of numbers are token ids there
        for field in ("input" if task.name == "embeddings" else "inputs", "targets"):
            with pytest.raises(ValidationError) as raised:
                task.request_model.model_validate(from_json(f'{{"{field}": [{items}]}}'))
            assert raised.value.error_count() < 20, path  # some for each alternative of the first item
