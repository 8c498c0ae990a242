"""Several models in one service: by the body, by the path, by KServe's path; and the swap of one of them."""

import itertools
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.model_export.artifact.manifest import WEIGHTS, Manifest
from packbert.service.artifact import open_artifact
from packbert.service.http.app import TASKS
from packbert.service.http.validation import example_of
from tests.export.goldens import Exported
from tests.service.engine.changed_files import with_reversed_golden
from tests.service.polling import repeated
from tests.serving import running

KEY = "a key of the administrator"
ADMIN = {"authorization": f"Bearer {KEY}"}
TEXTS = ["my dog is hairy", "it rains"]
NAMES = ("first", "second")
OWN = {"BERT_TOKEN_BUDGET": "256"}  # nothing to measure at a start or a swap


@pytest.fixture(scope="module")
def folders(exported: Exported) -> dict[str, Path]:
    """Two models with other heads and other words."""
    return {"first": exported("bert").root, "second": exported("distilbert-labels").root}


@contextmanager
def serving(models: str, **more: str) -> Iterator[tuple[ServiceProcess, httpx.Client]]:
    settings = OWN | {"BERT_MODELS": models, "BERT_ADMIN_KEY": KEY} | more
    with running(settings) as started:
        yield started


@pytest.fixture(scope="module")
def service(folders: dict[str, Path]) -> Iterator[httpx.Client]:
    with serving(" ".join(f"{name}={folder}" for name, folder in folders.items())) as (_, client):
        yield client


@pytest.fixture(scope="module")
def workers(folders: dict[str, Path]) -> Iterator[httpx.Client]:
    """As `service`, with two workers."""
    models = " ".join(f"{name}={folder}" for name, folder in folders.items())
    with serving(models, BERT_WORKERS="2") as (_, client):
        yield client


@pytest.fixture(scope="module")
def alone(serve: Callable[..., httpx.Client], folders: dict[str, Path]) -> dict[str, Any]:
    """What each model answers in a service of its own."""
    return {name: embed(serve(folder), "/embed") for name, folder in folders.items()}


LATE = {"x-request-timeout-ms": "1"}


def embed(client: httpx.Client, path: str, **more: Any) -> list[list[float]]:
    response = client.post(path, json={"inputs": TEXTS} | more)
    assert response.status_code == 200, response.text
    vectors: list[list[float]] = response.json()
    return vectors


def message_of(response: httpx.Response) -> str:
    """Of an error in any shape."""
    error = response.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


def infer(client: httpx.Client, name: str) -> Any:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [2], "data": TEXTS}
    response = client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor], "outputs": [{"name": "embedding"}]})
    assert response.status_code == 200, response.text
    return response.json()


def swap(client: httpx.Client, source: Path, model: str = "second") -> httpx.Response:
    return client.post("/admin/models", json={"model": model, "source": str(source)}, headers=ADMIN)


def swaps(client: httpx.Client) -> Counter[str]:
    """Of the model `second`, by how they ended."""
    counted = re.findall(
        r'^bert_swaps_total{model="second",outcome="(\w+)"} (\S+)', client.get("/metrics").text, re.MULTILINE
    )
    return Counter({outcome: int(float(number)) for outcome, number in counted})


def test_body_or_path_names_a_model_and_the_first_is_the_default(service: httpx.Client, alone: dict[str, Any]) -> None:
    assert embed(service, "/embed") == alone["first"]
    for name in NAMES:
        assert embed(service, "/embed", model=name) == alone[name]
        assert embed(service, f"/models/{name}/embed") == alone[name]
        assert embed(service, f"/models/{name}/embed", model="text-embedding-3-small") == alone[name]
    assert alone["first"] != alone["second"]


def test_each_model_is_named_and_described_by_its_path(service: httpx.Client, alone: dict[str, Any]) -> None:
    assert service.get("/info").json()["model"] == "first"
    metrics = service.get("/metrics").text
    for name in NAMES:
        answer = infer(service, name)
        size = len(alone[name][0])
        assert (answer["model_name"], answer["outputs"][0]["shape"]) == (name, [2, size])
        assert answer["outputs"][0]["data"] == pytest.approx([value for row in alone[name] for value in row], abs=1e-6)
        described = service.get(f"/v2/models/{name}").json()
        assert (described["name"], described["outputs"][0]["shape"]) == (name, [-1, size])
        assert service.get(f"/v2/models/{name}/ready").json() == {"name": name, "ready": True}
        info = service.get(f"/models/{name}/info").json()
        assert (info["model"], info["status"]) == (name, "ready")
        for path in ("ready", "health"):
            assert service.get(f"/models/{name}/{path}").status_code == 200
        assert re.search(rf'^bert_info{{.*model="{name}"', metrics, re.MULTILINE)
        assert f'bert_model_requests_total{{model="{name}",outcome="answered"}}' in metrics


