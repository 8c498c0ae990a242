"""The HTTP API of a real server process with the golden BERT: results equal to transformers, one format for errors."""

import base64
import io
import json
import re
from typing import Any

import httpx
import numpy as np
import pytest

from packbert.service.http.openapi import InfoResponse
from tests.pipelines import as_pipeline, same, without_targets

GOLDEN_HIDDEN = 32

OPERATIONS = """
    embed fill_mask nsp predict tag answer choose attention embeddings embeddings_of_infinity
    embeddings_of_azure_v1 similarity rerank rerank_v1 rerank_v2 ranking embeddings_of_cohere_v1
    embeddings_of_cohere_v2 embeddings_of_ollama prompt_of_ollama show root invocations classify score
    score_v1 pooling tokenize decode embed_all embed_sparse infer infer_by_version embeddings_of_azure
    health ready info metrics server_metadata server_live server_ready model_metadata model_ready
    model_metadata_by_version model_ready_by_version ping models retrieve_model models_of_infinity
    models_of_ollama ps_of_ollama version_for_ollama
"""


def post(server: httpx.Client, path: str, body: Any, **headers: str) -> httpx.Response:
    return server.post(path, json=body, headers=headers)


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body of an error, after checking its shape."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    assert set(body) <= {"error", "error_type", "code", "index", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == response.headers["x-request-id"]
    assert len(body["error"]) > 20
    return body


def test_fill_mask_equals_the_pipeline(server: httpx.Client, bert_answers: dict[str, Any]) -> None:
    for case in bert_answers["fill_mask"]:
        parameters = as_pipeline(case["parameters"])
        nested = post(server, "/fill-mask", {"inputs": case["inputs"], "parameters": parameters}).json()
        same(without_targets(nested), case["answer"])
        assert post(server, "/fill-mask", {"inputs": case["inputs"]} | parameters).json() == nested


def test_fill_mask_nests_lists_as_the_pipeline_does(server: httpx.Client, bert_answers: dict[str, Any]) -> None:
    plain = [case for case in bert_answers["fill_mask"] if not case["parameters"].get("targets")]
    texts = [case["inputs"] for case in plain]
    found = post(server, "/fill-mask", {"inputs": texts, "top_k": 1}).json()
    alone = [post(server, "/fill-mask", {"inputs": text, "top_k": 1}).json() for text in texts]
    assert found == alone
    assert (
        post(server, "/fill-mask", {"inputs": texts[:1], "top_k": 1}).json() == alone[0]
    )  # a list of one is unwrapped


def test_fill_mask_scores_are_probabilities_over_the_whole_vocabulary(server: httpx.Client) -> None:
    vocabulary = server.get("/info").json()["sizes"]["vocabulary"]
    everything = post(server, "/fill-mask", {"inputs": "the [MASK] is big", "top_k": vocabulary}).json()
    assert len(everything) == vocabulary
    assert sum(one["score"] for one in everything) == pytest.approx(1.0, abs=1e-5)
    by_word = {one["token"]: one["score"] for one in everything}
    for one in post(server, "/fill-mask", {"inputs": "the [MASK] is big", "targets": ["cat", "dog"]}).json():
        assert one["score"] == by_word[one["token"]]


def test_fill_mask_with_top_k_0_gives_no_candidates(server: httpx.Client) -> None:
    assert post(server, "/fill-mask", {"inputs": "the [MASK]", "top_k": 0}).json() == []


def test_nsp_equals_transformers(server: httpx.Client, bert_answers: dict[str, Any]) -> None:
    pairs = [{"text": case["text"], "text_pair": case["text_pair"]} for case in bert_answers["pairs"]]
    answers = post(server, "/nsp", {"inputs": pairs}).json()
    for answer, case in zip(answers, bert_answers["pairs"], strict=True):
        assert answer["is_next"] == pytest.approx(case["probabilities"][0], abs=1e-5)
        assert answer["not_next"] == pytest.approx(case["probabilities"][1], abs=1e-5)
        assert answer["label"] == ("is_next" if case["probabilities"][0] >= 0.5 else "not_next")
    assert post(server, "/nsp", {"inputs": pairs[0]}).json() == answers[0]
    assert post(server, "/nsp", {"inputs": list(pairs[0].values())}).json() == answers[0]  # as /predict takes it
    assert post(server, "/nsp", {"inputs": [[p["text"], p["text_pair"]] for p in pairs]}).json() == answers


