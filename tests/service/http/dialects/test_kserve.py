"""Triton's own HTTP client against the service, and the Open Inference Protocol without a client."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from packbert.service.http.dialects.kserve import JSON_LENGTH
from tests.conftest import Serve
from tests.export.goldens import Artifact
from tests.service.in_process import InProcessClient, RunnerQueue, serve_in_process

TEXTS = ["the cat sat", "我爱北京。", "it was warm"]
INFER = "/v2/models/bert/infer"


@pytest.fixture(scope="module")
def client(server: httpx.Client) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(server.base_url.netloc.decode())
    yield client
    client.close()


@pytest.fixture(scope="module")
def classifier(exported: Callable[..., Artifact]) -> Iterator[InProcessClient]:
    with serve_in_process(exported("bert-labels").root) as client:
        yield client


def tensor(texts: list[str], *, binary: bool, name: str = "text", shape: tuple[int, ...] = (-1,)) -> triton.InferInput:
    content = np.array([text.encode() for text in texts], np.object_).reshape(shape)
    made = triton.InferInput(name, list(content.shape), "BYTES")
    made.set_data_from_numpy(content, binary_data=binary)
    return made


def embed(server: httpx.Client, **body: Any) -> np.ndarray:
    return np.array(server.post("/embed", json=body).raise_for_status().json(), np.float32)


def body(texts: list[str], **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]} | more


def test_the_client_finds_the_server_live_and_its_model_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("bert")
    assert client.is_model_ready("bert", "1")
    assert not client.is_model_ready("other")
    assert not client.is_model_ready("bert", "2")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]


def test_the_metadata_describe_what_infer_takes_and_gives(client: triton.InferenceServerClient) -> None:
    metadata = client.get_model_metadata("bert")
    assert metadata == client.get_model_metadata("bert", "1")
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert metadata["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": [-1, 32]}]
    assert (metadata["name"], metadata["versions"]) == ("bert", ["1"])


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


def test_the_client_shows_the_message_of_an_error(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="input has 602 tokens") as caught:
        client.infer("bert", [tensor(["cat " * 600], binary=True)])
    assert caught.value.status() == "422"
    with pytest.raises(InferenceServerException, match="did you mean /v2/models/bert/infer"):
        client.infer("best", [tensor(TEXTS, binary=True)])
    with pytest.raises(InferenceServerException, match="no output 'logits'; it has embedding"):
        client.infer("bert", [tensor(TEXTS, binary=True)], outputs=[triton.InferRequestedOutput("logits")])
    classes = [triton.InferRequestedOutput("embedding", class_count=2)]
    with pytest.raises(InferenceServerException, match=r"outputs\.0\.parameters\.classification"):
        client.infer("bert", [tensor(TEXTS, binary=True)], outputs=classes)
    with pytest.raises(InferenceServerException, match=r"parameters\.sequence_id"):
        client.infer("bert", [tensor(TEXTS, binary=True)], sequence_id=3)


def test_a_classifier_gives_scores_and_labels_by_default_and_vectors_by_name(classifier: InProcessClient) -> None:
    path = "/v2/models/bert-labels/infer"
    found = classifier.post(path, json=body(TEXTS)).json()
    scores, labels = found["outputs"]
    assert (found["model_name"], found["model_version"]) == ("bert-labels", "1")
    assert (scores["name"], scores["shape"], scores["datatype"]) == ("scores", [3, 3], "FP32")
    assert (labels["name"], labels["shape"], labels["datatype"]) == ("label", [3], "BYTES")
    ranked = classifier.post("/predict", json={"inputs": [[text] for text in TEXTS]}).json()
    assert labels["data"] == [one[0]["label"] for one in ranked]
    assert np.reshape(scores["data"], (3, 3)).max(axis=1) == pytest.approx([one[0]["score"] for one in ranked])
    (only,) = classifier.post(path, json=body(TEXTS, outputs=[{"name": "embedding"}])).json()["outputs"]
    assert only["data"] == np.ravel(classifier.post("/embed", json={"inputs": TEXTS}).json()).tolist()
    both = classifier.post(path, json=body(TEXTS, outputs=[{"name": "embedding"}, {"name": "label"}]))
    assert "a request for each" in both.json()["error"]
    for parameters in ({"prompt": "a "}, {"normalize": True}, {"dimensions": 2}):
        refused = classifier.post(path, json=body(TEXTS, parameters=parameters))
        assert (refused.status_code, "applies to vectors" in refused.json()["error"]) == (422, True)
    vectors = [{"name": "embedding"}]
    assert classifier.post(path, json=body(TEXTS, outputs=vectors, parameters={"raw_scores": True})).status_code == 422
    metadata = classifier.get("/v2/models/bert-labels").json()
    assert [one["name"] for one in metadata["inputs"]] == ["text", "text_pair"]
    assert [one["name"] for one in metadata["outputs"]] == ["embedding", "scores", "label"]


def test_a_classifier_takes_pairs_and_gives_binary_labels(classifier: InProcessClient) -> None:
    seconds = {"name": "text_pair", "shape": [3], "datatype": "BYTES", "data": TEXTS[::-1]}
    request = body(TEXTS, parameters={"binary_data_output": True, "raw_scores": True})
    request["inputs"].append(seconds)
    response = classifier.post("/v2/models/bert-labels/infer", json=request)
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[JSON_LENGTH.decode()])
    found = triton.InferResult.from_response_body(response.content, header_length=length)
    pairs = [list(pair) for pair in zip(TEXTS, TEXTS[::-1], strict=True)]
    ranked = classifier.post("/predict", json={"inputs": pairs, "raw_scores": True}).json()
    assert found.as_numpy("label").tolist() == [one[0]["label"].encode() for one in ranked]
    assert found.as_numpy("scores").max(axis=1) == pytest.approx([one[0]["score"] for one in ranked])


def test_an_encoder_does_not_take_pairs(server: httpx.Client) -> None:
    request = body(TEXTS)
    request["inputs"].append(request["inputs"][0] | {"name": "text_pair"})
    assert "text_pair is an input of scores" in server.post(INFER, json=request).json()["error"]


def test_a_cross_encoders_metadata_have_both_texts(exported: Callable[..., Artifact]) -> None:
    with serve_in_process(exported("distilbert-labels").root) as client:
        metadata = client.get("/v2/models/distilbert-labels").json()
        assert [one["name"] for one in metadata["inputs"]] == ["text", "text_pair"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [2]}, "shape [2] and 3 texts"),
        ({"shape": [3, 2]}, "shape [3, 2] and 3 texts"),
        ({"shape": [-1, -3]}, "shape [-1, -3] and 3 texts"),
        ({"shape": []}, "shape [] and 3 texts"),
        ({"datatype": "INT64"}, "datatype INT64"),
        ({"name": "ids"}, "the inputs are ids"),
        ({"data": None}, "shared memory is not supported"),
        ({"data": ["a", "", "b"]}, "no tokens"),
        ({"data": [5]}, "inputs.0.data.0"),
        ({"parameters": {"shared_memory_region": "x"}}, "inputs.0.parameters.shared_memory_region"),
    ],
)
def test_another_tensor_is_refused_with_the_reason(server: httpx.Client, change: dict[str, Any], message: str) -> None:
    request = body(TEXTS)
    request["inputs"][0] |= change
    response = server.post(INFER, json=request)
    assert response.status_code == 422
    assert message in response.json()["error"]


def binary(elements: bytes, *, size: int | None = None, length: str | None = None, after: bytes = b"") -> Any:
    """The body and the headers of a request whose text has these bytes, whatever they are."""
    stated = len(elements) if size is None else size
    head = b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]}' % stated
    headers = {JSON_LENGTH.decode(): str(len(head)) if length is None else length}
    return {"content": head + elements + after, "headers": headers}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (binary(b"\x01\x00\x00"), "element 0 ends after the tensor's 3 bytes"),
        (binary(b"\xff\xff\xff\xffa"), "element 0 ends after the tensor's 5 bytes"),
        (binary(struct.pack("<I", 1) + b"\xff"), "not UTF-8"),
        (binary(b"", size=10), "binary_data_size is 10; 0 bytes are left"),
        (binary(struct.pack("<I", 1) + b"a", after=b"b"), "1 bytes after the last binary tensor"),
        (binary(b"", length="9999"), "inference-header-content-length is '9999'"),
        (binary(b"", length="-1"), "inference-header-content-length is '-1'"),
        (binary(b""), "shape [1] and 0 texts"),
    ],
)
def test_a_binary_tensor_that_cannot_be_read_is_refused_with_the_reason(
    server: httpx.Client, request_: Any, message: str
) -> None:
    response = server.post(INFER, **request_)
    assert response.status_code == 422
    assert message in response.json()["error"]


def test_health_says_so_while_the_model_is_not_ready(bert_artifact: Path) -> None:
    with serve_in_process(bert_artifact) as client:
        client.backend.why_not_ready = "loading"
        assert client.get("/v2/health/live").json() == {"live": True}
        for path, content in (
            ("/v2/health/ready", {"ready": False}),
            ("/v2/models/bert/ready", {"name": "bert", "ready": False}),
        ):
            assert (client.get(path).status_code, client.get(path).json()) == (503, content)


def test_a_timeout_in_microseconds_is_the_deadline(bert_artifact: Path) -> None:
    with serve_in_process(bert_artifact) as client:
        for parameters, is_short in (({"timeout": 2_000_000}, True), ({"timeout": 0}, False), ({}, False)):
            assert client.post(INFER, json=body(TEXTS, parameters=parameters)).status_code == 200
            queue = client.backend.tasks.queue
            assert isinstance(queue, RunnerQueue)
            assert (queue.deadline <= 2) is is_short


def test_a_timeout_does_not_follow_the_size_of_a_large_request(
    bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # four times what the request takes alone are more than two seconds
    monkeypatch.setattr(RunnerQueue, "tokens_per_second", 10_000.0)
    with serve_in_process(bert_artifact) as client:
        queue, texts = client.backend.tasks.queue, ["the cat " * 60] * 100
        assert isinstance(queue, RunnerQueue)
        for parameters, is_short in (({"timeout": 2_000_000}, True), ({}, False)):
            assert client.post(INFER, json=body(texts, parameters=parameters)).status_code == 200
            assert (queue.deadline <= 2) is is_short


def test_the_model_has_the_name_that_the_operator_gives_it(serve: Serve, bert_artifact: Path) -> None:
    client = serve(bert_artifact, BERT_SERVED_MODEL_NAME="org/mine")
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["the cat"]}]}
    assert client.post("/v2/models/org/mine/infer", json=body).json()["model_name"] == "org/mine"
    assert client.get("/v2/models/org/mine/ready").json() == {"name": "org/mine", "ready": True}
    assert client.post("/v2/models/bert/infer", json=body).status_code == 404
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["org/mine"]
    info = client.get("/info").json()
    assert (info["model"], info["model_id"]) == ("org/mine", "org/mine")
    assert client.post("/v1/embeddings", json={"input": "a"}).json()["model"] == "org/mine"
    assert 'model="org/mine"' in client.get("/metrics").text
