"""What a collector receives of requests and batches: ids, links, sizes, codes; no text, no key, nothing unsampled."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchmarks.harness.process import free_port
from packbert.service.artifact import open_artifact
from packbert.service.errors import InferenceFailed
from packbert.service.http.exchange import CONNECTION_KEY, ClientConnection
from packbert.service.logs import OnceAMinute, add_trace_id
from packbert.service.observability import spans
from packbert.service.observability.metrics import Metrics
from packbert.service.observability.scrape import render
from packbert.service.observability.spans import Tracing
from packbert.service.scheduling.batcher import Batcher
from packbert.service.settings import Settings
from packbert.service.tasks.flow import Tasks
from packbert.service.turns import TRACEPARENT
from tests.service.fakes import FakeRunner, make_queue
from tests.service.in_process import InProcessClient, InProcessModel, open_tasks
from tests.service.tracing.collector import Collector, collect

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
SERVER_KIND = 2
BODY = {"inputs": ["my private dog", "is hairy"]}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collect() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


@pytest.fixture(scope="module")
def tasks(bert_artifact: Path) -> Iterator[Tasks]:
    settings = Settings.from_environment({"BERT_MODEL": str(bert_artifact)})
    with open_tasks(open_artifact(bert_artifact), settings) as tasks:
        yield tasks


class Traced:
    """The application with traces, in this process; `end` sends the spans."""

    def __init__(self, artifact: Path, tasks: Tasks) -> None:
        settings = Settings.from_environment(
            {"BERT_MODEL": str(artifact), "BERT_ACCESS_LOG": "true", "BERT_API_KEY": "topsecret"}
        )
        self.backend = InProcessModel(open_artifact(artifact), settings, tasks)
        self.backend.tracing = Tracing()
        self._client = InProcessClient(self.backend)
        self._client.transport = httpx.ASGITransport(self.serve)
        self.connection = ClientConnection()

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """As a server does, of whose connection an endpoint knows."""
        scope["state"] = {CONNECTION_KEY: self.connection}
        await self._client.app(scope, receive, send)

    def embed(self, traceparent: str = "", body: object = BODY, **more: str) -> httpx.Response:
        headers = {"authorization": "Bearer topsecret", "traceparent": traceparent} | more
        return self._client.post("/embed", json=body, headers=headers)

    def end(self) -> None:
        self.backend.tracing.close()


@pytest.fixture
def traced(collector: Collector, bert_artifact: Path, tasks: Tasks) -> Traced:
    assert collector.url
    return Traced(bert_artifact, tasks)


def test_a_request_is_a_span_below_that_of_its_client(traced: Traced, collector: Collector) -> None:
    response = traced.embed(SAMPLED, tracestate="vendor=1", **{"user-agent": "client/2 " + "long" * 99})
    traced.end()
    (request,) = collector.named("POST /embed")
    assert (request.trace_id, request.parent_id, request.kind) == (TRACE, PARENT, SERVER_KIND)
    assert (request.trace_state, request.service, request.version) == ("vendor=1", "packbert", version("packbert"))
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/embed",
        "url.path": "/embed",
        "url.scheme": "http",
        "user_agent.original": ("client/2 " + "long" * 99)[:256],
        "client.address": "127.0.0.1",
        "gen_ai.request.model": "bert",
        "http.response.status_code": 200,
        "bert.request_id": response.headers["x-request-id"],
        "bert.sequences": 2,
        "bert.tokens": 19,
    }
    stages = [span for span in collector.spans if span.parent_id == request.span_id]
    assert {span.name for span in stages} == {"tokenize", "format"}  # this queue is without waiting
    assert {span.trace_id for span in stages} == {TRACE}
    assert all(span.start < span.end for span in stages)
    (formatted,) = collector.named("format")
    assert request.start <= formatted.start < formatted.end <= request.end


@pytest.mark.parametrize(
    "traceparent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", SAMPLED[:-1], SAMPLED * 99]
)
def test_an_invalid_context_counts_as_none(traceparent: str, traced: Traced, collector: Collector) -> None:
    assert traced.embed(traceparent).status_code == 200
    traced.end()
    (request,) = collector.named("POST /embed")
    assert request.parent_id == ""
    assert request.trace_id != TRACE


def test_a_client_that_does_not_sample_gets_no_span(traced: Traced, collector: Collector) -> None:
    assert traced.embed(NOT_SAMPLED).status_code == 200
    traced.end()
    assert collector.spans == []


def test_the_sampler_of_the_standard_variables_decides_on_new_traces(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, bert_artifact: Path, tasks: Tasks
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "embeddings")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=own")
    traced = Traced(bert_artifact, tasks)
    traced.embed()
    traced.embed(SAMPLED)
    traced.backend.tracing.record_batch({SAMPLED: 1}, sequences=1, tokens=5, seconds=0.1)
    traced.end()
    assert [span.trace_id for span in collector.named("POST /embed")] == [TRACE]
    assert len(collector.named("batch")) == len(collector.named("run")) == 1
    assert {(span.service, span.version) for span in collector.spans} == {("embeddings", "own")}


def test_an_error_has_its_code_and_never_its_message(traced: Traced, collector: Collector) -> None:
    traced.embed(body={"inputs": "private", "pooling": "private"})
    traced.backend.refusals.append(InferenceFailed("the private text"))
    traced.embed()
    traced.embed(authorization="Bearer another")
    traced.end()
    found = [
        (span.attributes["http.response.status_code"], span.attributes["error.type"], span.failed, span.events)
        for span in collector.spans
    ]
    assert found == [(422, "invalid", False, 0), (500, "run_failed", True, 0), (401, "unauthorized", False, 0)]


def test_a_request_that_expires_in_the_queue_has_a_span_of_its_wait(traced: Traced, collector: Collector) -> None:
    stopped = Batcher(run=FakeRunner().run, queue=make_queue(token_budget=100))  # that serves nothing
    traced.backend.tasks = replace(traced.backend.tasks, queue=stopped)
    response = traced.embed(SAMPLED, **{"x-request-timeout-ms": "1000"})
    assert (response.status_code, response.json()["code"]) == (503, "deadline")
    traced.end()
    (request,), (queued,) = collector.named("POST /embed"), collector.named("queue")
    assert (queued.parent_id, queued.failed, queued.attributes) == (request.span_id, True, {"error.type": "deadline"})
    assert request.start <= queued.start < queued.end <= request.end
    assert request.failed


def test_no_span_has_anything_of_a_text_or_a_key(traced: Traced, collector: Collector) -> None:
    traced.embed(SAMPLED, baggage="user=private", tracestate="vendor=1")
    traced.embed(body={"inputs": ["private"], "private": "private"})
    traced.end()
    assert len(collector.named("POST /embed")) == 2
    for secret in (b"private", b"hairy", b"topsecret"):
        assert not any(secret in body for body in collector.bodies)


def test_a_batch_is_linked_to_its_requests_and_is_a_run_below_each_of_them(collector: Collector) -> None:
    tracing = Tracing()
    other = f"00-{'a' * 32}-{'b' * 16}-01"
    tracing.record_batch({SAMPLED: 3, other: 1, NOT_SAMPLED: 2, "x": 1}, sequences=7, tokens=90, seconds=0.25)
    tracing.record_batch({NOT_SAMPLED: 2}, sequences=2, tokens=9, seconds=0.25)
    tracing.close()
    (batch,) = collector.named("batch")
    assert batch.parent_id == ""
    assert batch.links == [(TRACE, PARENT), ("a" * 32, "b" * 16)]
    assert batch.attributes == {"bert.batch.sequences": 7, "bert.batch.tokens": 90, "bert.batch.requests": 4}
    assert batch.end - batch.start == 250_000_000
    runs = collector.named("run")
    assert [(run.trace_id, run.parent_id) for run in runs] == batch.links
    assert [run.attributes["bert.sequences"] for run in runs] == [3, 1]
    for run in runs:
        assert run.links == [(batch.trace_id, batch.span_id)]
        assert (run.start, run.end) == (batch.start, batch.end)
        assert run.attributes["bert.batch.tokens"] == 90


def test_the_lines_of_a_request_name_its_trace(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(add_trace_id)
    try:
        traced.embed(NOT_SAMPLED)  # what the client calls it, whether there is a span or not
        of_access_log = traced.connection.noted
        traced.backend.refusals.append(ValueError("unexpected"))  # type: ignore[arg-type]
        traced.embed(SAMPLED)
        logging.getLogger("service").warning("of no request")
    finally:
        caplog.handler.removeFilter(add_trace_id)
        traced.end()
    found = {getattr(one, "fields", {}).get("trace_id", "") for one in caplog.records if one.name == "service"}
    assert found == {TRACE, ""}
    assert (of_access_log["trace_id"], of_access_log["texts"]) == (TRACE, 2)


@pytest.mark.parametrize(("traceparent", "labels"), [(SAMPLED, {"trace_id": TRACE}), (NOT_SAMPLED, None), ("", None)])
def test_a_latency_names_a_trace_that_is_sampled(traceparent: str, labels: dict[str, str] | None) -> None:
    metrics = Metrics()
    metrics.exemplars = True
    token = TRACEPARENT.set(traceparent)
    metrics.answered("embed", seconds=0.015, stages=(0.0,) * 4, sizes=(1,) * 4, truncated=0)
    TRACEPARENT.reset(token)
    content, media_type = render([metrics.collector()], "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert media_type.startswith("application/openmetrics-text")
    families = text_string_to_metric_families(content.decode())  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples]
    found = [sample.exemplar.labels for sample in samples if sample.exemplar is not None]
    assert found == ([] if labels is None else [labels])
    plain, media_type = render([metrics.collector()], "text/plain")
    assert (plain, media_type) == (render([metrics.collector()])[0], "text/plain; version=0.0.4; charset=utf-8")


def test_an_absent_collector_is_one_line_for_many_batches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.01")  # seconds, with all attempts
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    once, seen = OnceAMinute("opentelemetry"), logging.Filter("opentelemetry")
    tracing = Tracing()
    for _ in range(4):
        tracing.record_batch({SAMPLED: 1}, sequences=1, tokens=5, seconds=0.1)
        tracing._processor.force_flush()
    tracing.close()
    lines = [record for record in caplog.records if seen.filter(record)]
    assert len(lines) >= 4
    assert [line for line in lines if once.filter(line)] == lines[:1]
    assert "export" in lines[0].getMessage()


def test_a_collector_that_does_not_answer_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch, bert_artifact: Path, tasks: Tasks
) -> None:
    monkeypatch.setattr(spans, "FLUSH_SECONDS", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")  # seconds, with all attempts
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    traced = Traced(bert_artifact, tasks)
    assert traced.embed().status_code == 200
    traced.end()
    for thread in threading.enumerate():  # leaves nothing to the next test
        if thread.name == "last spans":
            thread.join()