def test_embed_gives_vectors_in_order_and_independent_of_the_other_inputs(server: httpx.Client) -> None:
    texts = ["the cat", "我爱北京。", "a " * 100, "it"]
    together = post(server, "/embed", {"inputs": texts}).json()
    assert [post(server, "/embed", {"inputs": text}).json()[0] for text in texts] == together
    assert len(together[0]) == GOLDEN_HIDDEN


def test_embed_normalizes_after_shortening(server: httpx.Client) -> None:
    raw = np.array(post(server, "/embed", {"inputs": "the cat"}).json()[0])
    short = np.array(post(server, "/embed", {"inputs": "the cat", "dimensions": 8, "normalize": True}).json()[0])
    np.testing.assert_allclose(short, raw[:8] / np.linalg.norm(raw[:8]), atol=1e-6)


def test_embed_applies_the_requested_pooling(server: httpx.Client) -> None:
    answers = {
        pooling: post(server, "/embed", {"inputs": "the cat", "pooling": pooling}).json()[0]
        for pooling in ("cls", "pooler", "mean")
    }
    assert len({tuple(vector) for vector in answers.values()}) == 3
    assert max(map(abs, answers["pooler"])) <= 1.0


def test_npy_and_base64_hold_the_same_numbers_as_json(server: httpx.Client) -> None:
    texts = ["the cat", "hello world"]
    vectors = np.array(post(server, "/embed", {"inputs": texts}).json(), np.float32)
    npy = post(server, "/embed", {"inputs": texts}, accept="application/x-npy")
    assert npy.headers["content-type"] == "application/x-npy"
    assert np.array_equal(np.load(io.BytesIO(npy.content)), vectors)
    openai = post(server, "/v1/embeddings", {"input": texts, "encoding_format": "base64", "normalize": False}).json()
    decoded = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in openai["data"]]
    assert np.array_equal(np.stack(decoded), vectors)
    assert openai["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_many_rows_are_encoded_in_the_same_format_as_few(server: httpx.Client) -> None:
    one = post(server, "/embed", {"inputs": "the cat"}).json()[0]
    assert post(server, "/embed", {"inputs": ["the cat"] * 100}).json() == [one] * 100


def test_responses_carry_timing_and_the_request_id(server: httpx.Client) -> None:
    response = post(server, "/embed", {"inputs": "the cat"}, **{"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    parts = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
    assert list(parts) == ["tokenize", "queue", "forward", "format"]
    assert all(float(value) >= 0 and len(value.split(".")[1]) == 3 for value in parts.values())
    invalid = post(server, "/embed", {"inputs": "the cat"}, **{"x-request-id": "x" * 200}).headers["x-request-id"]
    assert len(invalid) == 16


def test_truncation_is_rejected_or_reported(server: httpx.Client) -> None:
    texts = ["the cat", "cat " * 600]
    rejected = error(post(server, "/embed", {"inputs": texts}), 422, "too_long")
    assert rejected["index"] == 1
    truncated = post(server, "/embed", {"inputs": texts, "truncate": True})
    assert truncated.headers["x-truncated-inputs"] == "1"
    assert "x-truncated-inputs" not in post(server, "/embed", {"inputs": texts[:1], "truncate": True}).headers


def test_openais_route_truncates_if_requested_and_otherwise_names_the_long_input(server: httpx.Client) -> None:
    texts = ["the cat", "cat " * 600 + "dog"]
    rejected = post(server, "/v1/embeddings", {"input": texts})
    assert rejected.status_code == 422
    assert rejected.json()["error"]["param"] == "input.1"
    truncated = post(
        server, "/v1/embeddings", {"input": texts, "truncate": True, "truncation_direction": "left", "normalize": False}
    )
    assert truncated.headers["x-truncated-inputs"] == "1"
    vectors = [one["embedding"] for one in truncated.json()["data"]]
    assert vectors == post(server, "/embed", {"inputs": texts, "truncate": True, "truncation_direction": "left"}).json()


def test_a_truncated_mask_is_an_error_of_its_input(server: httpx.Client) -> None:
    body = error(
        post(server, "/fill-mask", {"inputs": ["the [MASK]", "cat " * 600 + "[MASK]"], "truncate": True}),
        422,
        "no_mask",
    )
    assert body["index"] == 1
    assert "cut away" in body["error"]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/embed", {}, "invalid"),
        ("/embed", {"inputs": 5}, "invalid"),
        ("/embed", {"inputs": "a", "surprise": 1}, "invalid"),
        ("/embed", {"inputs": "a", "pooling": "max"}, "invalid"),
        ("/embed", {"inputs": "a", "normalize": "yes"}, "invalid"),
        ("/embed", {"inputs": "a", "dimensions": 33}, "dimensions"),
        ("/embed", {"inputs": "a", "dimensions": 0}, "invalid"),
        ("/embed", {"inputs": []}, "empty"),
        ("/embed", {"inputs": ""}, "empty"),
        ("/embed", {"inputs": ["a", " "]}, "empty"),
        ("/fill-mask", {"inputs": "no mask here"}, "no_mask"),
        ("/fill-mask", {"inputs": "[MASK]", "top_k": -1}, "invalid"),
        ("/fill-mask", {"inputs": "[MASK]", "top_k": 1000}, "top_k"),
        ("/fill-mask", {"inputs": "[MASK]", "targets": []}, "targets"),
        ("/fill-mask", {"inputs": "[MASK]", "targets": ""}, "targets"),
        ("/fill-mask", {"inputs": "[MASK]", "top_k": 1, "parameters": {"top_k": 2}}, "parameters"),
        ("/nsp", {"inputs": {"text": "a"}}, "invalid"),
        ("/nsp", {"inputs": {"text": "a", "text_pair": ""}}, "empty"),
        ("/nsp", {"inputs": [["a", "b", "c"]]}, "pair"),
        ("/nsp", {"inputs": "a"}, "invalid"),
        ("/nsp", {"inputs": ["a"]}, "pair"),
        ("/nsp", {"inputs": ["a", "b", "c"]}, "pair"),
        ("/nsp", {"inputs": ["a", ["b", "c"]]}, "pair"),
    ],
)
def test_an_invalid_body_gets_422_with_the_reason(server: httpx.Client, path: str, body: Any, code: str) -> None:
    error(post(server, path, body), 422, code)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"inputs": "\xff"}', b'{"inputs": "\\ud800"}', b"[" * 10_000, "{}".encode("utf-16")],
    ids=["empty", "cut", "not UTF-8", "surrogate", "deep", "UTF-16"],
)
def test_a_body_that_is_not_json_gets_400(server: httpx.Client, content: bytes) -> None:
    error(server.post("/embed", content=content), 400, "bad_request")


