"""A dialect of vectors is a row and an example of its response."""

from pathlib import Path

import pytest

from packbert.service.http import app
from packbert.service.http.dialects.shapes import Explained, like
from packbert.service.http.dialects.spec import TaskSpec
from packbert.service.http.dialects.vectors import VectorDialect
from packbert.service.tasks.inputs import FailFastList, ModelField, TruncationFields
from tests.service.in_process import ask, serve_in_process


class Request(ModelField, TruncationFields):
    sentences: FailFastList[str]
    output_dimension: int | None = None


RESPONSE = like("Response", "Its vectors.", rows=Explained([[0.1, -0.2]], "unit length"), tokens=7)
DIALECT = VectorDialect(
    lambda request: request.sentences,
    lambda tasks, request, vectors, result: {"rows": vectors, "tokens": result.tokens},
    truncates=True,
)
ROW = TaskSpec("embeddings", DIALECT.task, Request, RESPONSE, "Vectors in another format", operation="another")


def test_a_row_and_an_example_make_a_dialect_of_vectors(bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app.TASKS, "/another/embed", ROW)
    texts = ["the cat sat", "the cat " * 400]
    with serve_in_process(bert_artifact) as client:
        answer = ask(client, "/another/embed", sentences=texts, output_dimension=8)
        known = ask(client, "/v1/embeddings", input=texts, dimensions=8, truncate=True)
        document = client.get("/openapi.json").json()
    assert answer["rows"] == [one["embedding"] for one in known["data"]]
    assert answer["tokens"] == known["usage"]["total_tokens"]
    documented = document["components"]["schemas"]["Response"]
    assert documented["required"] == ["rows", "tokens"]
    assert documented["properties"]["rows"]["items"]["items"]["type"] == "number"
    assert "/another/embed" in document["paths"]
