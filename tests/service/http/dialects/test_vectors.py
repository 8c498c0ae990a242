"""Vectors in the formats of other servers, as their packages ask for them; a dialect is a row and an example."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from packbert.service.http import app
from packbert.service.http.dialects.spec import Explained, TaskSpec, like
from packbert.service.http.dialects.vectors import embed_for
from packbert.service.tasks.flow import Task, TaskResult, Tasks
from packbert.service.tasks.inputs import FailFastList, ModelField, TruncationFields
from packbert.service.tokenization.encoding import NO_SPANS, EncodedText
from tests.service.in_process import InProcessClient, ask, serve_in_process

TEXTS = ["the cat sat", "我爱北京。", ""]
LONG = "the cat sat " * 300
TYPES = ["float", "base64", "int8", "uint8", "binary", "ubinary"]


def vectors(client: InProcessClient, **body: Any) -> np.ndarray:
    return np.array([one["embedding"] for one in ask(client, "/v1/embeddings", **body)["data"]], np.float32)


@pytest.mark.parametrize("version", ["1", "2"])
def test_vectors_are_those_of_v1_embeddings_in_each_type(encoder: InProcessClient, version: str) -> None:
    body = {"model": "any", "texts": TEXTS, "input_type": "search_document", "embedding_types": [*TYPES, "float"]}
    found = ask(encoder, f"/v{version}/embed", **body)
    expected, types = vectors(encoder, input=TEXTS), found["embeddings"]
    assert [*types] == TYPES
    assert np.array_equal(np.array(types["float"], np.float32), expected)
    decoded = [np.frombuffer(base64.b64decode(one), "<f4") for one in types["base64"]]
    assert np.array_equal(decoded, expected)
    assert np.array_equal(np.array(types["ubinary"]), np.packbits(expected > 0, axis=-1))
    assert np.array_equal(np.array(types["binary"]), np.array(types["ubinary"]) - 128)
    int8 = np.array(types["int8"])
    assert np.array_equal(np.array(types["uint8"]), int8 + 128)
    assert np.array_equal(np.abs(int8).max(axis=-1), [127] * len(TEXTS))
    cosines = (int8 * expected).sum(axis=-1) / np.linalg.norm(int8, axis=-1)
    assert cosines.min() > 0.999
    assert (found["texts"], found["response_type"]) == (TEXTS, "embeddings_by_type")
    assert found["meta"]["api_version"] == {"version": version}
    assert found["meta"]["billed_units"]["input_tokens"] > len(TEXTS)


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed", "/v1/embeddings"])
def test_truncate_takes_the_words_of_cohere_and_nvidia(encoder: InProcessClient, path: str) -> None:
    field = "input" if path == "/v1/embeddings" else "texts"
    for word, same in (("END", "right"), ("START", "left")):
        expected = vectors(encoder, input=[LONG], truncate=True, truncation_direction=same)
        found = ask(encoder, path, **{field: [LONG]}, truncate=word)
        own = found["data"][0]["embedding"] if field == "input" else found["embeddings"]
        assert np.array_equal(
            np.array(own["float"] if path == "/v2/embed" else own, np.float32).reshape(1, -1), expected
        )
    if field == "texts":
        assert (
            ask(encoder, path, texts=[LONG])["embeddings"]
            == ask(encoder, path, texts=[LONG], truncate="END")["embeddings"]
        )
    refused = encoder.post(path, json={field: [LONG], "truncate": "NONE"})
    assert refused.status_code == 422
    assert "this model takes at most" in refused.text
    assert "'NONE', 'START' or 'END'" in encoder.post(path, json={field: ["a"], "truncate": "LEFT"}).text


class Request(ModelField, TruncationFields):
    sentences: FailFastList[str]
    output_dimension: int | None = None


RESPONSE = like("Response", "Its vectors.", rows=Explained([[0.1, -0.2]], "unit length"), tokens=7)


async def embed_in_rows(tasks: Tasks, request: Request) -> Task:
    """Vectors in another format."""

    def show(vectors: np.ndarray, result: TaskResult) -> dict[str, Any]:
        return {"rows": vectors, "tokens": result.tokens}

    return await embed_for(tasks, request, request.sentences, show, truncates=True)


ROW = TaskSpec("embeddings", embed_in_rows, RESPONSE, operation="another")


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


EMPTY = ["", " ", "\u200b"]


def run_model(client: InProcessClient, text: Any, output: str) -> Any:
    """The model's output for the ids that the tokenizers library gives to a text or pair."""
    tokenizer = Tokenizer.from_file(str(client.backend.artifact.folder / "tokenizer.json"))
    encoding = tokenizer.encode(text) if isinstance(text, str) else tokenizer.encode(*text)
    one = EncodedText(
        ids=np.array(encoding.ids, np.int32),
        types=np.array(encoding.type_ids, np.int32),
        outputs=frozenset({output}),
        truncated=False,
        empty=False,
        spans=NO_SPANS,
    )
    queue: Any = client.backend.tasks.queue
    (row,) = queue.run([one])
    return row[output][0]


@pytest.mark.parametrize("text", EMPTY)
def test_a_pair_with_one_empty_side_is_scored(scorer: InProcessClient, text: str) -> None:
    logits = [run_model(scorer, ("the cat", one), "labels")[0] for one in ("a dog", text)]
    found = ask(scorer, "/rerank", query="the cat", texts=["a dog", text], raw_scores=True)
    assert {one["index"]: one["score"] for one in found} == dict(
        enumerate(pytest.approx(one, abs=1e-4) for one in logits)
    )
    found = ask(scorer, "/v1/rerank", query=text, documents=["a dog", text])
    assert len(found["results"]) == 2
    found = ask(scorer, "/score", text_1=text, text_2=["a dog", text], use_activation=False)
    logit = run_model(scorer, (text, "a dog"), "labels")[0]
    assert found["data"][0]["score"] == pytest.approx(logit, abs=1e-4)
    assert len(ask(scorer, "/classify", input=["a", text])["data"]) == 2


@pytest.mark.parametrize("text", EMPTY)
@pytest.mark.parametrize(("path", "field"), [("/v1/embeddings", "embedding"), ("/pooling", "data")])
def test_the_vector_of_an_empty_text_is_that_of_its_special_tokens(
    encoder: InProcessClient, text: str, path: str, field: str
) -> None:
    expected = run_model(encoder, text, encoder.backend.tasks.embedding.pooling)
    expected = expected / np.linalg.norm(expected)
    _, found = ask(encoder, path, input=["a", text])["data"]
    assert np.allclose(found[field], expected, atol=1e-5)


def test_among_so_many_that_they_are_tokenized_on_the_thread(encoder: InProcessClient, scorer: InProcessClient) -> None:
    texts = ["the cat sat " * 20, ""] * 50
    found = ask(encoder, "/v1/embeddings", input=texts)["data"]
    assert np.allclose(
        found[1]["embedding"], ask(encoder, "/v1/embeddings", input="")["data"][0]["embedding"], atol=1e-5
    )
    assert len(ask(scorer, "/rerank", query="a", texts=texts)) == 100
    assert len(ask(encoder, "/v1/embeddings", input=[""] * 100)["data"]) == 100