@pytest.mark.parametrize("text", ["the cat", "the cat sat " * 2000])
def test_a_byte_order_mark_before_json_is_skipped(server: httpx.Client, text: str) -> None:
    body = json.dumps({"inputs": text, "truncate": True}).encode()
    assert server.post("/embed", content=b"\xef\xbb\xbf" + body).json() == server.post("/embed", content=body).json()


@pytest.mark.parametrize("slashes", ["/", "//"])
def test_a_slash_after_a_path_changes_no_answer(server: httpx.Client, slashes: str) -> None:
    """Also of a path with an error, and without a redirect, which would use the Host header."""
    for path in ("/health", "/v1/models", "/docs", "/v1/models/bert", "/embed"):
        plain, found = server.get(path), server.get(path + slashes)
        own = {"error", "request_id"}
        assert found.status_code == plain.status_code
        assert own & {*plain.text.split('"')} or found.content == plain.content
    body = {"inputs": "the cat"}
    assert post(server, f"/embed{slashes}", body).json() == post(server, "/embed", body).json()
    assert post(server, slashes, body).json() == post(server, "/", body).json()


@pytest.mark.parametrize(
    "content", [b'{"inputs": NaN}', b'{"inputs": "a", "dimensions": 1e999}', b'{"inputs": "a", "dimensions": Infinity}']
)
def test_numbers_that_are_not_finite_get_422(server: httpx.Client, content: bytes) -> None:
    error(server.post("/embed", content=content), 422, "invalid")