def test_the_document_of_a_model_says_where_its_paths_begin(service: httpx.Client) -> None:
    assert "servers" not in service.get("/openapi.json").json()
    for _ in range(2):
        document = service.get("/models/second/openapi.json").json()
        assert document["servers"] == [{"url": "/models/second"}]
    assert "/embed" in document["paths"]
    assert "servers" not in service.get("/openapi.json").json()


def test_an_unknown_model_has_the_shape_of_its_route_and_names_others(service: httpx.Client) -> None:
    gets = ("/info", "/ready", "/metrics", "/openapi.json", "/api/tags", "/v1/models", "/v2/health/ready")
    for path, method in (dict.fromkeys(gets, "GET") | dict.fromkeys(TASKS.keys() - {"/"}, "POST")).items():
        of_route, of_model = service.delete(path), service.request(method, f"/models/third{path}", json={})
        assert (of_route.status_code, of_model.status_code) == (405, 404), path
        assert isinstance(of_model.json()["error"], str) == isinstance(of_route.json()["error"], str), path
        assert message_of(of_model).endswith("this server has first, second"), path
    response = service.post("/v2/models/third/infer", json={"inputs": []})
    assert (response.status_code, "third" in message_of(response)) == (404, True)


def test_a_path_of_a_model_without_a_route_is_no_unknown_model(service: httpx.Client) -> None:
    for path in ("/v2/models/first/infer", "/v2/models/first/nowhere"):
        answer = service.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert f"GET {path}: Not Found; did you mean /v2/models/" in answer.json()["error"]


def test_openai_and_azure_name_a_model_as_they_do(service: httpx.Client) -> None:
    for name in NAMES:
        by_body = service.post("/v1/embeddings", json={"input": TEXTS, "model": name}).json()
        by_path = service.post(f"/openai/deployments/{name}/embeddings", json={"input": TEXTS}).json()
        assert by_body == by_path
        assert by_body["model"] == name
    assert [one["id"] for one in service.get("/v1/models").json()["data"]] == [*NAMES]
    assert [one["id"] for one in service.get("/models").json()["data"]] == [*NAMES]
    assert [one["name"] for one in service.get("/api/tags").json()["models"]] == [*NAMES]
    assert service.get("/v1/models/second").json()["id"] == "second"


def test_every_route_takes_the_model_that_the_body_names(service: httpx.Client) -> None:
    for path, spec in TASKS.items():
        body = example_of(spec.request_model)
        by_body = service.post(path, json=body | {"model": "second"})
        by_path = service.post(f"/models/second{path}", json=body)
        assert by_body.status_code == by_path.status_code, path
        assert by_body.headers.get("x-model-digest") == by_path.headers.get("x-model-digest"), path
        unknown = service.post(path, json=body | {"model": "third"})
        assert (unknown.status_code, "third" in message_of(unknown)) == (404, True), path
        assert message_of(unknown).endswith("this server has first, second"), path


@pytest.mark.parametrize(("name", "answers"), [("default/not-specified", "first"), ("second:latest", "second")])
def test_names_as_clients_of_infinity_and_ollama_send_them(service: httpx.Client, name: str, answers: str) -> None:
    found = service.post("/v1/embeddings", json={"input": "a", "model": name}).raise_for_status()
    assert found.json()["model"] == answers


def test_a_deadline_of_the_client_holds_for_the_model_that_it_names(service: httpx.Client) -> None:
    for milliseconds, status in (("60000", 200), ("0", 422)):
        headers = {"x-request-timeout-ms": milliseconds}
        assert service.post("/embed", json={"inputs": "a", "model": "second"}, headers=headers).status_code == status
    late = service.post("/embed", json={"inputs": ["a cat " * 50] * 2000, "model": "second"}, headers=LATE)
    assert (late.status_code, late.json()["code"]) in {(413, "too_much_for_deadline"), (503, "deadline")}


def test_a_swap_needs_its_own_key(workers: httpx.Client) -> None:
    body, before = {"model": "second"}, swaps(workers)
    assert workers.post("/admin/models", json=body).status_code == 401
    assert workers.post("/admin/models", json=body, headers={"authorization": "Bearer wrong"}).status_code == 401
    answer = workers.post("/admin/models", json=body, headers=ADMIN)
    assert (answer.status_code, answer.json()["swapped"]) == (200, False)
    answer = workers.post("/admin/models", json=body | {"source": "a" * 5000}, headers=ADMIN)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert answer.json()["error"].endswith("at most 4096 are accepted here: send model and source alone")
    assert swaps(workers) - before == {"unchanged": 1}


