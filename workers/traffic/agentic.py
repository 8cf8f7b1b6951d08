"""Agent traces to requests: the `applied_compute_agentic` and `dynamo` request-trace formats.

Source: traffic spec, section 3.6. Traces whose requests wait for several others (a dependency graph) are refused.
"""

from typing import Any

import numpy as np

from app.schemas.status import ReasonCode
from workers.errors import UnsupportedError
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.spans import Spans
from workers.traffic.trace_rows import TraceFaultError, TraceRows, parse_lines

_MS_PER_S = 1000.0


def applied_compute_batch(content: bytes, drive: TraceDrive) -> tuple[RequestBatch, tuple[str, ...]]:
    """One session per line: tool turns whose prompts grow by response and tool output, then a final answer.

    A prompt repeats the previous one, but not what the engine generated: the response in the trace is other text.
    Returns the requests and the session names.
    Raises: TraceFaultError on malformed lines; ValueError without an in-flight cap.
    """
    if drive.in_flight_cap is None:
        raise ValueError("applied_compute_agentic needs an in-flight cap")
    parsed = parse_lines(content)
    names = tuple(f"applied_compute_agentic_session_{line}" for line, _ in parsed)
    turns = [turn for line, row in parsed for turn in _agent_turns(row, line)]
    counts = [int(row["num_turns"]) + 1 for _, row in parsed]
    prompts, outputs, delays = (np.array(column) for column in zip(*turns, strict=True))
    session = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    is_first = np.diff(session, prepend=-1) != 0
    num_requests = session.size
    spans = Spans(
        offset=np.arange(num_requests + 1, dtype=np.int64),
        ids=session,
        tokens=prompts.astype(np.int64),
        output=len(counts) + np.arange(num_requests, dtype=np.int64),
    )
    batch = RequestBatch(
        arrival_ms=np.where(is_first, 0.0, np.nan),
        delay_ms=delays.astype(np.float64),
        input_tokens=prompts.astype(np.int64),
        output_tokens=outputs.astype(np.int64),
        session=session,
        order=np.arange(len(counts), dtype=np.int64),
        in_flight_cap=drive.in_flight_cap,
        stop_after_ms=drive.stop_after_ms,
        **spans.as_fields(),
    )
    return batch.frozen(), names


def _agent_turns(row: dict[str, Any], line: int) -> list[tuple[int, int, float]]:
    """(prompt tokens, output tokens, delay ms) of each turn of one session."""
    try:
        responses, tools = row["assistant_response_length"], row["tool_call_output_length"]
        latencies, num_turns = row["tool_call_latency"], row["num_turns"]
        prompt, final = row["input_prompt_length"], row["final_assistant_response_length"]
    except KeyError as error:
        raise TraceFaultError(f"row is missing {error.args[0]}", line) from error
    if not len(responses) == len(tools) == len(latencies) == num_turns:
        raise TraceFaultError(f"the per-turn lists must have num_turns = {num_turns} entries", line)
    turns, delay_ms = [], 0.0
    for response, tool, latency in zip(responses, tools, latencies, strict=True):
        turns.append((prompt, response, delay_ms))
        prompt += response + tool
        delay_ms = latency * _MS_PER_S
    return [*turns, (prompt, final, delay_ms)]


def dynamo_batch(contents: list[bytes], drive: TraceDrive) -> tuple[RequestBatch, tuple[str, ...]]:
    """The finished requests of `dynamo.request.trace.v1` files, released by their receive times.

    Returns the requests and their names.
    Raises: TraceFaultError on malformed events; UnsupportedError when events carry an agent context.
    """
    events = [(line, row) for content in contents for line, row in parse_lines(content)]
    ends = [(line, row) for line, row in events if row.get("event_type") == "request_end"]
    if not ends:
        raise TraceFaultError("trace did not contain any requests")
    if any(row.get("agent_context") for _, row in events):
        raise UnsupportedError(ReasonCode.BACKEND_CANNOT_RUN_SHAPE, "not modelled: a trace that is a dependency graph")
    try:
        rows, block = _dynamo_rows(ends)
    except KeyError as error:
        raise TraceFaultError(f"request_end event is missing {error.args[0]}") from error
    driven = TraceDrive(block, drive.speedup, drive.in_flight_cap, False, drive.stop_after_ms, "cli")
    return mooncake_batch(rows, driven), rows.session_names


def _dynamo_rows(ends: list[tuple[int, dict[str, Any]]]) -> tuple[TraceRows, int]:
    """The events as trace rows in receive order, and the tokens of one of their blocks."""
    requests = sorted((row["request"] for _, row in ends), key=lambda request: float(request["request_received_ms"]))
    replays = [request["replay"] for request in requests]
    blocks = {int(replay["trace_block_size"]) for replay in replays}
    if len(blocks) != 1:
        raise TraceFaultError(f"trace_block_size differs between requests: {sorted(blocks)}")
    hashes = [replay["input_sequence_hashes"] for replay in replays]
    flat = np.array([value for row in hashes for value in row], dtype=np.uint64)
    count = len(requests)
    rows = TraceRows(
        line=np.arange(1, count + 1, dtype=np.int64),
        timestamp_ms=np.array([request["request_received_ms"] for request in requests], dtype=np.float64),
        delay_ms=np.full(count, np.nan),
        input_tokens=np.array([replay["input_length"] for replay in replays], dtype=np.int64),
        output_tokens=np.array([request["output_tokens"] for request in requests], dtype=np.int64),
        session=np.arange(count, dtype=np.int64),
        session_names=tuple(f"request_{number}" for number in range(1, count + 1)),
        block_offset=np.concatenate(([0], np.cumsum([len(row) for row in hashes]))).astype(np.int64),
        block_id=np.unique(flat, return_inverse=True)[1].astype(np.int64),
    )
    return rows, blocks.pop()