def test_more_inputs_than_the_limit_get_413(server: httpx.Client) -> None:
    assert (
        "101 inputs; at most 100" in error(post(server, "/embed", {"inputs": ["a"] * 101}), 413, "too_large")["error"]
    )


def test_a_response_over_the_size_limit_gets_413(server: httpx.Client) -> None:
    many = {"inputs": ["[MASK] " * 60] * 60, "top_k": 100}
    message = error(post(server, "/fill-mask", many), 413, "too_large")["error"]
    assert re.match(r"100 candidates for each of \d+ masks", message)  # those that were counted until it was too much
    assert "tokens; at most 4000000" in message
    assert post(server, "/fill-mask", many | {"targets": ["cat", "dog"]}).status_code == 200  # two candidates for each


def test_targets_are_limited_to_the_length_of_a_text(server: httpx.Client) -> None:
    message = error(
        post(server, "/fill-mask", {"inputs": "[MASK]", "targets": ["cat", "a " * 60_000]}), 422, "targets"
    )["error"]
    assert message == "targets hold 120003 characters; at most 100000 are allowed (BERT_MAX_CHARACTERS): send fewer"


def test_unknown_paths_and_methods_get_the_standard_error_body(server: httpx.Client) -> None:
    assert "/fill-mask" in error(server.get("/nothing"), 404, "not_found")["error"]
    assert "/fill-mask" in error(post(server, "/fill-mask/more/", {}), 404, "not_found")["error"]
    refused = error(server.get("/embed"), 405, "method_not_allowed")["error"]
    assert refused == 'GET /embed: send POST with a JSON body, for example {"inputs":"my dog is hairy"}'
    refused = server.get("/v1/embeddings").json()["error"]["message"]
    assert refused.endswith('for example {"input":"my dog is hairy"}')
    assert error(server.post("/health"), 405, "method_not_allowed")["error"] == "POST /health: send GET"
    assert server.post("/v1/embeddings", content=b"{").json()["error"]["code"] == "bad_request"


@pytest.mark.parametrize("value", ["0", "-5", "soon", "99999999", "1.5", "9" * 5000])
def test_a_timeout_that_is_not_a_number_of_milliseconds_gets_422(server: httpx.Client, value: str) -> None:
    error(post(server, "/embed", {"inputs": "a"}, **{"x-request-timeout-ms": value}), 422, "timeout")


def test_info_describes_the_running_model(server: httpx.Client) -> None:
    info = server.get("/info").json()
    assert info["execution_provider"] == "CPU"
    assert info["family"] == "bert"
    empty: dict[str, Any] = {"version": "", "revision": "", "license": "", "languages": []}
    assert info["identity"] == empty | {"source": "bert"}
    assert info["model_sha"] is None
    assert info["mask_token"] == "[MASK]"
    assert info["heads"] == ["cls", "mean", "tokens", "layers", "pooler", "pair", "fill_mask", "attention"]
    assert info["limits"]["inputs"] == 100
    assert info["measured"]["batch_invariant"] is True


def test_health_ready_and_docs_respond(server: httpx.Client) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").json() == {"status": "ready"}
    page = server.get("/docs").text
    assert "http://" not in page  # works without the internet
    assert "https://" not in page
    script = re.search(r'src="(/[^"]+\.js)"', page)
    assert script is not None
    assert server.get(script[1]).status_code == 200


