"""Answers as bytes: the shape of an error under OpenAI's path."""

import json

import pytest

from service.answers import error_bytes


@pytest.mark.parametrize(
    ("status", "kind"), [(422, "invalid_request_error"), (429, "invalid_request_error"), (500, "server_error"), (503, "server_error")]
)
def test_under_v1_an_error_has_openais_shape(status: int, kind: str):
    content = json.loads(error_bytes("/v1/embeddings", "mine", status, "a sentence", "code", 3))
    assert content == {"error": {"message": "a sentence", "type": kind, "param": None, "code": "code"}}
