"""An OpenTelemetry collector in the test's process: OTLP over HTTP, decoded with the protocol's own messages."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class ReceivedSpan:
    name: str
    kind: int
    trace_id: str  # hexadecimal, as the other ids
    span_id: str
    parent_id: str  # empty for a root
    trace_state: str
    links: list[tuple[str, str]]  # trace and span
    attributes: dict[str, Any]
    failed: bool
    events: int
    start: int  # nanoseconds
    end: int
    service: str
    version: str  # of the service


@dataclass
class Collector:
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> list[ReceivedSpan]:
        return [span for body in self.bodies for span in decode(body)]

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]


def decode(body: bytes) -> Iterator[ReceivedSpan]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = values_of(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield ReceivedSpan(
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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.bodies.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