def test_an_artifact_that_cannot_be_served_changes_nothing_and_says_why(
    workers: httpx.Client, folders: dict[str, Path], alone: dict[str, Any], tmp_path: Path
) -> None:
    before = swaps(workers)
    for name in ("damaged", "wrong"):
        shutil.copytree(folders["first"], tmp_path / name)
    (tokenizer,) = (tmp_path / "damaged").rglob("tokenizer.json")
    tokenizer.write_bytes(tokenizer.read_bytes() + b" ")
    with_reversed_golden(Manifest.read(tmp_path / "wrong" / "cpu")).write(tmp_path / "wrong" / "cpu")
    for source, why in {"damaged": "tokenizer.json", "wrong": "the self-test failed", "none": "none"}.items():
        answer = swap(workers, tmp_path / source)
        assert (answer.status_code, answer.json()["code"]) == (422, "artifact"), answer.text
        assert why in answer.json()["error"]
    assert embed(workers, "/embed", model="second") == alone["second"]
    assert swaps(workers) - before == {"refused": 3}


def test_a_swap_to_a_folder_being_overwritten_is_refused_or_whole(
    service: httpx.Client, folders: dict[str, Path], alone: dict[str, Any], tmp_path: Path
) -> None:
    (weights,) = Path(shutil.copytree(folders["first"], tmp_path / "new")).rglob(WEIGHTS)
    content, stop = weights.read_bytes(), threading.Event()

    def overwrite() -> None:
        """In place, as `cp` does; at other moments of each swap."""
        for pause in itertools.cycle((0.01, 0.03, 0.02, 0.05, 0.0, 0.04)):
            if stop.wait(pause):
                return
            with weights.open("wb") as file:
                for start in range(0, len(content), 2**10):
                    file.write(content[start : start + 2**10])

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for _ in range(8):
            answer = swap(service, tmp_path / "new")
            assert answer.json().get("code", "artifact") == "artifact", answer.text
            expected = alone["first" if answer.status_code == 200 else "second"]
            assert embed(service, "/embed", model="second") == expected
            assert swap(service, folders["second"]).status_code == 200
    finally:
        stop.set()
        writer.join()
    assert swap(service, tmp_path / "new").json()["swapped"]
    assert embed(service, "/embed", model="second") == alone["first"]
    assert swap(service, folders["second"]).json()["swapped"]


def test_after_a_swap_to_a_copy_the_folder_before_is_not_needed(
    service: httpx.Client, folders: dict[str, Path], alone: dict[str, Any], tmp_path: Path
) -> None:
    copies = [Path(shutil.copytree(folders["first"], tmp_path / name)) for name in ("before", "after")]
    assert [swap(service, one).json()["swapped"] for one in (*copies, copies[1])] == [True, True, False]
    shutil.rmtree(copies[0])
    body = {"inputs": "a", "model": "second"}
    assert service.post("/attention", json=body).status_code == 200  # of a graph that is opened now
    assert embed(service, "/embed", model="second") == alone["first"]
    assert swap(service, folders["second"]).json()["swapped"]


def test_every_answer_under_swaps_is_wholly_one_models(
    workers: httpx.Client, folders: dict[str, Path], alone: dict[str, Any]
) -> None:
    digests = {open_artifact(folder).digest: name for name, folder in folders.items()}
    faults, seen = [], set()

    def ask() -> None:
        answer = workers.post("/models/second/embed", json={"inputs": TEXTS})
        name = digests.get(answer.headers.get("x-model-digest", ""), "none")
        seen.add(name)
        if answer.status_code != 200 or answer.json() != alone[name]:
            faults.append((answer.status_code, name, answer.text[:200]))

    with repeated(ask):
        for number in range(6):
            source = folders[NAMES[number % 2]]
            expected = {"model": "second", "digest": open_artifact(source).digest, "swapped": True}
            assert swap(workers, source).json() == expected
    assert faults == []
    assert seen == {*NAMES}
    for _ in range(8):  # over new connections, so that any worker answers: all have followed
        answer = httpx.post(f"{workers.base_url}/embed", json={"inputs": TEXTS, "model": "second"})
        assert answer.json() == alone["second"]
    assert embed(workers, "/embed") == alone["first"]
    assert swaps(workers)["swapped"] >= 6
