"""What a collector receives of requests and batches, and when a service makes traces."""

import gzip
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchmarks.harness.process import free_port
from packbert.service.__main__ import main
from packbert.service.artifact import open_artifact
from packbert.service.errors import InferenceFailed
from packbert.service.http.exchange import CONNECTION_KEY, ClientConnection
from packbert.service.logs import add_trace_id
from packbert.service.observability import spans
from packbert.service.observability.metrics import Metrics, render
from packbert.service.observability.spans import Tracing
from packbert.service.scheduling.batcher import Batcher
from packbert.service.settings import Settings
from packbert.service.tasks.flow import Tasks
from packbert.service.turns import TRACEPARENT
from tests.hub import Handler, serve_in_thread
from tests.paths import ROOT
from tests.service.fakes import FakeRunner, make_queue
from tests.service.in_process import InProcessClient, InProcessModel, open_tasks
from tests.serving import running


@dataclass
class Collector:
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> list[SimpleNamespace]:
        return [span for body in self.bodies for span in decode(body)]

    def named(self, name: str) -> list[SimpleNamespace]:
        return [span for span in self.spans if span.name == name]


def decode(body: bytes) -> Iterator[SimpleNamespace]:
    """The spans: ids are hexadecimal, `parent_id` is empty for a root, times are in nanoseconds."""
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = values_of(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield SimpleNamespace(
                    name=span.name,
                    kind=span.kind,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    trace_state=span.trace_state,
                    links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    attributes=values_of(span.attributes),
                    failed=span.status.code == 2,
                    events=len(span.events),
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    service=resource["service.name"],
                    version=resource["service.version"],
                )


def values_of(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collect() -> Iterator[Collector]:
    collector = Collector()

    class Traces(Handler):
        def do_POST(self) -> None:  # noqa: N802 - the name that the library calls
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.bodies.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            kind = {"content-type": "application/x-protobuf"}
            self.answer(200, ExportTraceServiceResponse().SerializeToString(), kind)

    with serve_in_thread(Traces) as collector.url:
        yield collector


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
        self._app, self._client.app = self._client.app, self.serve
        self.connection = ClientConnection()

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """As a server does, of whose connection an endpoint knows."""
        scope["state"] = {CONNECTION_KEY: self.connection}
        await self._app(scope, receive, send)

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


def test_a_request_that_expires_in_the_queue_has_a_span(traced: Traced, collector: Collector) -> None:
    stopped = Batcher(run=FakeRunner().run, queue=make_queue(token_budget=100))  # that serves nothing
    traced.backend.tasks = replace(traced.backend.tasks, queue=stopped)
    response = traced.embed(SAMPLED, **{"x-request-timeout-ms": "1000"})
    assert (response.status_code, response.json()["code"]) == (503, "deadline")
    traced.end()
    (request,), (queued,) = collector.named("POST /embed"), collector.named("queue")
    assert (queued.parent_id, queued.failed, queued.attributes) == (request.span_id, True, {"error.type": "deadline"})
    assert request.start <= queued.start < queued.end <= request.end
    assert request.failed


def test_a_batch_is_linked_to_its_requests_and_below_each_of_them(collector: Collector) -> None:
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


def test_lines_name_their_trace_and_only_a_sampled_one_has_a_span(
    traced: Traced, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert [span.failed for span in collector.spans] == [True]


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


def test_a_service_sends_the_whole_trace_of_a_request(bert_artifact: Path) -> None:
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_WORKERS": "2", "BERT_API_KEY": "topsecret"}
    logs = {"BERT_ACCESS_LOG": "true", "BERT_LOG_FORMAT": "json"}
    headers = {"authorization": "Bearer topsecret", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    with collect() as collector:
        with running(settings | logs | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, **headers) as (process, client):
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
    assert "# {trace_id=" not in scrape.text  # several processes' counts are summed without exemplars
    assert scrape.headers["content-type"].startswith("application/openmetrics-text")


def test_spans_and_the_access_log_name_the_model(bert_artifact: Path) -> None:
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
        with running(models | logs | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}) as (process, client):
            statuses = [client.post(path, json=body).status_code for of in asked.values() for path, body in of]
            assert client.get("/models/second/info").status_code == 200
            assert "# {trace_id=" in client.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
            process.terminate()
            output = process.output()
        spans = sorted((one for one in collector.spans if one.name.startswith("POST")), key=lambda one: one.start)
    assert statuses == [200, 422, 200, 422, 200, 404]
    expected = [name for name, of in asked.items() for _ in of]
    assert [one.attributes.get("gen_ai.request.model", "") for one in spans] == expected
    lines = [json.loads(line) for line in output.splitlines()]
    assert [one.get("model", "") for one in lines if one.get("route", "").endswith("/embed")] == expected
    assert "/models/second/info" in [one.get("route") for one in lines]
    assert not any(b"secret" in body for body in collector.bodies)


def test_a_missing_package_stops_the_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("packbert.service.settings.TRACING_PACKAGES", ("opentelemetry-sdk", "no-such-package"))
    monkeypatch.setenv("BERT_MODEL", ".")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert main() == 2
    assert capsys.readouterr().err == (
        "packbert serve: OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need no-such-package: "
        "install packbert[otel], or unset the variable\n"
    )


def test_a_service_without_traces_loads_no_sdk() -> None:
    code = (
        "import sys, packbert.service.http.server, packbert.service.models, packbert.service.workers.worker;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"
