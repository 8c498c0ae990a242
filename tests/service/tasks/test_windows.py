"""`long: "windows"`: the answers of a slow reference, transformers window by window; counts; what is refused."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from packbert.service.tasks.base import TaskResult, Tasks
from packbert.service.tasks.embed import embed
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.tasks.predict import PredictRequest, predict
from tests.export.goldens import Artifact
from tests.paths import GOLDEN
from tests.service.in_process import InProcessClient, ask_tasks, serve_in_process
from tests.service.tasks.test_tokens_by_family import run

FOLDER = GOLDEN / "windows"
TEXTS: list[str] = json.loads((FOLDER / "texts.json").read_text("utf-8"))
FAMILIES = sorted({file.stem for file in FOLDER.glob("*.json")} - {"sentence", "texts"})
DEFAULT = 18  # an eighth of 144
POOLINGS = ("cls", "mean", "pooler")
VECTOR_TOLERANCE = {"fp32": 1e-4, "int8": 0.35}  # int8: as for single channels of these small models
LABEL_TOLERANCE = {"fp32": 1e-4, "int8": 0.2}


@cache
def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


def stride_of(case: dict[str, Any]) -> dict[str, Any]:
    return {"long": "windows"} if case["stride"] == DEFAULT else {"stride": case["stride"]}


async def ask_vector(tasks: Tasks, text: str, **fields: Any) -> TaskResult:
    return await embed(tasks, EmbedRequest(inputs=text, **fields))


async def ask_labels(tasks: Tasks, text: str, **fields: Any) -> TaskResult:
    return await predict(tasks, PredictRequest(inputs=text, **fields))


def chosen(family: str, precision: str) -> list[dict[str, Any]]:
    """All cases for two families in fp32; for the others those of the default stride that are not read in pieces."""
    every = family in ("bert", "roberta") and precision == "fp32"
    return [case for case in cases(family) if every or (case["stride"] == DEFAULT and case["text"] != 2)]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_the_weighted_means_of_the_reference(
    family: str, precision: str, exported: Callable[..., Artifact]
) -> None:
    asked = [(case, name) for case in chosen(family, precision) for name in POOLINGS if name in case]

    async def question(tasks: Tasks) -> Any:
        return [await ask_vector(tasks, TEXTS[case["text"]], pooling=name, **stride_of(case)) for case, name in asked]

    for (case, name), found in zip(asked, ask_tasks(exported(family, precision).root, question), strict=True):
        np.testing.assert_allclose(found.value[0], case[name], atol=VECTOR_TOLERANCE[precision], rtol=0)
        assert len(found.sequences) == case["windows"]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_labels_are_the_mean_or_the_largest_of_the_reference(
    family: str, precision: str, exported: Callable[..., Artifact]
) -> None:
    asked = [(case, scores) for case in chosen(family, precision) for scores in (None, "max")]

    async def question(tasks: Tasks) -> Any:
        return [
            await ask_labels(tasks, TEXTS[case["text"]], window_scores=scores, **stride_of(case))
            for case, scores in asked
        ]

    artifact = exported(f"{family}-labels", precision)
    for (case, scores), result in zip(asked, ask_tasks(artifact.root, question), strict=True):
        found = {one["label"]: one["score"] for one in result.value}
        expected = dict(zip(artifact.manifest.labels, case[f"label_{scores or 'mean'}"], strict=True))
        assert found == pytest.approx(expected, abs=LABEL_TOLERANCE[precision])
        assert [one["score"] for one in result.value] == sorted(found.values(), reverse=True)


@pytest.mark.parametrize(("family", "precision"), [("bert", "fp32"), ("roberta", "int8")])
def test_answers_in_company_are_the_same_to_the_bit(
    family: str, precision: str, exported: Callable[..., Artifact]
) -> None:
    for name, ask in ((family, ask_vector), (f"{family}-labels", ask_labels)):
        asked = [(text, stride) for text in (TEXTS[0], TEXTS[1], TEXTS[3]) for stride in (0, DEFAULT)]

        async def question(tasks: Tasks, ask: Any = ask, asked: Any = asked) -> Any:
            alone = [await ask(tasks, text, stride=stride) for text, stride in asked]
            return alone, await asyncio.gather(*(ask(tasks, text, stride=stride) for text, stride in asked))

        for alone, beside in zip(*run(exported(name, precision).root, question), strict=True):
            assert np.array_equal(alone.value, beside.value)


@pytest.mark.parametrize("name", sorted({case["name"] for case in cases("sentence")}))
def test_every_window_of_a_sentence_vector_has_the_prompt(name: str, exported: Callable[..., Artifact]) -> None:
    own = [case for case in cases("sentence") if case["name"] == name]

    async def question(tasks: Tasks) -> Any:
        fields = {"pooling": "sentence", "normalize": False, "long": "windows"}
        return [await ask_vector(tasks, TEXTS[case["text"]], prompt=case["prompt"], **fields) for case in own]

    for case, found in zip(own, ask_tasks(exported(f"sentence-transformers/{name}").root, question), strict=True):
        np.testing.assert_allclose(found.value[0], case["vector"], atol=1e-4, rtol=0)
        assert len(found.sequences) == case["windows"]


@pytest.fixture(scope="module")
def vectors(bert_artifact: Path) -> Iterator[InProcessClient]:
    with serve_in_process(bert_artifact, BERT_TRUNCATE="true") as client:
        yield client


@pytest.fixture(scope="module")
def labels(exported: Callable[..., Artifact]) -> Iterator[InProcessClient]:
    with serve_in_process(exported("bert-labels").root) as client:
        yield client


def post(client: Any, path: str, **body: Any) -> httpx.Response:
    response: httpx.Response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def test_a_text_that_fits_has_exactly_its_plain_answer(vectors: InProcessClient, labels: InProcessClient) -> None:
    for client, path in ((vectors, "/embed"), (labels, "/predict")):
        plain = post(client, path, inputs=TEXTS[3])
        windows = post(client, path, inputs=TEXTS[3], long="windows")
        assert windows.content == plain.content
        assert windows.headers["x-windows"] == "1"
        assert "x-windows" not in plain.headers


@pytest.mark.parametrize("path", ["/embed", "/"])
def test_the_header_counts_the_windows_of_each_text(vectors: InProcessClient, path: str) -> None:
    texts = [TEXTS[3], TEXTS[0], TEXTS[3]]
    found = post(vectors, path, inputs=texts, parameters={"long": "windows"})
    number = next(case["windows"] for case in cases("bert") if (case["text"], case["stride"]) == (0, DEFAULT))
    assert found.headers["x-windows"] == f"1,{number},1"
    assert "x-truncated-inputs" not in found.headers, "BERT_TRUNCATE cuts nothing here"
    alone = [post(vectors, "/embed", inputs=text, long="windows").json()[0] for text in texts]
    assert found.json() == alone


def test_the_mean_is_cut_to_dimensions_and_then_normalised(vectors: InProcessClient) -> None:
    body: dict[str, Any] = {"inputs": TEXTS[0], "long": "windows", "pooling": "mean"}
    whole = np.array(post(vectors, "/embed", **body, normalize=False).json()[0])
    short = post(vectors, "/embed", **body, normalize=True, dimensions=8).json()[0]
    np.testing.assert_allclose(short, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)


def test_layers_and_their_joins_are_the_means_of_the_windows(vectors: InProcessClient) -> None:
    body: dict[str, Any] = {"inputs": [TEXTS[0], TEXTS[3]], "long": "windows", "normalize": False, "pooling": "mean"}
    last = np.array(post(vectors, "/embed", **body).json())
    states = np.array(post(vectors, "/embed", **body, layers=[1, -1]).json())
    np.testing.assert_allclose(states[:, 1], last, atol=1e-5)
    joined = post(vectors, "/embed", **body, layers=[1, -1], layer_pooling="concat").json()
    np.testing.assert_allclose(joined, states.reshape(2, -1), atol=1e-6)
    plain = post(vectors, "/embed", inputs=TEXTS[3], normalize=False, pooling="mean", layers=[1, -1]).json()
    assert states[1].tolist() == plain[0]


def test_a_batch_of_labels_may_hold_pairs_that_fit(labels: InProcessClient) -> None:
    found = post(labels, "/predict", inputs=[[TEXTS[0]], ["The cat.", "It was warm."]], long="windows")
    assert found.json()[1] == post(labels, "/predict", inputs=["The cat.", "It was warm."]).json()
    assert found.headers["x-windows"].endswith(",1")
    raw = post(labels, "/predict", inputs=TEXTS[0], stride=0, raw_scores=True, window_scores="max").json()
    assert max(one["score"] for one in raw) > 1 or min(one["score"] for one in raw) < 0, "logits"


def test_tags_are_joined_under_either_name(tagger: httpx.Client) -> None:
    body: dict[str, Any] = {"inputs": [TEXTS[0], TEXTS[3]], "aggregation_strategy": "first"}
    named, strided = (post(tagger, "/tag", **body, **more) for more in ({"long": "windows"}, {"stride": DEFAULT}))
    assert named.json() == strided.json()
    assert named.headers["x-windows"] == strided.headers["x-windows"]
    assert named.headers["x-windows"].endswith(",1")
    root = post(tagger, "/", inputs=TEXTS[0], long="windows").json()
    assert root == post(tagger, "/tag", inputs=TEXTS[0], long="windows", aggregation_strategy="simple").json()


@pytest.mark.parametrize(
    ("path", "fields", "status", "code", "sentence"),
    [
        ("/embed", {"truncate": True}, 422, "parameters", "truncate: true cuts a text that is too long, and long: win"),
        ("/embed", {"long": "cut"}, 422, "invalid", "long: Input should be 'windows'"),
        (
            "/embed",
            {"stride": 142},
            422,
            "stride",
            "stride is 142; it must be less than 142: a window holds 142",
        ),
        (
            "/embed",
            {"pooling": "none"},
            422,
            "pooling",
            "windows make one vector of a text, and pooling none",
        ),
        ("/embed", {"inputs": ["a", ""]}, 422, "empty", "input has no tokens"),
        ("/embed", {"inputs": ["a", "cat " * 20_000]}, 413, "too_large", "windows; at most 100 are allowed (BERT_MAX_"),
        ("/embed", {"prompt": "cat " * 200}, 422, "prompt", "which leaves no room for a text in a window of 144"),
        ("/v1/embeddings", {}, 422, "invalid", "long: there is no such field"),
    ],
)
def test_what_windows_cannot_do_is_refused(
    vectors: InProcessClient, path: str, fields: Any, status: int, code: str, sentence: str
) -> None:
    name = "input" if path.startswith("/v1") else "inputs"
    response = vectors.post(path, json={name: "the cat", "long": "windows"} | fields)
    body = response.json()
    body = body["error"] if isinstance(body["error"], dict) else body
    assert response.status_code == status, response.text
    assert sentence in response.text
    if path == "/embed":
        assert body["code"] == code
    if code == "empty":
        assert body["index"] == 1


def test_window_scores_need_windows(labels: InProcessClient) -> None:
    response = labels.post("/predict", json={"inputs": "a", "window_scores": "max"})
    assert (response.status_code, response.json()["code"]) == (422, "parameters")
    assert "window_scores joins the scores of windows, and this request has none" in response.json()["error"]
    pair = labels.post("/predict", json={"inputs": [["a"], ["cat " * 200, "b"]], "long": "windows"})
    assert (pair.status_code, pair.json()["index"]) == (422, 1)
    assert "and a pair has no windows" in pair.json()["error"]
