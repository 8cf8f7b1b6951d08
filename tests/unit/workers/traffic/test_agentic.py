"""Agent trace formats (traffic spec, section 3.6)."""

import orjson
import pytest

from tests.golden.files import trace
from tests.unit.workers.traffic.prompts import shared_tokens
from workers.errors import UnsupportedError
from workers.traffic.agentic import applied_compute_batch, dynamo_batch
from workers.traffic.mooncake import TraceDrive
from workers.traffic.trace_rows import TraceFaultError

CAPPED = TraceDrive(in_flight_cap=1, dialect="cli")
AGENT = {
    "num_turns": 2,
    "input_prompt_length": 500,
    "assistant_response_length": [100, 100],
    "tool_call_output_length": [200, 200],
    "tool_call_latency": [0.01, 0.02],
    "final_assistant_response_length": 40,
}


def test_applied_compute_has_tool_turns_and_a_final_one() -> None:
    batch, names = applied_compute_batch(orjson.dumps(AGENT), CAPPED)
    assert batch.input_tokens.tolist() == [500, 800, 1100]
    assert batch.output_tokens.tolist() == [100, 100, 40]
    assert batch.delay_ms.tolist() == [0.0, 10.0, 20.0]
    assert names == ("applied_compute_agentic_session_1",)


def test_applied_compute_prompt_repeats_the_prompt_but_not_the_generated_text() -> None:
    """Observed on the peer: the second turn reuses 448 of 500 tokens at block 64, not the 576 a shared output gives."""
    batch, _ = applied_compute_batch(orjson.dumps(AGENT), CAPPED)
    assert shared_tokens(batch, 0, 1) == 500
    assert shared_tokens(batch, 1, 2) == 800
    assert batch.output_span is not None
    assert batch.span_id is not None
    assert not set(batch.output_span.tolist()) & set(batch.span_id.tolist())


def test_applied_compute_sessions_share_nothing() -> None:
    batch, _ = applied_compute_batch(orjson.dumps(AGENT) + b"\n" + orjson.dumps(AGENT), CAPPED)
    assert batch.session.tolist() == [0, 0, 0, 1, 1, 1]
    assert shared_tokens(batch, 0, 3) == 0


def test_applied_compute_without_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="in-flight cap"):
        applied_compute_batch(orjson.dumps(AGENT), TraceDrive())


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ({**AGENT, "num_turns": 3}, "num_turns"),
        ({key: value for key, value in AGENT.items() if key != "tool_call_latency"}, "missing tool_call_latency"),
    ],
)
def test_applied_compute_faulty_row_is_refused(row: dict[str, object], detail: str) -> None:
    with pytest.raises(TraceFaultError, match=detail):
        applied_compute_batch(orjson.dumps(row), CAPPED)


def test_dynamo_requests_arrive_at_their_receive_times() -> None:
    batch, names = dynamo_batch([trace("fixture-dynamo-standard.jsonl")], TraceDrive(speedup=2.0))
    assert batch.arrival_ms.tolist() == [0.0, 10.0]
    assert batch.input_tokens.tolist() == [4, 4]
    assert names == ("request_1", "request_2")


def test_dynamo_agent_context_is_refused_as_a_dependency_graph() -> None:
    with pytest.raises(UnsupportedError, match="dependency graph"):
        dynamo_batch([trace("fixture-dynamo-agentic.jsonl")], TraceDrive())


def test_dynamo_without_finished_requests_is_refused() -> None:
    with pytest.raises(TraceFaultError, match="did not contain any requests"):
        dynamo_batch([b'{"event_type":"request_payload"}'], TraceDrive())


def test_dynamo_event_without_lengths_is_refused() -> None:
    with pytest.raises(TraceFaultError, match="missing replay"):
        dynamo_batch([b'{"event_type":"request_end","request":{"request_received_ms":1}}'], TraceDrive())
