"""A text without tokens among others: the routes of other servers read it as its special tokens, ours refuse it."""

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from packbert.service.tokenization.encoding import NO_SPANS, EncodedText
from tests.service.in_process import InProcessClient, ask

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
