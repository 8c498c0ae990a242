"""huggingface_hub's own client, with nothing but the URL of the service: every method that has a route here."""

from typing import Any

import httpx
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.conftest import Serve
from tests.export.goldens import Exported

ELEMENTS_SINCE = (1, 1, 5)  # from here on the client reads [{label, score}], before {sequence, labels, scores}
ZERO_SHOT_PATH = "" if tuple(map(int, huggingface_hub.__version__.split(".")[:3])) >= ELEMENTS_SINCE else "/predict"


@pytest.fixture(scope="module")
def questions(serve: Serve, exported: Exported) -> httpx.Client:
    return serve(exported("bert-spans").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(autouse=True)
def _without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")


def client_of(server: httpx.Client, path: str = "") -> InferenceClient:
    return InferenceClient(model=str(server.base_url).rstrip("/") + path)


@pytest.mark.parametrize("path", ["", "/embed"])
def test_feature_extraction(server: httpx.Client, path: str) -> None:
    client = client_of(server, path)
    expected = server.post("/embed", json={"inputs": ["the cat", "a dog"]}).json()
    np.testing.assert_array_equal(client.feature_extraction("the cat"), np.array(expected[:1], np.float32))
    np.testing.assert_array_equal(client.feature_extraction(["the cat", "a dog"]), np.array(expected, np.float32))
    cut = client.feature_extraction("cat " * 600, normalize=True, truncate=True, truncation_direction="left")
    assert np.linalg.norm(cut) == pytest.approx(1.0)
    with pytest.raises(HfHubHTTPError, match="this model has no prompt 'query'"):
        client.feature_extraction("the cat", prompt_name="query")


@pytest.mark.parametrize("path", ["", "/fill-mask"])
def test_fill_mask(server: httpx.Client, path: str) -> None:
    client = client_of(server, path)
    expected = server.post("/fill-mask", json={"inputs": "the [MASK] is big"}).json()
    found = client.fill_mask("the [MASK] is big")
    assert [(one.score, one.token, one.token_str, one.sequence) for one in found] == [
        (one["score"], one["token"], one["token_str"], one["sequence"]) for one in expected
    ]
    assert [one.token_str for one in client.fill_mask("the [MASK]", targets=["dog", "cat"], top_k=1)] in (
        ["dog"],
        ["cat"],
    )
    with pytest.raises(HfHubHTTPError, match="the mask token"):
        client.fill_mask("no mask", top_k=3)


@pytest.mark.parametrize("path", ["", "/predict"])
def test_text_classification(classifier: httpx.Client, path: str) -> None:
    client = client_of(classifier, path)
    expected = classifier.post("/predict", json={"inputs": "the cat"}).json()
    assert [{"label": one.label, "score": one.score} for one in client.text_classification("the cat")] == expected
    (best,) = client.text_classification("the cat", top_k=1, function_to_apply="none")
    raw = classifier.post("/predict", json={"inputs": "the cat", "raw_scores": True}).json()
    assert {"label": best.label, "score": best.score} == raw[0]


@pytest.mark.parametrize(("path", "strategy"), [("", None), ("", "none"), ("/tag", "max"), ("/tag", "simple")])
def test_token_classification(tagger: httpx.Client, path: str, strategy: Any) -> None:
    client, text = client_of(tagger, path), "The cat sat in Paris."
    expected = tagger.post("/tag", json={"inputs": text, "aggregation_strategy": strategy or "simple"}).json()
    found = client.token_classification(text, aggregation_strategy=strategy)
    name = "entity" if strategy == "none" else "entity_group"
    assert [(getattr(one, name), one.word, one.start, one.end, one.score) for one in found] == [
        (one[name], one["word"], one["start"], one["end"], one["score"]) for one in expected
    ]
    everything = {one[name] for one in expected}
    assert client.token_classification(text, aggregation_strategy=strategy, ignore_labels=[*everything, "O"]) == []


@pytest.mark.parametrize("path", ["", "/similarity"])
def test_sentence_similarity(server: httpx.Client, path: str) -> None:
    found = client_of(server, path).sentence_similarity("the cat", ["the cat", "a dog"])
    assert found[0] == pytest.approx(1.0)
    assert -1 <= found[1] < 1


@pytest.mark.parametrize("path", ["", "/answer"])
def test_question_answering(questions: httpx.Client, path: str) -> None:
    client, context = client_of(questions, path), "The cat sat in Paris. It was warm. " * 20
    expected = questions.post("/answer", json={"question": "Where?", "context": context, "top_k": 2}).json()
    best = client.question_answering(question="Where?", context=context)
    assert not isinstance(best, list)
    assert (best.answer, best.start, best.end) == tuple(expected[0][key] for key in ("answer", "start", "end"))
    several = client.question_answering(
        question="Where?", context=context, top_k=2, max_answer_len=15, doc_stride=20, handle_impossible_answer=True
    )
    assert isinstance(several, list)
    assert len(several) == 2
    with pytest.raises(HfHubHTTPError, match="the question has no tokens"):
        client.question_answering(question="", context=context)


def test_the_state_of_the_endpoint(classifier: httpx.Client) -> None:
    client = InferenceClient(model=str(classifier.base_url), provider="hf-inference")
    assert client.health_check()
    assert client.get_endpoint_info()["model_type"]["classifier"]["id2label"]["0"] == "bad"


@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_classification(entailment: httpx.Client, multi_label: bool) -> None:
    labels, template = ["animal", "plant", "river"], "It is about {}."
    body = {"candidate_labels": labels, "multi_label": multi_label, "hypothesis_template": template}
    expected = entailment.post("/predict", json={"inputs": "the cat"} | body).json()
    client = client_of(entailment, ZERO_SHOT_PATH)
    found = client.zero_shot_classification("the cat", labels, multi_label=multi_label, hypothesis_template=template)
    assert [(one.label, one.score) for one in found] == list(zip(expected["labels"], expected["scores"], strict=True))


def test_zero_shot_of_a_list_of_one_text_is_its_answer(entailment: httpx.Client) -> None:
    """As the hosted endpoints answer JavaScript's client, which sends such a list."""
    parameters = {"candidate_labels": ["animal", "plant"]}
    one, listed = (
        entailment.post("/", json={"inputs": each, "parameters": parameters}).json()
        for each in ("the cat", ["the cat"])
    )
    assert one == listed
    assert {*one[0]} == {"label", "score"}
