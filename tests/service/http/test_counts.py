"""What a scrape of the service says of known requests, exactly."""

import os
import time

import httpx
import pytest

from tests.service.polling import scrape

BODY = {"inputs": ["a", "the cat"]}


def grown(server: httpx.Client, before: dict[str, float]) -> dict[str, float]:
    """The series of requests that have grown since `before`, but for buckets and seconds."""
    after = scrape(server)
    kinds = ("bert_request", "bert_re", "bert_err", "bert_stage", "bert_operational", "bert_queue_requests")
    return {
        name: after[name] - before.get(name, 0)
        for name in after
        if name.startswith(kinds) and "_bucket" not in name and "seconds_sum" not in name
        if after[name] > before.get(name, 0)
    }


def test_a_request_adds_its_texts_tokens_bytes_and_stages(server: httpx.Client) -> None:
    before = scrape(server)
    answer = server.post("/embed", json=BODY)
    found = grown(server, before)
    assert found.pop('bert_operational_requests_total{path="/metrics",status="200"}') == 1
    assert found == {
        'bert_requests_total{status="200",task="embed"}': 1,
        'bert_request_seconds_count{task="embed"}': 1,
        **{f'bert_stage_seconds_count{{stage="{each}"}}': 1 for each in ("tokenize", "queue", "forward", "format")},
        **{f"bert_{each}_count": 1 for each in ("request_texts", "request_tokens", "request_bytes", "response_bytes")},
        "bert_request_texts_sum": 2,
        "bert_request_tokens_sum": 7,
        "bert_request_bytes_sum": len(answer.request.content),
        "bert_response_bytes_sum": len(answer.content),
        'bert_queue_requests_total{outcome="received"}': 1,
        'bert_queue_requests_total{outcome="answered"}': 1,
    }


def test_the_stages_of_a_request_are_those_of_its_response(server: httpx.Client) -> None:
    before = scrape(server)
    shown = server.post("/embed", json=BODY).headers["server-timing"]
    after = scrape(server)
    took = {
        stage: after[name] - before[name]
        for stage in ("tokenize", "queue", "forward", "format")
        if (name := f'bert_stage_seconds_sum{{stage="{stage}"}}')
    }
    stated = {part.split(";dur=")[0]: float(part.split("=")[1]) / 1000 for part in shown.split(", ")}
    assert took == pytest.approx(stated, abs=1e-6)
    seconds = 'bert_request_seconds_sum{task="embed"}'
    assert sum(took.values()) <= after[seconds] - before[seconds]


@pytest.mark.parametrize(
    ("method", "path", "status", "series"),
    [
        ("GET", "/nothing", 404, 'bert_requests_total{status="404",task="unknown"}'),
        ("POST", "/api/other", 404, 'bert_requests_total{status="404",task="unknown"}'),
        ("GET", "/embed", 405, 'bert_requests_total{status="405",task="unknown"}'),
        ("GET", "/v2/models/other", 404, 'bert_requests_total{status="404",task="unknown"}'),
        ("GET", "/health", 200, 'bert_operational_requests_total{path="/health",status="200"}'),
        ("HEAD", "/health", 200, 'bert_operational_requests_total{path="/health",status="200"}'),
        ("OPTIONS", "/embed", 204, 'bert_operational_requests_total{path="/embed",status="204"}'),
        ("GET", "/openapi.json", 200, 'bert_operational_requests_total{path="other",status="200"}'),
    ],
)
def test_every_response_is_counted_once(server: httpx.Client, method: str, path: str, status: int, series: str) -> None:
    before = scrape(server)
    assert server.request(method, path).status_code == status
    found = grown(server, before)
    assert found.pop('bert_operational_requests_total{path="/metrics",status="200"}') == 1
    reason = {404: "not_found", 405: "method_not_allowed"}.get(status)
    assert found == {series: 1} | ({f'bert_errors_total{{reason="{reason}"}}': 1} if reason else {})


@pytest.mark.parametrize("path", ["/embed", "/embed/", "/models/bert/embed", "/models/bert/", "/models/bert"])
def test_a_request_is_counted_once_at_each_of_its_paths(server: httpx.Client, path: str) -> None:
    before = scrape(server)
    answer = server.post(path, json=BODY)
    assert len(answer.headers.get_list("x-request-id")) == 1
    found = grown(server, before)
    task = "embed" if "embed" in path else "root"
    assert found[f'bert_requests_total{{status="200",task="{task}"}}'] == 1
    assert [name for name in found if name.startswith("bert_operational")] == [
        'bert_operational_requests_total{path="/metrics",status="200"}'
    ]


def test_a_refused_request_and_an_expired_one_have_latencies_of_their_own(server: httpx.Client) -> None:
    before = scrape(server)
    assert server.post("/embed", json={"inputs": ""}).status_code == 422
    codes: list[str] = []
    while "deadline" not in codes and len(codes) < 20:  # it is refused where other requests are still queued
        late = server.post("/embed", json={"inputs": ["cat " * 100] * 90}, headers={"x-request-timeout-ms": "1"})
        codes.append(late.json()["code"])
    assert {*codes[:-1]} <= {"too_much_for_deadline"}
    assert codes[-1] == "deadline"
    found = grown(server, before)
    assert found['bert_error_seconds_count{outcome="refused"}'] == len(codes)
    assert found['bert_error_seconds_count{outcome="expired"}'] == 1
    assert not [name for name in found if "bert_request_seconds" in name]


def test_a_scrape_says_what_answers_and_what_the_process_takes(server: httpx.Client) -> None:
    values, info = scrape(server), server.get("/info").json()
    labels = {name: info[name] for name in ("device", "digest", "model", "precision")}
    labels |= {"language": "", "license": ""}
    stated = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    assert values[f'bert_info{{{stated},version="{info["versions"]["service"]}"}}'] == 1
    assert (values["bert_ready"], values["bert_waiting_tokens"]) == (1, 0)
    assert values['bert_execution_provider{provider="CPU"}'] == 1
    assert 0 <= values["bert_busy_ratio"] <= 1
    assert 2**24 < values["process_resident_memory_bytes"] < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert values["process_start_time_seconds"] <= time.time()
    assert values["process_cpu_seconds_total"] > 0
    assert values['bert_canary_requests_total{outcome="answered"}'] >= 1
    assert values["bert_canary_seconds_count"] >= 1
    assert not [name for name in values if "_created" in name]