def resolve(page: dict[str, Any], schema: dict[str, Any]) -> Any:
    """The schema that a reference points to, or the schema itself."""
    return page["components"]["schemas"][schema["$ref"].split("/")[-1]] if "$ref" in schema else schema


def test_openapi_documents_every_task_with_its_errors(server: httpx.Client) -> None:
    page = server.get("/openapi.json").json()
    for path in ("/embed", "/fill-mask", "/nsp", "/predict", "/tag", "/answer", "/choose", "/v1/embeddings"):
        task = page["paths"][path]["post"]
        assert {"200", "400", "401", "408", "413", "422", "429", "431", "500", "501", "503"} <= set(task["responses"])
        assert resolve(page, task["requestBody"]["content"]["application/json"]["schema"])["type"] == "object"


def test_openapi_names_every_operation_and_documents_its_response(server: httpx.Client) -> None:
    page = server.get("/openapi.json").json()
    operations = {path: next(iter(methods.values())) for path, methods in page["paths"].items()}
    assert sorted(operation["operationId"] for operation in operations.values()) == sorted(OPERATIONS.split())
    for path, operation in operations.items():
        content = operation["responses"]["200"]["content"]
        assert all(one["schema"] for one in content.values()), path
    assert set(operations["/embed"]["responses"]["200"]["content"]) == {"application/json", "application/x-npy"}
    assert set(operations["/metrics"]["responses"]["200"]["content"]) == {"text/plain", "application/openmetrics-text"}
    (timeout,) = operations["/embed"]["parameters"]
    assert (timeout["in"], timeout["name"], timeout["required"]) == ("header", "x-request-timeout-ms", False)


def test_openapi_documents_every_field_of_info(server: httpx.Client) -> None:
    schema = server.get("/openapi.json").json()["components"]["schemas"]["InfoResponse"]
    info = server.get("/info").json()
    assert set(schema["properties"]) == set(info)
    InfoResponse.model_validate(info)


def test_openapi_documents_the_error_bodies(server: httpx.Client) -> None:
    page = server.get("/openapi.json").json()
    for path in ("/embed", "/v1/embeddings"):
        answer = server.post(path, content=b"{}")
        schema: Any = resolve(
            page, page["paths"][path]["post"]["responses"]["422"]["content"]["application/json"]["schema"]
        )
        body: Any = answer.json()
        if path == "/v1/embeddings":
            schema, body = resolve(page, schema["properties"]["error"]), body["error"]
        assert set(schema["required"]) <= set(body) <= set(schema["properties"])


def test_openapi_documents_every_nesting_of_fill_mask_responses(server: httpx.Client) -> None:
    page = server.get("/openapi.json").json()

    def fits(schema: dict[str, Any], answer: Any) -> bool:
        schema = resolve(page, schema)
        if "anyOf" in schema:
            return any(fits(one, answer) for one in schema["anyOf"])
        if schema["type"] == "array":
            return isinstance(answer, list) and all(fits(schema["items"], one) for one in answer)
        return isinstance(answer, dict) and set(schema["required"]) <= set(answer)

    documented = page["paths"]["/fill-mask"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    for inputs in ("the [MASK]", "[MASK] [MASK]", ["the [MASK]", "[MASK]"], ["the [MASK]", "[MASK] [MASK]"]):
        assert fits(documented, post(server, "/fill-mask", {"inputs": inputs}).json()), inputs


def test_metrics_exist_from_the_start_and_count_requests(server: httpx.Client) -> None:
    def read(name: str) -> float:
        return float(
            next(line for line in server.get("/metrics").text.splitlines() if line.startswith(name)).split()[-1]
        )

    before = read('bert_requests_total{status="200",task="nsp"}')
    tokens = read("bert_tokens_total")
    post(server, "/nsp", {"inputs": {"text": "a", "text_pair": "b"}})
    assert read('bert_requests_total{status="200",task="nsp"}') == before + 1
    assert read("bert_tokens_total") >= tokens + 5
    assert read('bert_execution_provider{provider="CPU"}') == 1
    assert read("bert_waiting_tokens") == 0
