"""An OpenTelemetry collector of the tests' own: takes OTLP over HTTP and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class SeenSpan(NamedTuple):
    """What arrived of a span. service: who sent it."""

    service: str
    name: str
    trace_id: str
    parent_id: str
    span_id: str
    seconds: float
    attributes: dict[str, Any]


class Collector:
    """Where it listens, and the spans so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._spans: list[SeenSpan] = []

    def take(self, body: bytes) -> None:
        """Keep the spans of one export."""
        request = ExportTraceServiceRequest.FromString(body)
        found = []
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for span in (each for scope in resource.scope_spans for each in scope.spans):
                seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
                ids = (span.trace_id.hex(), span.parent_span_id.hex(), span.span_id.hex())
                found.append(SeenSpan(service, span.name, *ids, seconds, _attributes(span.attributes)))
        with self._lock:
            self._spans += found

    def spans(self) -> list[SeenSpan]:
        """All spans so far."""
        with self._lock:
            return list(self._spans)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def listening_collector() -> Iterator[Collector]:
    """A collector on a free loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                collector.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing to say."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
