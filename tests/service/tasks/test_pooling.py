"""/v1/embeddings pools as the checkpoint declares, since OpenAI's clients send no pooling."""

from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness.process import ServiceProcess
from model_export.export import export
from tests.export.goldens import as_sentence_transformers_saves_it


def vector(client: httpx.Client, **more: Any) -> Any:
    response = client.post("/v1/embeddings", json={"input": "the cat"} | more)
    assert response.status_code == 200, response.text
    return response.json()["data"][0]["embedding"]


def pooled(client: httpx.Client, pooling: str) -> Any:
    return client.post("/embed", json={"inputs": "the cat", "pooling": pooling, "normalize": True}).json()[0]


def test_only_v1_embeddings_defaults_to_the_pooling_of_the_checkpoint(tmp_path: Path, server: httpx.Client) -> None:
    checkpoint = as_sentence_transformers_saves_it(
        tmp_path / "checkpoint", {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    )
    export(checkpoint.folder, tmp_path / "artifact")
    with (
        ServiceProcess({"BERT_ARTIFACT": str(tmp_path / "artifact")}) as process,
        httpx.Client(base_url=process.url) as client,
    ):
        assert client.get("/info").json()["pooling"] == "mean"
        assert vector(client) == pooled(client, "mean") == vector(client, pooling="mean")
        assert vector(client, pooling="cls") == pooled(client, "cls") != pooled(client, "mean")
        assert client.post("/embed", json={"inputs": "the cat", "normalize": True}).json()[0] == pooled(client, "cls")
    assert server.get("/info").json()["pooling"] == "cls"
    assert vector(server) == pooled(server, "cls")
