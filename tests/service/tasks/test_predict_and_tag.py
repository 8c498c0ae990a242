"""/predict and /tag over HTTP: whose shapes they follow, what they refuse, where a tag's characters are."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess
from model_export.artifact.batch import Tokens
from model_export.export import export
from service.artifact import open_artifact
from service.scheduling.results import InferenceResult
from service.tasks.base import Limits, Tasks
from service.tasks.predict import tag
from service.tasks.schemas import TagRequest
from service.tasks.tokenizer import Tokenizer
from tests.paths import GOLDEN


def serving(name: str, root: Path) -> Iterator[httpx.Client]:
    export(GOLDEN / name, root / name)
    settings = {"BERT_ARTIFACT": str(root / name), "BERT_TOKEN_BUDGET": "256"}
    with ServiceProcess(settings) as process, httpx.Client(base_url=process.url) as client:
        yield client


@pytest.fixture(scope="module")
def labelling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from serving("bert-labels", tmp_path_factory.mktemp("labels"))


@pytest.fixture(scope="module")
def tagging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from serving("bert-tags", tmp_path_factory.mktemp("tags"))


def predict(client: httpx.Client, inputs: Any, **more: Any) -> Any:
    response = client.post("/predict", json={"inputs": inputs} | more)
    assert response.status_code == 200, response.text
    return response.json()


def test_labels_come_best_first_and_their_shares_add_up(labelling: httpx.Client) -> None:
    answer = predict(labelling, "The cat sat.")
    assert [set(one) for one in answer] == [{"label", "score"}] * 3
    assert [one["score"] for one in answer] == sorted((one["score"] for one in answer), reverse=True)
    assert sum(one["score"] for one in answer) == pytest.approx(1.0)


def test_two_strings_are_one_pair_and_lists_of_lists_are_a_batch(labelling: httpx.Client) -> None:
    pair = predict(labelling, ["The cat sat.", "It was warm."])
    assert pair == predict(labelling, {"text": "The cat sat.", "text_pair": "It was warm."})
    assert predict(labelling, ["The cat sat."]) == predict(labelling, "The cat sat.")
    assert predict(labelling, [["The cat sat."], ["The cat sat.", "It was warm."]]) == [
        predict(labelling, "The cat sat."),
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
        ([], "inputs is empty: send at least one"),
        (["a", ""], "input has no tokens"),
    ],
)
def test_what_is_neither_a_text_nor_a_pair_is_refused_with_the_way_out(
    labelling: httpx.Client, inputs: Any, sentence: str
) -> None:
    response = labelling.post("/predict", json={"inputs": inputs})
    assert response.status_code == 422
    assert sentence in response.json()["error"]


def test_a_tags_characters_are_pythons_for_chinese_and_emoji(tagging: httpx.Client) -> None:
    text = "😀 hello 北京 👩‍👩‍👧 world"
    tags = tagging.post("/tag", json={"inputs": text}).json()
    assert {text[one["start"] : one["end"]] for one in tags} <= {"😀", "hello", "北", "京", "👩‍👩‍👧", "world"}
    assert [text[one["start"] : one["end"]] for one in tags] == [one["word"] for one in tags]
    assert len(tags) >= 3


def test_one_text_gives_a_list_and_several_give_a_list_of_lists(tagging: httpx.Client) -> None:
    texts = ["The cat sat in Paris.", "我爱北京。"]
    alone = [tagging.post("/tag", json={"inputs": text, "aggregation_strategy": "simple"}).json() for text in texts]
    together = tagging.post("/tag", json={"inputs": texts, "parameters": {"aggregation_strategy": "simple"}}).json()
    assert together == alone
    assert tagging.post("/tag", json={"inputs": texts[:1], "aggregation_strategy": "simple"}).json() == alone[:1]


class Instant:
    """A line that answers at once: every token has the first tag."""

    async def submit(self, work: Sequence[Tokens], *, timeout_seconds: float) -> InferenceResult:
        return InferenceResult(
            rows=[{"tags": np.zeros((len(tokens), 5), np.float32)} for tokens in work],
            queue_seconds=0.0,
            forward_seconds=timeout_seconds,
        )


def test_between_two_texts_tags_leave_the_loop_to_others(tmp_path: Path) -> None:
    export(GOLDEN / "bert-tags", tmp_path / "tags")
    artifact = open_artifact(tmp_path / "tags")
    tokenizer = Tokenizer(artifact, max_characters=1000)
    tasks = Tasks(
        manifest=artifact.manifest,
        tokenizer=tokenizer,
        batcher=Instant(),
        limits=Limits(max_inputs=100, max_top_k=5, truncate=False),
    )

    async def turns() -> int:
        task, turned = asyncio.create_task(tag(tasks, TagRequest(inputs=["cat"] * 100), timeout_seconds=1.0)), 0
        while not task.done():
            await asyncio.sleep(0)
            turned += 1
        assert len((await task).value) == 100
        return turned

    tokenizer.open()
    assert asyncio.run(turns()) >= 99
    tokenizer.close()


def test_a_strategy_that_is_not_there_is_refused(tagging: httpx.Client) -> None:
    response = tagging.post("/tag", json={"inputs": "a", "aggregation_strategy": "max"})
    assert response.status_code == 422
    assert "aggregation_strategy: Input should be 'none' or 'simple'" in response.json()["error"]


def test_a_model_without_a_classifier_says_so(server: httpx.Client, tagging: httpx.Client) -> None:
    for client, path, sentence in (
        (server, "/predict", "no labels head: the checkpoint has no classifier of texts"),
        (server, "/tag", "no tags head: the checkpoint has no classifier of tokens"),
        (tagging, "/predict", "no labels head: the checkpoint has no classifier of texts"),
    ):
        response = client.post(path, json={"inputs": "a"})
        assert response.status_code == 501
        assert sentence in response.json()["error"]
