"""OpenAI's own client against the service, with only its base URL set; and what else its dialect accepts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import numpy as np
import openai
import pytest
from tokenizers import Tokenizer

from packbert.service.errors import Overloaded
from tests.export.goldens import Exported
from tests.service.in_process import InProcessClient, serve_in_process

TEXTS = ["the cat sat", "我爱北京。", "it was warm"]


@pytest.fixture(scope="module")
def client(server: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def in_process(bert_artifact: Path) -> Iterator[InProcessClient]:
    with serve_in_process(bert_artifact, BERT_API_KEY="secret") as client:
        yield client


def embed(server: httpx.Client, **body: Any) -> np.ndarray:
    return np.array(server.post("/embed", json=body).raise_for_status().json(), np.float32)


def as_array(found: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    assert [one.index for one in found.data] == list(range(len(found.data)))
    return np.array([one.embedding for one in found.data], np.float32)


def test_vectors_equal_those_of_embed_as_base64_and_as_floats(server: httpx.Client, client: openai.OpenAI) -> None:
    expected = embed(server, inputs=TEXTS, normalize=True)
    by_default = client.embeddings.create(model="any", input=TEXTS)
    assert np.array_equal(as_array(by_default), expected)  # the client asks for base64
    assert np.array_equal(
        as_array(client.embeddings.create(model="any", input=TEXTS, encoding_format="float")), expected
    )
    short = client.embeddings.create(model="any", input=TEXTS[0], dimensions=8, user="me")
    assert np.array_equal(as_array(short), embed(server, inputs=TEXTS[0], normalize=True, dimensions=8))
    assert by_default.usage.total_tokens > len(TEXTS)


def test_azures_client_gets_vectors_of_the_deployment_with_the_models_name(server: httpx.Client) -> None:
    address = {"azure_endpoint": str(server.base_url), "api_version": "2024-10-21"}
    with openai.AzureOpenAI(**address, api_key="any", max_retries=0) as client:
        found = as_array(client.embeddings.create(model="bert", input=TEXTS))
        assert np.array_equal(found, embed(server, inputs=TEXTS, normalize=True))
    with openai.OpenAI(base_url=f"{server.base_url}/openai/v1", api_key="any") as client:
        assert np.array_equal(as_array(client.embeddings.create(model="any", input=TEXTS)), found)
    with (
        openai.AzureOpenAI(**address, api_key="any", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match="POST /openai/deployments/any/embeddings"),
    ):
        client.embeddings.create(model="any", input="a")


async def call(in_process: InProcessClient, key: str) -> Any:
    """The client's own list of models and one embedding, through the application without a socket."""
    transport = httpx2.ASGITransport(in_process.app)
    http_client = httpx2.AsyncClient(transport=transport)
    async with openai.AsyncOpenAI(base_url="http://test/v1", api_key=key, http_client=http_client) as client:
        found = await client.embeddings.create(model="any", input="the cat")
        return found, await client.models.list()


def test_a_wrong_key_is_an_authentication_error(in_process: InProcessClient) -> None:
    with pytest.raises(openai.AuthenticationError, match="missing or wrong") as caught:
        asyncio.run(call(in_process, "wrong"))
    assert caught.value.type == "authentication_error"
    assert in_process.get("/v1/models").status_code == 401
    found, models = asyncio.run(call(in_process, "secret"))
    assert len(found.data) == 1
    assert models.data[0].id == "bert"


def test_the_client_retries_after_the_time_that_a_full_queue_states(
    in_process: InProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def record(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(anyio, "sleep", record)
    in_process.backend.refusals = [Overloaded("the queue is full", retry_after=6.2)]
    found, _ = asyncio.run(call(in_process, "secret"))
    assert len(found.data) == 1
    assert waits == [7.0]
    in_process.backend.refusals = [Overloaded("the queue is full", retry_after=1.0)] * 3
    with pytest.raises(openai.RateLimitError, match="the queue is full") as caught:
        asyncio.run(call(in_process, "secret"))
    assert caught.value.type == "rate_limit_error"


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("special", [True, False])
def test_token_ids_of_this_models_tokenizer_give_the_vectors_of_the_texts(
    name: str, special: bool, exported: Exported
) -> None:
    artifact = exported(name)
    tokenizer = Tokenizer.from_file(str(artifact.folder / "tokenizer.json"))
    ids = [tokenizer.encode(text, add_special_tokens=special).ids for text in TEXTS]
    with serve_in_process(artifact.root) as client:
        by_text = client.post("/v1/embeddings", json={"input": TEXTS})
        by_ids = client.post("/v1/embeddings", json={"input": ids, "tokenizer": name})
        assert by_ids.json() == by_text.json()
        one = client.post("/v1/embeddings", json={"input": ids[0], "tokenizer": name}).json()
        assert one["data"] == by_text.json()["data"][:1]


def test_token_ids_are_truncated_if_requested(server: httpx.Client) -> None:
    limit = server.get("/info").json()["limits"]["tokens"]
    body = {"input": [*[6] * 600, 7], "tokenizer": "bert", "truncate": True}
    right, left = (
        server.post("/v1/embeddings", json=body | {"truncation_direction": side}) for side in ("right", "left")
    )
    assert right.headers["x-truncated-inputs"] == left.headers["x-truncated-inputs"] == "1"
    assert right.json()["usage"]["total_tokens"] == limit
    expected = [
        server.post("/v1/embeddings", json=body | {"input": ids})
        for ids in ([6] * (limit - 2), [*[6] * (limit - 3), 7])
    ]
    assert [right.json()["data"], left.json()["data"]] == [one.json()["data"] for one in expected]
