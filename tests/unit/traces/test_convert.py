"""Public formats, converted at upload."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from app.traces.convert import WallClock
from tests.golden.files import trace
from tests.unit.traces.helpers import faults, lines, refusal, take
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.stored_rows import stored_rows

BURSTGPT = b"""Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,"GPT-4, new",1087,0,1087,API log
"""
CHAT = {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1}
BAILIAN = lines(
    CHAT | {"timestamp": 61.114, "input_length": 33, "output_length": 132, "hash_ids": [5, 6, 7]},
    CHAT | {"timestamp": 61.5, "input_length": 16, "output_length": 3, "hash_ids": [5]},
)


def batch(folder: Path, content: bytes, **options: object) -> RequestBatch:
    found = take(folder, content, **options)  # type: ignore[arg-type]
    return mooncake_batch(stored_rows(found.sha256, folder / found.sha256), TraceDrive(found.block_size))


def first_seen(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Place of each id's first occurrence: equal for ids that differ in name only."""
    _, at, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return at[inverse]


def test_azure_arrivals_and_lengths_are_those_of_the_published_conversion(tmp_path: Path) -> None:
    found = batch(tmp_path, trace("azure2023_conv_head2000.csv"), trace_format="azure")
    known = batch(tmp_path, trace("azure2023_conv_head2000.mooncake.jsonl"))
    assert np.array_equal(found.arrival_ms, known.arrival_ms)
    assert np.array_equal(found.input_tokens, known.input_tokens)
    assert np.array_equal(found.output_tokens, known.output_tokens)
    assert found.span_id is None


def test_azure_rows_out_of_order_are_the_same_trace(tmp_path: Path) -> None:
    first, *rows = trace("azure2023_conv_head2000.csv").splitlines(keepends=True)
    backwards = first + b"".join(reversed(rows))
    known = take(tmp_path, first + b"".join(rows), trace_format="azure")
    assert take(tmp_path, backwards, trace_format="azure").sha256 == known.sha256


def test_dynamo_events_are_the_published_conversion_with_their_own_block_size(tmp_path: Path) -> None:
    found = batch(tmp_path, trace("dynamo_agent_pi.request_trace.jsonl"), trace_format="dynamo")
    known = batch(tmp_path, trace("dynamo_agent_pi.blk16.mooncake.jsonl"), block_size=16)
    assert np.array_equal(found.arrival_ms, known.arrival_ms)
    assert np.array_equal(found.input_tokens, known.input_tokens)
    assert found.span_id is not None
    assert known.span_id is not None
    assert np.array_equal(first_seen(found.span_id), first_seen(known.span_id))


def test_dynamo_events_without_a_request_are_counted(tmp_path: Path) -> None:
    found = take(tmp_path, trace("dynamo_agent_pi.request_trace.jsonl"), trace_format="dynamo")
    assert (found.num_requests, found.block_size, found.upload["num_skipped_lines"]) == (17, 16, 44)


def test_dynamo_events_of_another_block_size_than_asked_for_are_refused(tmp_path: Path) -> None:
    text = trace("dynamo_agent_pi.request_trace.jsonl")
    error = refusal(tmp_path, text, trace_format="dynamo", block_size=32)
    assert error.extensions["num_faulty_rows"] == 17


def test_burstgpt_seconds_and_failures_are_kept(tmp_path: Path) -> None:
    found = batch(tmp_path, BURSTGPT, trace_format="burstgpt")
    assert found.arrival_ms.tolist() == [0.0, 40_500.0]
    assert (found.input_tokens.tolist(), found.output_tokens.tolist()) == ([472, 1087], [18, 0])


def test_bailian_seconds_and_sixteen_token_blocks(tmp_path: Path) -> None:
    found = take(tmp_path, BAILIAN, trace_format="bailian")
    assert (found.block_size, found.summary["span_ms"], found.summary["num_sessions"]) == (16, 386.0, 0)
    assert found.summary["ideal_prefix_share"] == 0.25


def test_table_without_a_needed_column_is_refused_once(tmp_path: Path) -> None:
    assert faults(tmp_path, BURSTGPT, trace_format="azure") == [(1, "TIMESTAMP")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"16.11.2023,5,5\n", "TIMESTAMP"),
        (b"2023-13-01 00:00:00,5,5\n", "TIMESTAMP"),
        (b"2023-11-16 18:15:46,5.5,5\n", "ContextTokens"),
        (b"2023-11-16 18:15:46,5,\n", "GeneratedTokens"),
        (b"2023-11-16 18:15:46,5\n", "row"),
        (b"2023-11-16 18:15:46,0,5\n", "input_length"),
    ],
)
def test_faulty_cell_is_named(tmp_path: Path, text: bytes, place: str) -> None:
    named = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,5,5\n"
    assert faults(tmp_path, named + text, trace_format="azure") == [(3, place)]


def test_wall_clock_counts_ticks_across_days_and_zones() -> None:
    clock = WallClock()
    first = clock("2024-05-10 23:59:59.9999999")
    assert clock("2024-05-11T00:00:00Z") - first == 1
    assert clock("2024-05-11 02:00:00+02:00") - first == 1
