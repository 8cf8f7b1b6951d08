"""OpenTelemetry traces: what a request and the work that it causes took, sent to a collector when one is configured.

Off unless the environment names an OTLP endpoint, in OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT` and
its relatives). The API package of OpenTelemetry does nothing by itself, so spans may be begun whether or not anybody
listens; exporting them takes the extra `otel`.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind

log = structlog.get_logger()
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SENT_WITHIN_S = 2.0
_tracer = trace.get_tracer("spica")


def is_configured() -> bool:
    """Whether the environment asks for traces."""
    is_refused = (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
    return not is_refused and any(os.environ.get(name) for name in _ENDPOINTS)


def start_tracing(service_name: str, version: str) -> None:
    """Export the spans of this process, if that is configured. A forked process must call this itself.

    service_name: what it is called unless OTEL_SERVICE_NAME says otherwise.
    """
    if not is_configured():
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        # A service without traces is better than none.
        log.error(
            "traces_not_exported", remedy="install the extra otel: run.py setup --extra otel, or requirements-otel.lock"
        )
        return
    os.environ.setdefault("OTEL_SERVICE_NAME", service_name)
    provider = TracerProvider(resource=Resource.create({"service.version": version}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def stop_tracing() -> None:
    """Send what is not sent yet; a collector that does not answer holds nobody up for long."""
    shutdown = getattr(trace.get_tracer_provider(), "shutdown", None)
    if shutdown is not None:
        sending = threading.Thread(target=shutdown, daemon=True)
        sending.start()
        sending.join(_SENT_WITHIN_S)


def carried() -> dict[str, str]:
    """The present trace as headers of a message; empty without one."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


@contextmanager
def work_of_message(name: str, headers: Mapping[str, Any], **attributes: str | int) -> Iterator[None]:
    """A span around what a message makes a worker do, in the trace that its headers carry.

    attributes: written `spica.<name>`.
    """
    context = propagate.extract({key: value for key, value in headers.items() if isinstance(value, str)})
    with _tracer.start_as_current_span(name, context, SpanKind.CONSUMER, _named(attributes)):
        yield


def note_span(name: str, started_ns: int, **attributes: str | int) -> None:
    """A finished span that began at `started_ns` (time.time_ns) and ends now."""
    _tracer.start_span(name, start_time=started_ns, attributes=_named(attributes)).end()


def name_request(method: str, route: str) -> None:
    """Call the span of the present request by its route, as the router does with those that reach it."""
    span = trace.get_current_span()
    span.update_name(f"{method} {route}")
    span.set_attribute("http.route", route)


def _named(attributes: Mapping[str, str | int]) -> dict[str, str | int]:
    return {f"spica.{name}": value for name, value in attributes.items()}
