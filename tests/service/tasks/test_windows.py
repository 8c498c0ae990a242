"""`long: "windows"`: the answers of a slow reference, transformers window by window; counts; what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from packbert.service.tasks.embed import embed
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.tasks.predict import PredictRequest, predict
from tests.export.goldens import Exported, answers
from tests.paths import GOLDEN
from tests.service.in_process import InProcessClient, ask_at_once, serve_in_process

FOLDER = GOLDEN / "windows"
TEXTS: list[str] = answers("windows/texts")
FAMILIES = sorted({file.stem for file in FOLDER.glob("*.json")} - {"sentence", "texts"})
each_family = pytest.mark.parametrize(
    ("family", "precision"), [*((family, "fp32") for family in FAMILIES), ("bert", "int8"), ("roberta", "int8")]
)
DEFAULT = 18  # an eighth of 144
POOLINGS: tuple[Any, ...] = ("cls", "mean", "pooler")
VECTOR_TOLERANCE = {"fp32": 1e-4, "int8": 0.35}  # int8: as for single channels of these small models
LABEL_TOLERANCE = {"fp32": 1e-4, "int8": 0.2}


def stride_of(case: dict[str, Any]) -> dict[str, Any]:
    return {"long": "windows"} if case["stride"] == DEFAULT else {"stride": case["stride"]}


def chosen(family: str, precision: str) -> list[dict[str, Any]]:
    """All cases for two families in fp32; for the others those of the default stride that are not read in pieces."""
    every = family in ("bert", "roberta") and precision == "fp32"
    return [case for case in answers(f"windows/{family}") if every or (case["stride"] == DEFAULT and case["text"] != 2)]


@each_family
def test_vectors_are_the_weighted_means_of_the_reference(family: str, precision: str, exported: Exported) -> None:
    cases = [(case, name) for case in chosen(family, precision) for name in POOLINGS if name in case]
    asked = [(embed, EmbedRequest(inputs=TEXTS[case["text"]], pooling=name, **stride_of(case))) for case, name in cases]
    results = ask_at_once(exported(family, precision).root, asked, max_wait_seconds=1000.0)
    for (case, name), found in zip(cases, results, strict=True):
        np.testing.assert_allclose(found.value[0], case[name], atol=VECTOR_TOLERANCE[precision], rtol=0)
        assert len(found.sequences) == case["windows"]


@each_family
def test_labels_are_the_mean_or_the_largest_of_the_reference(family: str, precision: str, exported: Exported) -> None:
    cases: list[tuple[Any, Any]] = [(case, one) for case in chosen(family, precision) for one in (None, "max")]
    asked = [
        (predict, PredictRequest(inputs=TEXTS[case["text"]], window_scores=scores, **stride_of(case)))
        for case, scores in cases
    ]
    artifact = exported(f"{family}-labels", precision)
    for (case, scores), result in zip(cases, ask_at_once(artifact.root, asked, max_wait_seconds=1000.0), strict=True):
        found = {one["label"]: one["score"] for one in result.value}
        expected = dict(zip(artifact.manifest.labels, case[f"label_{scores or 'mean'}"], strict=True))
        assert found == pytest.approx(expected, abs=LABEL_TOLERANCE[precision])
        assert [one["score"] for one in result.value] == sorted(found.values(), reverse=True)


@pytest.mark.parametrize("name", sorted({case["name"] for case in answers("windows/sentence")}))
def test_every_window_of_a_sentence_vector_has_the_prompt(name: str, exported: Exported) -> None:
    own = [case for case in answers("windows/sentence") if case["name"] == name]
    fields: dict[str, Any] = {"pooling": "sentence", "normalize": False, "long": "windows"}
    asked = [(embed, EmbedRequest(inputs=TEXTS[case["text"]], prompt=case["prompt"], **fields)) for case in own]
    for case, found in zip(own, ask_at_once(exported(f"sentence-transformers/{name}").root, asked), strict=True):
        np.testing.assert_allclose(found.value[0], case["vector"], atol=1e-4, rtol=0)
        assert len(found.sequences) == case["windows"]


@pytest.fixture(scope="module")
def vectors(bert_artifact: Path) -> Iterator[InProcessClient]:
    with serve_in_process(bert_artifact, BERT_TRUNCATE="true") as client:
        yield client


@pytest.fixture(scope="module")
def labels(exported: Exported) -> Iterator[InProcessClient]:
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


def test_a_prompt_without_a_text_is_a_window(vectors: InProcessClient) -> None:
    body: dict[str, Any] = {"prompt": "the cat ", "long": "windows"}
    alone = [post(vectors, "/embed", inputs=text, **body) for text in ("", TEXTS[0])]
    for own in (alone, alone[::-1]):
        together = post(vectors, "/embed", inputs=["" if one is alone[0] else TEXTS[0] for one in own], **body)
        assert together.headers["x-windows"] == ",".join(one.headers["x-windows"] for one in own)
        assert len(together.json()) == 2
        np.testing.assert_allclose(together.json(), [one.json()[0] for one in own], atol=1e-5)


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


@pytest.mark.parametrize(
    ("fields", "status", "code", "sentence"),
    [
        ({"inputs": ["a", "cat " * 20_000]}, 413, "too_large", "windows; at most 100 are allowed (BERT_MAX_"),
        ({"prompt": "cat " * 200}, 422, "prompt", "which leaves no room for a text in a window of 144"),
    ],
)
def test_what_windows_cannot_do_is_refused(
    vectors: InProcessClient, fields: Any, status: int, code: str, sentence: str
) -> None:
    response = vectors.post("/embed", json={"inputs": "the cat", "long": "windows"} | fields)
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert sentence in response.text
