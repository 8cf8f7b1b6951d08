"""Traces are off unless an endpoint is configured, and never keep the service from running."""

import subprocess
import sys

import pytest

from app import telemetry

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def _start(environment: dict[str, str], before: str = "") -> str:
    """Start tracing in a process of its own: a provider can be set only once. Its output."""
    code = f"""
import sys
{before}
from app.telemetry import start_tracing, stop_tracing, carried, work_of_message
start_tracing("someone", "1.2.3")
with work_of_message("work", {{}}, study_id="s"):
    print("carried", sorted(carried()))
print("sdk", "opentelemetry.sdk.trace" in sys.modules)
stop_tracing()
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {_ENDPOINT: ""},
        {_ENDPOINT: "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {_ENDPOINT: "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_nothing_is_loaded_or_sent(environment: dict[str, str]) -> None:
    said = _start(environment)
    assert "sdk False" in said
    assert "carried []" in said


def test_with_an_endpoint_messages_carry_the_trace() -> None:
    said = _start({_ENDPOINT: "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    assert "sdk True" in said
    assert "carried ['traceparent']" in said


def test_without_the_extra_the_service_runs_and_says_what_to_install() -> None:
    said = _start({_ENDPOINT: "http://127.0.0.1:9"}, before="sys.modules['opentelemetry.exporter'] = None")
    assert "requirements-otel.lock" in said
    assert "carried []" in said


def test_spans_are_no_trouble_without_anybody_who_listens() -> None:
    telemetry.note_span("trial", 0, trial=1)
    telemetry.name_request("GET", "/studies")
