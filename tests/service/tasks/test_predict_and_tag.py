"""/predict and /tag over HTTP: the shapes of inputs and responses, errors, and the character offsets of tags."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service.artifact import open_artifact
from packbert.service.errors import InferenceFailed
from packbert.service.scheduling.request import InferenceQueue
from packbert.service.settings import Settings
from packbert.service.tasks.base import Limits, Tasks
from packbert.service.tasks.defaults import embedding_defaults
from packbert.service.tasks.predict import TagRequest
from packbert.service.tasks.tag import tag
from packbert.service.tokenization.tokenizer import Tokenizer
from tests.export.goldens import Artifact
from tests.service.fakes import WholeQueue


def predict(client: httpx.Client, inputs: Any, **more: Any) -> Any:
    response = client.post("/predict", json={"inputs": inputs} | more)
    assert response.status_code == 200, response.text
    return response.json()


def test_labels_are_sorted_by_probability_and_sum_to_one(classifier: httpx.Client) -> None:
    answer = predict(classifier, "The cat sat.")
    assert [set(one) for one in answer] == [{"label", "score"}] * 3
    assert [one["score"] for one in answer] == sorted((one["score"] for one in answer), reverse=True)
    assert sum(one["score"] for one in answer) == pytest.approx(1.0)


def test_two_strings_are_a_pair_and_a_list_of_lists_is_a_batch(classifier: httpx.Client) -> None:
    pair = predict(classifier, ["The cat sat.", "It was warm."])
    assert pair == predict(classifier, {"text": "The cat sat.", "text_pair": "It was warm."})
    assert predict(classifier, ["The cat sat."]) == predict(classifier, "The cat sat.")
    assert predict(classifier, [["The cat sat."], ["The cat sat.", "It was warm."]]) == [
        predict(classifier, "The cat sat."),
        pair,
    ]


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (
            ["a", "b", "c"],
            'inputs is a list of 3 strings; ["a", "b"] is one pair, [["a"], ["b"], ["c"]] are three texts',
        ),
        ([["a", "b", "c"]], "an input is a text or a pair, this one has 3 texts"),
        ([], "the request has no inputs: send at least one"),
        (["a", ""], "input has no tokens"),
    ],
)
def test_an_input_that_is_no_text_and_no_pair_gets_an_error_with_the_correct_form(
    classifier: httpx.Client, inputs: Any, sentence: str
) -> None:
    response = classifier.post("/predict", json={"inputs": inputs})
    assert response.status_code == 422
    assert sentence in response.json()["error"]


def test_tag_offsets_are_python_string_indices_for_chinese_and_emoji(tagger: httpx.Client) -> None:
    text = "😀 hello 北京 👩‍👩‍👧 world"
    tags = tagger.post("/tag", json={"inputs": text}).json()
    assert {text[one["start"] : one["end"]] for one in tags} <= {"😀", "hello", "北", "京", "👩‍👩‍👧", "world"}
    assert [text[one["start"] : one["end"]] for one in tags] == [one["word"] for one in tags]
    assert len(tags) >= 3


def test_tag_returns_a_list_for_one_text_and_a_list_of_lists_for_several(tagger: httpx.Client) -> None:
    texts = ["The cat sat in Paris.", "我爱北京。"]
    alone = [tagger.post("/tag", json={"inputs": text, "aggregation_strategy": "simple"}).json() for text in texts]
    together = tagger.post("/tag", json={"inputs": texts, "parameters": {"aggregation_strategy": "simple"}}).json()
    assert together == alone
    assert tagger.post("/tag", json={"inputs": texts[:1], "aggregation_strategy": "simple"}).json() == alone[:1]


class ImmediateQueue(WholeQueue):
    """Answers at once: every token gets the first tag."""

    def answer(self, work: Sequence[Tokens], timeout_seconds: float) -> list[Row]:  # noqa: ARG002
        return [{"tags": np.zeros((len(tokens), 5), np.float32)} for tokens in work]


@contextmanager
def open_tasks(exported: Artifact, queue: InferenceQueue) -> Iterator[Tasks]:
    artifact = open_artifact(exported.root)
    tokenizer = Tokenizer(artifact, max_characters=10_000)
    tokenizer.open()
    yield Tasks(
        manifest=artifact.manifest,
        tokenizer=tokenizer,
        queue=queue,
        limits=Limits(max_inputs=100, truncate=False),
        embedding=embedding_defaults(artifact.manifest, Settings(artifact=artifact.folder)),
    )
    tokenizer.close()


def test_an_unknown_aggregation_strategy_is_an_error(tagger: httpx.Client) -> None:
    response = tagger.post("/tag", json={"inputs": "a", "aggregation_strategy": "last"})
    assert response.status_code == 422
    assert "aggregation_strategy: Input should be 'none', 'simple', 'first'" in response.json()["error"]


def test_labels_to_ignore_are_taken_from_either_place_and_from_both_is_an_error(tagger: httpx.Client) -> None:
    body = {"inputs": "The cat sat in Paris."}
    every = tagger.post("/tag", json=body | {"ignore_labels": []}).json()
    assert [one["index"] for one in every] == [1, 2, 3, 4, 5, 6]
    assert tagger.post("/tag", json=body | {"parameters": {"ignore_labels": []}}).json() == every
    twice = tagger.post("/tag", json=body | {"ignore_labels": [], "parameters": {"ignore_labels": ["O"]}})
    assert (twice.status_code, twice.json()["code"]) == (422, "parameters")


def test_stride_is_taken_from_either_place_and_tags_the_whole_of_a_long_text(tagger: httpx.Client) -> None:
    text = "The cat sat in Paris. " * 60
    assert tagger.post("/tag", json={"inputs": text}).json()["code"] == "too_long"
    body = {"inputs": [text, "The cat"], "aggregation_strategy": "first", "ignore_labels": []}
    found = tagger.post("/tag", json=body | {"stride": 20})
    assert found.status_code == 200
    assert found.json()[0][-1]["end"] == len(text.rstrip())
    assert found.json()[1] == tagger.post("/tag", json=body | {"inputs": "The cat"}).json()
    nested = {"inputs": [text, "The cat"], "parameters": {key: body[key] for key in list(body)[1:]} | {"stride": 20}}
    assert tagger.post("/tag", json=nested).json() == found.json()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"stride": 5}, "the groups of windows are joined, and aggregation_strategy none makes no groups: send"),
        ({"parameters": {"stride": 5, "aggregation_strategy": "none"}}, "aggregation_strategy none makes no groups"),
        ({"stride": 142, "aggregation_strategy": "max"}, "stride is 142; it must be less than 142"),
        ({"stride": -1, "aggregation_strategy": "max"}, "stride: Input should be greater than or equal to 0"),
        ({"stride": 5, "parameters": {"stride": 5}}, "stride given twice: at the top level and under parameters"),
    ],
)
def test_a_stride_that_is_not_allowed_is_refused(tagger: httpx.Client, fields: Any, sentence: str) -> None:
    response = tagger.post("/tag", json={"inputs": "The cat."} | fields)
    assert (response.status_code, sentence in response.json()["error"]) == (422, True), response.text


@pytest.mark.parametrize("text", ["cat " * 400, "北" * 400], ids=["in parts", "at once"])
def test_an_error_in_a_window_has_the_index_of_its_text(exported: Callable[..., Artifact], text: str) -> None:
    """The third text has three windows: they are the sequences 2, 3 and 4 of the request, and the last one fails."""

    class FailingQueue(WholeQueue):
        def answer(self, work: Sequence[Tokens], timeout_seconds: float) -> list[Row]:  # noqa: ARG002
            assert len(work) == 5
            raise InferenceFailed("the model failed", index=4)

    texts = ["cat", "dog", text]
    request = TagRequest(inputs=texts, aggregation_strategy="simple", stride=0)
    with open_tasks(exported("bert-tags"), FailingQueue()) as tasks, pytest.raises(InferenceFailed) as caught:
        asyncio.run(tag(tasks, request))
    assert caught.value.index == 2


def test_a_model_without_a_classifier_returns_501_with_the_reason(server: httpx.Client, tagger: httpx.Client) -> None:
    for client, path, sentence in (
        (server, "/predict", "no labels head: the checkpoint has no classifier of texts"),
        (server, "/tag", "no tags head: the checkpoint has no classifier of tokens"),
        (tagger, "/predict", "no labels head: the checkpoint has no classifier of texts"),
    ):
        response = client.post(path, json={"inputs": "a"})
        assert response.status_code == 501
        assert sentence in response.json()["error"]
