"""Triton's own HTTP client against the service, and the Open Inference Protocol without a client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton

from tests.service.in_process import RunnerQueue, serve_in_process

TEXTS = ["the cat sat", "我爱北京。", "it was warm"]
INFER = "/v2/models/bert/infer"


@pytest.fixture(scope="module")
def client(server: httpx.Client) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(server.base_url.netloc.decode())
    yield client
    client.close()


def tensor(texts: list[str], *, binary: bool, name: str = "text", shape: tuple[int, ...] = (-1,)) -> triton.InferInput:
    content = np.array([text.encode() for text in texts], np.object_).reshape(shape)
    made = triton.InferInput(name, list(content.shape), "BYTES")
    made.set_data_from_numpy(content, binary_data=binary)
    return made


def embed(server: httpx.Client, **body: Any) -> np.ndarray:
    return np.array(server.post("/embed", json=body).raise_for_status().json(), np.float32)


def body(texts: list[str], **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]} | more


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False, None])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_infer_gives_the_vectors_of_embed(
    binary_input: bool,
    binary_output: bool | None,
    shape: tuple[int, ...],
    client: triton.InferenceServerClient,
    server: httpx.Client,
) -> None:
    named = [] if binary_output is None else [triton.InferRequestedOutput("embedding", binary_data=binary_output)]
    inputs = [tensor(TEXTS, binary=binary_input, shape=shape)]
    found = client.infer("bert", inputs, outputs=named or None, request_id="mine")
    assert np.array_equal(found.as_numpy("embedding"), embed(server, inputs=TEXTS))
    assert found.get_response()["id"] == "mine"
    assert ("data" in found.get_output("embedding")) == (binary_output is False)  # without names: binary


def test_parameters_of_infer_are_the_fields_of_embed(
    client: triton.InferenceServerClient, server: httpx.Client
) -> None:
    parameters = {"normalize": True, "dimensions": 8, "truncate": True}
    texts = [*TEXTS, "cat " * 600]
    found = client.infer("bert", [tensor(texts, binary=True)], model_version="1", parameters=parameters)
    assert np.array_equal(found.as_numpy("embedding"), embed(server, inputs=texts, **parameters))


def test_what_kserves_own_client_adds_changes_nothing(server: httpx.Client) -> None:
    """It sends the model's name again, and other clients null parameters."""
    plain = server.post(INFER, json=body(TEXTS)).raise_for_status().json()
    more = body(TEXTS, model_name="bert", parameters=None, outputs=[{"name": "embedding", "parameters": None}])
    more["inputs"][0]["parameters"] = None
    assert server.post(INFER, json=more).json() == plain


def test_health_says_so_while_the_model_is_not_ready(bert_artifact: Path) -> None:
    with serve_in_process(bert_artifact) as client:
        client.backend.why_not_ready = "loading"
        assert client.get("/v2/health/live").json() == {"live": True}
        for path, content in (
            ("/v2/health/ready", {"ready": False}),
            ("/v2/models/bert/ready", {"name": "bert", "ready": False}),
        ):
            assert (client.get(path).status_code, client.get(path).json()) == (503, content)


def test_a_timeout_in_microseconds_is_the_deadline_and_follows_no_size(
    bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # four times what many texts take alone are more than two seconds
    monkeypatch.setattr(RunnerQueue, "tokens_per_second", 10_000.0)
    with serve_in_process(bert_artifact) as client:
        queue = client.backend.tasks.queue
        assert isinstance(queue, RunnerQueue)
        for texts in (TEXTS, ["the cat " * 60] * 100):
            for parameters, is_short in (({"timeout": 2_000_000}, True), ({"timeout": 0}, False), ({}, False)):
                assert client.post(INFER, json=body(texts, parameters=parameters)).status_code == 200
                assert (queue.deadline <= 2) is is_short


def test_the_model_has_the_name_that_the_operator_gives_it(bert_artifact: Path) -> None:
    with serve_in_process(bert_artifact, BERT_SERVED_MODEL_NAME="org/mine") as client:
        infer = "/v2/models/{}/infer".format
        assert client.post(infer("org/mine"), json=body(["the cat"])).json()["model_name"] == "org/mine"
        assert client.get("/v2/models/org/mine/ready").json() == {"name": "org/mine", "ready": True}
        assert client.post(infer("bert"), json=body(["the cat"])).status_code == 404
        (listed,) = client.get("/v1/models").json()["data"]
        assert client.get("/v1/models/org/mine").json()["id"] == listed["id"] == "org/mine"
        assert client.post("/v1/embeddings", json={"input": "a"}).json()["model"] == "org/mine"
