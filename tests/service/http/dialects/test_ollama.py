"""Ollama's routes with the bodies that its package sends, and SageMaker's and vLLM's other paths."""

from importlib.metadata import version

from tests.service.in_process import InProcessClient, ask

TEXTS = ["the cat sat", "我爱北京。", ""]
LONG = "the cat sat " * 300


def test_the_vectors_are_those_of_v1_embeddings(encoder: InProcessClient) -> None:
    for fields, same in (({}, {}), ({"dimensions": 8}, {"dimensions": 8}), ({"truncate": True}, {"truncate": True})):
        texts = [*TEXTS, LONG] if "truncate" in fields else TEXTS
        expected = ask(encoder, "/v1/embeddings", input=texts, **same)
        found = ask(encoder, "/api/embed", model="any", input=texts, options={"num_ctx": 9}, keep_alive="5m", **fields)
        assert found["embeddings"] == [one["embedding"] for one in expected["data"]]
        assert (found["model"], found["prompt_eval_count"]) == ("bert", expected["usage"]["total_tokens"])
        assert (type(found["total_duration"]), found["total_duration"] > 0, found["load_duration"]) == (int, True, 0)


def test_the_older_route_takes_one_prompt(encoder: InProcessClient) -> None:
    for text in TEXTS:
        found = ask(encoder, "/api/embeddings", model="any", prompt=text, keep_alive=0)
        own = ask(encoder, "/v1/embeddings", input=text, normalize=False)  # as Ollama: only /api/embed scales
        assert found["embedding"] == own["data"][0]["embedding"]


def test_an_error_is_where_ollamas_client_reads_it(encoder: InProcessClient) -> None:
    response = encoder.post("/api/embed", json={"input": LONG, "truncate": False})
    assert response.status_code == 422
    assert "this model takes at most" in response.json()["error"]


def test_invocations_of_sagemaker_is_the_root_and_v1_score_is_score(encoder: InProcessClient) -> None:
    for body in ({"inputs": TEXTS[:2]}, {"query": "the cat", "texts": TEXTS}, {"inputs": "the [MASK] sat"}):
        assert ask(encoder, "/invocations", **body) == ask(encoder, "/", **body)
    body = {"text_1": "the cat", "text_2": TEXTS}
    assert ask(encoder, "/v1/score", **body)["data"] == ask(encoder, "/score", **body)["data"]


def test_long_texts_are_cut_unless_truncate_is_false(encoder: InProcessClient) -> None:
    of_one = ask(encoder, "/v1/embeddings", input=LONG, truncate=True)["data"][0]["embedding"]
    for more in ({}, {"truncate": None}):
        assert ask(encoder, "/api/embed", model="any", input=["a", LONG], **more)["embeddings"][1] == of_one
    raw = ask(encoder, "/v1/embeddings", input=LONG, truncate=True, normalize=False)["data"][0]["embedding"]
    assert ask(encoder, "/api/embeddings", model="any", prompt=LONG)["embedding"] == raw


def test_tags_ps_and_show_describe_the_model(encoder: InProcessClient) -> None:
    (running,) = encoder.get("/api/ps").json()["models"]
    shown = ask(encoder, "/api/show", model="bert:latest")
    assert (running["name"], running["model"], running["details"]["family"]) == ("bert", "bert", "bert")
    assert encoder.get("/api/tags").json()["models"] == [running]
    assert encoder.get("/api/version").json() == {"version": version("packbert")}
    assert shown["details"] == running["details"]
    assert shown["capabilities"] == ["embedding"]
    vectors = ask(encoder, "/api/embed", model="any", input="a")["embeddings"]
    assert shown["model_info"]["bert.embedding_length"] == len(vectors[0])
    assert shown["model_info"]["bert.context_length"] == encoder.backend.artifact.manifest.max_tokens
    assert encoder.post("/api/show", json={}).status_code == 422
