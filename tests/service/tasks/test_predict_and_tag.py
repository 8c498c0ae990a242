"""/predict and /tag over HTTP: the shapes of inputs and responses, and the character offsets of tags."""

from typing import Any

import httpx


def predict(client: httpx.Client, inputs: Any, **more: Any) -> Any:
    response = client.post("/predict", json={"inputs": inputs} | more)
    assert response.status_code == 200, response.text
    return response.json()


def test_two_strings_are_a_pair_and_a_list_of_lists_is_a_batch(classifier: httpx.Client) -> None:
    alone, pair = predict(classifier, "The cat sat."), predict(classifier, ["The cat sat.", "It was warm."])
    assert predict(classifier, ["The cat sat."]) == alone
    assert predict(classifier, [["The cat sat."], ["The cat sat.", "It was warm."]]) == [alone, pair]
    refused = classifier.post("/predict", json={"inputs": [["a", "b", "c"]]})
    assert (refused.status_code, refused.json()["index"]) == (422, 0)
    assert "an input is a text or a pair, this one has 3 texts" in refused.json()["error"]


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
