"""More models than BERT_MEMORY_LIMIT holds: they are loaded on demand, and the least recently used one is put out."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from packbert.model_export.artifact.manifest import WEIGHTS
from tests.export.goldens import Exported
from tests.service.engine.changed_files import with_own_digests
from tests.service.in_process import ask
from tests.service.polling import scrape, until
from tests.serving import fail_to_serve, running

KEY = "a key of the administrator"
ADMIN = {"authorization": f"Bearer {KEY}"}
TEXTS = ["my dog is hairy", "it rains", "a text of a few more words than the others have"]
MODELS = {"first": "roberta", "second": "distilbert-labels", "third": "bert"}  # with other words
NAMES = tuple(MODELS)
MIB = 2**20
WEIGHTS_BYTES = 64 * MIB  # far more than what these models take, which is measured and is never the same
FOR_TWO = "165MiB"


def copy_with_large_weights(source: Path, target: Path) -> None:
    """The artifact with zeros after its weights, so that it counts as one of WEIGHTS_BYTES."""
    (target / "cpu").mkdir(parents=True)
    for path in (source / "cpu").iterdir():
        (target / "cpu" / path.name).write_bytes(path.read_bytes())
    os.truncate(target / "cpu" / WEIGHTS, WEIGHTS_BYTES)
    with_own_digests(target / "cpu")


@pytest.fixture(scope="module")
def folders(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Path]]:
    root = tmp_path_factory.mktemp("large")
    for name, checkpoint in MODELS.items():
        copy_with_large_weights(exported(checkpoint).root, root / name)
    yield {name: root / name for name in NAMES}
    for name in NAMES:
        (root / name / "cpu" / WEIGHTS).unlink()


@pytest.fixture(scope="module")
def alone(serve: Callable[..., httpx.Client], exported: Exported) -> dict[str, Any]:
    """What each model answers in a service of its own."""
    return {name: ask(serve(exported(source).root), "/embed", inputs=TEXTS) for name, source in MODELS.items()}


def settings_for(folders: Mapping[str, Path], **more: str) -> dict[str, str]:
    stated = " ".join(f"{name}={folder}" for name, folder in folders.items())
    return {"BERT_MODELS": stated, "BERT_MEMORY_LIMIT": FOR_TWO, "BERT_TOKEN_BUDGET": "256"} | more


@pytest.fixture(scope="module")
def service(folders: Mapping[str, Path]) -> Iterator[httpx.Client]:
    settings = settings_for(folders, BERT_ADMIN_KEY=KEY)
    with running(settings) as (_, client):
        yield client


def embed(client: httpx.Client, name: str) -> Any:
    return ask(client, "/embed", inputs=TEXTS, model=name)


def in_memory(client: httpx.Client) -> set[str]:
    return {name for name in NAMES if client.get(f"/models/{name}/info").json()["in_memory"]}


def test_the_default_is_in_memory_and_each_model_is_ready(service: httpx.Client) -> None:
    """The first of the tests that use the service."""
    assert in_memory(service) == {"first", "third"}
    for name in NAMES:
        assert service.get(f"/models/{name}/ready").status_code == 200
        assert service.get(f"/models/{name}/info").json()["memory_bytes"] >= WEIGHTS_BYTES


def test_the_least_recently_used_model_is_put_out(service: httpx.Client, alone: dict[str, Any]) -> None:
    for name in ("second", "third"):
        assert embed(service, name) == alone[name]
    assert in_memory(service) == {"second", "third"}
    for name, expected in (
        ("first", {"third", "first"}),
        ("third", {"third", "first"}),
        ("second", {"third", "second"}),
    ):
        assert embed(service, name) == alone[name]
        assert in_memory(service) == expected
        values = scrape(service)
        for other in NAMES:
            assert values[f'bert_model_in_memory{{model="{other}"}}'] == (other in expected)
    assert scrape(service)['bert_load_seconds_count{model="first"}'] >= 2


def test_a_request_that_runs_no_model_or_is_refused_loads_none(service: httpx.Client) -> None:
    embed(service, "second"), embed(service, "third")
    assert in_memory(service) == {"second", "third"}
    assert service.get("/models/first/ready").status_code == 200
    assert service.post("/models/first/tokenize", json={"inputs": "a"}).status_code == 200
    assert service.post("/embed", json={"inputs": 1, "model": "first"}).status_code == 422
    assert service.post("/models/second/fill-mask", json={"inputs": "a"}).status_code == 501
    assert [one["id"] for one in service.get("/v1/models").json()["data"]] == [*NAMES]
    assert in_memory(service) == {"second", "third"}


def test_clients_of_all_models_at_once_all_get_the_right_answer(service: httpx.Client, alone: dict[str, Any]) -> None:
    faults: list[tuple[str, int, str]] = []

    def ask(first: int) -> None:
        for number in range(first, first + 12):
            name = NAMES[number % 3]
            answer = service.post("/embed", json={"inputs": TEXTS, "model": name})
            if answer.status_code != 200 or answer.json() != alone[name]:
                faults.append((name, answer.status_code, answer.text[:200]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert faults == []
    assert len(in_memory(service)) <= 2


def test_a_model_that_is_not_in_memory_can_be_swapped(
    service: httpx.Client, folders: Mapping[str, Path], alone: dict[str, Any]
) -> None:
    for source, answer in (("third", alone["third"]), ("first", alone["first"])):
        embed(service, "second"), embed(service, "third")
        assert "first" not in in_memory(service)
        body = {"model": "first", "source": str(folders[source])}
        assert service.post("/admin/models", json=body, headers=ADMIN).json()["swapped"]
        assert embed(service, "first") == answer
        assert len(in_memory(service)) == 2


def test_a_model_that_cannot_be_loaded_answers_503_until_it_can(
    folders: Mapping[str, Path], alone: dict[str, Any]
) -> None:
    with running(settings_for(folders)) as (_, client):
        others = ("second", "third")
        assert [embed(client, name) for name in others] == [alone[name] for name in others]
        weights = folders["first"] / "cpu" / WEIGHTS
        weights.rename(weights.with_suffix(".away"))
        try:
            for _ in range(4):  # the first time it tries to load it
                answer = client.post("/embed", json={"inputs": TEXTS, "model": "first"})
                assert (answer.status_code, answer.json()["code"]) == (503, "suspended")
                assert f"the model cannot be loaded: {weights} is missing" in answer.json()["error"]
            ready = client.get("/ready")
            states = ready.json()["models"]
            assert (ready.status_code, WEIGHTS in states.pop("first")) == (503, True)  # it is the default
            assert states == dict.fromkeys(others, "ready")
            values = scrape(client)
            assert values["bert_ready"] == 0
            for name in NAMES:
                assert values[f'bert_model_ready{{model="{name}"}}'] == (name != "first")
            assert in_memory(client) == {"second", "third"}
            assert embed(client, "third") == alone["third"]
        finally:
            weights.with_suffix(".away").rename(weights)
        until(lambda: client.get("/models/first/ready").status_code == 200)
        assert embed(client, "first") == alone["first"]


def test_a_limit_too_small_for_one_model_stops_the_start(folders: Mapping[str, Path]) -> None:
    ended = fail_to_serve(settings_for(folders, BERT_MEMORY_LIMIT="50MiB"))
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
    assert "first alone takes 64 MiB of memory, and BERT_MEMORY_LIMIT is 50 MiB: raise it" in ended.stderr
