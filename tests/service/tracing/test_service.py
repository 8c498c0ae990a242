"""Real processes send their spans to a collector: the stages of a request, its runs, their batches."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchmarks.harness.process import ServiceProcess, free_port
from tests.service.tracing.collector import collect

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_sends_the_whole_trace_of_a_request(workers: int, bert_artifact: Path) -> None:
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_WORKERS": str(workers), "BERT_API_KEY": "topsecret"}
    logs = {"BERT_ACCESS_LOG": "true", "BERT_LOG_FORMAT": "json"}
    headers = {"authorization": "Bearer topsecret", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    with collect() as collector:
        with (
            ServiceProcess(settings | logs | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}) as process,
            httpx.Client(base_url=process.url, headers=headers) as client,
        ):
            assert client.post("/embed", json={"inputs": ["my private dog", "is hairy"]}).status_code == 200
            scrape = client.get("/metrics", headers={"accept": "application/openmetrics-text"})
            code, output = process.terminate(), process.output()
        assert code == 0
        (request,) = collector.named("POST /embed")
        stages = {span.name: span for span in collector.spans if span.parent_id == request.span_id}
        (batch,) = collector.named("batch")  # the self-checks have none
    assert (request.trace_id, request.parent_id) == (TRACE, PARENT)
    assert set(stages) == {"tokenize", "queue", "run", "format"}
    assert len(collector.spans) == 6
    assert {span.trace_id for span in stages.values()} == {TRACE}
    starts = [stages[name].start for name in ("tokenize", "queue", "run", "format")]
    assert starts == sorted(starts)
    assert batch.links == [(TRACE, request.span_id)]
    assert stages["run"].links == [(batch.trace_id, batch.span_id)]
    assert stages["run"].attributes["bert.batch.sequences"] == 2
    assert stages["run"].attributes["bert.batch.tokens"] == request.attributes["bert.tokens"]
    assert not any(secret in body for body in collector.bodies for secret in (b"private", b"topsecret"))

    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["trace_id"] for line in lines if line.get("route") == "/embed"] == [TRACE]
    assert [line for line in lines if line["logger"].startswith("opentelemetry")] == []
    families = text_string_to_metric_families(scrape.text)  # type: ignore[no-untyped-call]
    assert {"bert_requests", "bert_queue_requests"} <= {family.name for family in families}
    exemplar = f'# {{trace_id="{TRACE}"}}' in scrape.text
    assert exemplar is (workers == 1)  # several processes' counts are summed without them
    assert scrape.headers["content-type"].startswith("application/openmetrics-text")


def test_spans_and_the_access_log_name_the_model_that_a_request_is_for(bert_artifact: Path) -> None:
    models = {"BERT_MODELS": f"first={bert_artifact} second={bert_artifact}", "BERT_TOKEN_BUDGET": "256"}
    logs = {"BERT_ACCESS_LOG": "true", "BERT_LOG_FORMAT": "json"}
    asked: dict[str, list[tuple[str, Any]]] = {
        "first": [("/embed", {"inputs": "a"}), ("/embed", {"inputs": 1, "model": "second"})],  # the body is not read
        "second": [
            ("/embed", {"inputs": "a", "model": "second"}),
            ("/embed", {"inputs": "a " * 600, "model": "second"}),
            ("/models/second/embed", {"inputs": "a"}),
        ],
        "": [("/embed", {"inputs": "a", "model": "secret"})],
    }
    with collect() as collector:
        with (
            ServiceProcess(models | logs | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}) as process,
            httpx.Client(base_url=process.url) as client,
        ):
            statuses = [client.post(path, json=body).status_code for of in asked.values() for path, body in of]
            process.terminate()
            output = process.output()
        spans = sorted((one for one in collector.spans if one.name.startswith("POST")), key=lambda one: one.start)
    assert statuses == [200, 422, 200, 422, 200, 404]
    expected = [name for name, of in asked.items() for _ in of]
    assert [one.attributes.get("gen_ai.request.model", "") for one in spans] == expected
    lines = [json.loads(line) for line in output.splitlines()]
    assert [one.get("model", "") for one in lines if one.get("route", "").endswith("/embed")] == expected
    assert not any(b"secret" in body for body in collector.bodies)


def test_a_service_says_once_that_the_collector_is_absent(bert_artifact: Path) -> None:
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.01"}
    batches = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1", "OTEL_BSP_SCHEDULE_DELAY": "1"}  # milliseconds
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_LOG_FORMAT": "json"}
    with ServiceProcess(settings | traces | batches) as process:
        with httpx.Client(base_url=process.url) as client:
            assert {client.post("/embed", json={"inputs": "dog"}).status_code for _ in range(8)} == {200}
        process.terminate()
        lines = [json.loads(line) for line in process.output().splitlines()]
    assert len([line for line in lines if line["logger"].startswith("opentelemetry")]) == 1
