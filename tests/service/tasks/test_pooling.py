"""The defaults of /embed and /v1/embeddings: the artifact's or the operator's, in /info and in the log."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.service.artifact import open_artifact
from packbert.service.settings import Settings, SettingsError, variables_with
from packbert.service.tasks.defaults import describe_defaults, embedding_defaults
from tests import sentence_transformers
from tests.export.goldens import Artifact


@pytest.fixture
def prompts(exported: Callable[..., Artifact]) -> Path:
    """An artifact with pooling mean and Normalize."""
    return exported("sentence-transformers/prompts").root


@contextmanager
def served(artifact: Path, **settings: str) -> Iterator[httpx.Client]:
    with (
        ServiceProcess({"BERT_ARTIFACT": str(artifact)} | settings) as process,
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


def test_a_plain_checkpoints_default_is_the_raw_cls_vector(server: httpx.Client) -> None:
    info = server.get("/info").json()
    assert (info["pooling"], info["normalize"], info["prompts"]) == ("cls", False, {})
    assert embed(server) == embed(server, pooling="cls", normalize=False)
    assert openai(server) == embed(server, normalize=True)


def test_the_settings_decide_otherwise_and_a_requests_field_wins(prompts: Path) -> None:
    with served(prompts, BERT_POOLING="cls", BERT_NORMALIZE="false") as client:
        info = client.get("/info").json()
        assert (info["pooling"], info["normalize"]) == ("cls", False)
        assert info["embedding"]["decided_by"] == "BERT_POOLING and BERT_NORMALIZE"
        raw = embed(client, pooling="cls", normalize=False)
        assert embed(client) == raw == openai(client)
        assert embed(client, normalize=True) == openai(client, normalize=True) != raw
        assert embed(client, pooling="mean", normalize=True) != embed(client, normalize=True)


def test_api_workers_leave_out_the_prompt_as_encode_does(exported: Callable[..., Artifact]) -> None:
    answers = sentence_transformers.answers("without-prompt")
    with served(exported("sentence-transformers/without-prompt").root, BERT_API_PROCESSES="1") as client:
        for call in answers["calls"]:
            body = {"inputs": answers["texts"], "truncate": True} | call["arguments"]
            got, want = np.array(client.post("/embed", json=body).json()), np.array(call["vectors"])
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert client.get("/info").json()["pooling"] == "sentence"


@pytest.mark.parametrize("processes", ["0", "1"])
def test_the_start_logs_the_defaults_once(prompts: Path, processes: str) -> None:
    settings = {"BERT_ARTIFACT": str(prompts), "BERT_PORT": "0", "BERT_API_PROCESSES": processes}
    with subprocess.Popen(
        [sys.executable, "-m", "packbert", "serve"], stderr=subprocess.PIPE, text=True, env=variables_with(**settings)
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if " ready: " in line:
                break
        process.terminate()
        lines += process.stderr.readlines()
    said = [line for line in lines if "/embed by default" in line]
    assert len(said) == 1
    assert (
        said[0]
        .rstrip()
        .endswith(
            "/embed by default: pooling mean (Pooling(mean), Normalize), unit length, prompt query; "
            "decided by the artifact"
        )
    )


def test_a_pooling_that_the_artifact_lacks_stops_the_start(prompts: Path) -> None:
    manifest = open_artifact(prompts).manifest
    settings = Settings.from_environment({"BERT_ARTIFACT": "/a", "BERT_POOLING": "sentence"})
    with pytest.raises(SettingsError, match="BERT_POOLING: prompts has no sentence; it has cls, mean, pooler"):
        embedding_defaults(manifest, settings)
    environment = variables_with(BERT_ARTIFACT=str(prompts), BERT_POOLING="sentence", BERT_PORT="0")
    finished = subprocess.run(
        [sys.executable, "-m", "packbert", "serve"], capture_output=True, text=True, check=False, env=environment
    )
    assert finished.returncode == 2
    assert finished.stderr == "packbert serve: BERT_POOLING: prompts has no sentence; it has cls, mean, pooler\n"


def test_the_line_names_the_setting_that_decided(prompts: Path) -> None:
    manifest = open_artifact(prompts).manifest
    settings = Settings.from_environment({"BERT_ARTIFACT": "/a", "BERT_NORMALIZE": "false"})
    assert describe_defaults(manifest, settings).endswith("not normalized, prompt query; decided by BERT_NORMALIZE")
