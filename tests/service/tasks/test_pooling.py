"""The defaults of /embed and /v1/embeddings: the artifact's or the operator's, in /info and in the log."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.service.artifact import open_artifact
from packbert.service.settings import Settings, SettingsError, variables_with
from packbert.service.tasks.defaults import describe_defaults, embedding_defaults
from tests.export.goldens import Artifact


@pytest.fixture
def prompts(exported: Callable[..., Artifact]) -> Path:
    """An artifact with pooling mean and Normalize."""
    return exported("sentence-transformers/prompts").root


@contextmanager
def served(artifact: Path, **settings: str) -> Iterator[httpx.Client]:
    with (
        ServiceProcess({"BERT_MODEL": str(artifact)} | settings) as process,
        httpx.Client(base_url=process.url) as client,
    ):
        yield client


def embed(client: httpx.Client, **more: Any) -> Any:
    response = client.post("/embed", json={"inputs": "the cat"} | more)
    assert response.status_code == 200, response.text
    return response.json()[0]


def openai(client: httpx.Client, **more: Any) -> Any:
    response = client.post("/v1/embeddings", json={"input": "the cat"} | more)
    assert response.status_code == 200, response.text
    return response.json()["data"][0]["embedding"]


def test_a_checkpoints_own_vectors_are_the_default_of_both_routes(prompts: Path) -> None:
    with served(prompts) as client:
        info = client.get("/info").json()
        assert (info["pooling"], info["normalize"], info["similarity_fn_name"]) == ("mean", True, "cosine")
        assert (info["default_prompt_name"], info["prompts"]["document"]) == ("query", "")
        assert info["embedding"] == {
            "decided_by": "the artifact",
            "dimensions": 32,
            "modules": ["Pooling(mean)", "Normalize"],
            "left_out": [],
            "include_prompt": True,
        }
        own = embed(client, pooling="mean", normalize=True, prompt_name="query")
        assert own == embed(client) == openai(client) == openai(client, prompt="the river is cold: ")
        assert embed(client, pooling="cls", normalize=False) != own
        assert embed(client, prompt="") == embed(client, prompt_name="document") != own
        refused = client.post("/v1/embeddings", json={"input": "a", "prompt_name": "nothing"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "prompt")


def test_the_settings_decide_otherwise_and_a_requests_field_wins(prompts: Path) -> None:
    with served(prompts, BERT_POOLING="cls", BERT_NORMALIZE="false") as client:
        info = client.get("/info").json()
        assert (info["pooling"], info["normalize"]) == ("cls", False)
        assert info["embedding"]["decided_by"] == "BERT_POOLING and BERT_NORMALIZE"
        raw = embed(client, pooling="cls", normalize=False)
        assert embed(client) == raw == openai(client)
        assert embed(client, normalize=True) == openai(client, normalize=True) != raw
        assert embed(client, pooling="mean", normalize=True) != embed(client, normalize=True)


def test_the_start_logs_the_defaults_once(prompts: Path) -> None:
    with ServiceProcess({"BERT_MODEL": str(prompts)}) as process:
        said = [line for line in process.output().splitlines() if "/embed by default" in line]
    (line,) = said
    decided = "pooling mean (Pooling(mean), Normalize), unit length, prompt query; decided by the artifact"
    assert line.endswith(f"/embed by default: {decided}")


def test_a_pooling_that_the_artifact_lacks_stops_the_start(prompts: Path) -> None:
    manifest = open_artifact(prompts).manifest
    settings = Settings.from_environment({"BERT_MODEL": "/a", "BERT_POOLING": "sentence"})
    with pytest.raises(SettingsError, match="BERT_POOLING: prompts has no sentence; it has cls, mean, pooler"):
        embedding_defaults(manifest, settings)
    environment = variables_with(BERT_MODEL=str(prompts), BERT_POOLING="sentence", BERT_PORT="0")
    finished = subprocess.run(
        [sys.executable, "-m", "packbert", "serve"], capture_output=True, text=True, check=False, env=environment
    )
    assert finished.returncode == 2
    assert finished.stderr == "packbert serve: BERT_POOLING: prompts has no sentence; it has cls, mean, pooler\n"


def test_the_line_names_the_setting_that_decided(prompts: Path) -> None:
    manifest = open_artifact(prompts).manifest
    settings = Settings.from_environment({"BERT_MODEL": "/a", "BERT_NORMALIZE": "false"})
    assert describe_defaults(manifest, settings).endswith("not normalized, prompt query; decided by BERT_NORMALIZE")
