"""Traces to requests: clock, sessions, closed loop, content (traffic spec, sections 3.1 to 3.4 and 3.6)."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.files import trace
from tests.unit.workers.traffic.prompts import shared_tokens, spans_of
from tests.unit.workers.traffic.test_synthetic import check_invariants
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.trace_rows import TraceFaultError, read_rows


def row(timestamp: float | None, length: int = 100, ids: tuple[int, ...] = (1,), **more: Any) -> dict[str, Any]:
    stamp = {} if timestamp is None else {"timestamp": timestamp}
    return {**stamp, "input_length": length, "output_length": 2, "hash_ids": list(ids), **more}


def batch_of(*rows: dict[str, Any], **drive: Any) -> RequestBatch:
    content = b"\n".join(orjson.dumps(item) for item in rows)
    how = TraceDrive(**{"dialect": "cli", **drive})
    return mooncake_batch(read_rows(content, how.trace_block_size), how)


def test_open_loop_shifts_the_first_arrival_to_zero() -> None:
    assert batch_of(row(5000), row(6000)).arrival_ms.tolist() == [0.0, 1000.0]


def test_open_loop_speedup_divides_arrivals() -> None:
    assert batch_of(row(5000), row(6000), speedup=4.0).arrival_ms.tolist() == [0.0, 250.0]


def test_open_loop_unsorted_file_is_ordered_by_time_stably() -> None:
    batch = batch_of(row(300), row(0), row(300), row(-100))
    assert batch.order.tolist() == [3, 1, 0, 2]
    assert batch.arrival_ms.tolist() == [400.0, 100.0, 400.0, 0.0]


def test_open_loop_missing_stamp_is_zero_in_cli_and_refused_in_spica() -> None:
    assert batch_of(row(None), row(500)).arrival_ms.tolist() == [0.0, 500.0]
    with pytest.raises(TraceFaultError, match=r"line 1: .*first_arrival_timestamp_ms"):
        batch_of(row(None), row(500), dialect="spica")


def test_session_later_turn_waits_for_the_stamp_gap() -> None:
    batch = batch_of(row(0, session_id="a"), row(10, session_id="b"), row(250, session_id="a"), speedup=2.0)
    assert batch.session.tolist() == [0, 0, 1]
    assert batch.delay_ms.tolist() == [0.0, 125.0, 0.0]
    assert np.isnan(batch.arrival_ms[1])


def test_session_explicit_delay_beats_the_stamp_gap() -> None:
    batch = batch_of(row(0, session_id="a"), row(250, session_id="a", delay=40), speedup=2.0)
    assert batch.delay_ms.tolist() == [0.0, 20.0]


def test_session_missing_stamp_means_no_wait_and_keeps_the_last_known_one() -> None:
    """Observed on the peer: stamps 100, none, 700 wait 0 and then 600."""
    rows = [row(100, session_id="a"), row(None, session_id="a"), row(700, session_id="a")]
    assert batch_of(*rows).delay_ms.tolist() == [0.0, 0.0, 600.0]


def test_session_without_any_earlier_stamp_is_refused() -> None:
    with pytest.raises(TraceFaultError, match="line 2: cannot infer delay"):
        batch_of(row(None, session_id="a"), row(300, session_id="a"))


@pytest.mark.parametrize(
    ("rows", "detail"),
    [
        ([row(0, session_id="a", delay=5)], "delay on the first turn"),
        ([row(0, delay=5)], "delay on the first turn"),
        ([row(0, session_id="a"), row(0, session_id="a", delay=-1)], "invalid delay"),
        ([row(10, session_id="a"), row(5, session_id="a")], "invalid delay"),
    ],
)
def test_session_bad_delays_are_refused(rows: list[dict[str, Any]], detail: str) -> None:
    with pytest.raises(TraceFaultError, match=detail):
        batch_of(*rows)


def test_first_row_zero_delay_is_accepted() -> None:
    assert batch_of(row(0, delay=0)).delay_ms.tolist() == [0.0]


def test_closed_loop_ignores_stamps_and_keeps_delays_unscaled() -> None:
    batch = batch_of(
        row(900, session_id="a"), row(0), row(1900, session_id="a", delay=1000), in_flight_cap=1, speedup=4.0
    )
    assert batch.order.tolist() == [0, 1]
    assert batch.arrival_ms[[0, 2]].tolist() == [0.0, 0.0]
    assert batch.delay_ms.tolist() == [0.0, 1000.0, 0.0]


def test_closed_loop_negative_stamp_is_refused_in_spica_only() -> None:
    assert batch_of(row(-5), in_flight_cap=1).num_requests == 1
    with pytest.raises(TraceFaultError, match="non-negative"):
        batch_of(row(-5), in_flight_cap=1, dialect="spica")


def test_empty_prompt_is_refused_in_spica_only() -> None:
    assert batch_of(row(0, 0, ())).input_tokens.tolist() == [0]
    with pytest.raises(TraceFaultError, match="positive input_length"):
        batch_of(row(0, 0, ()), dialect="spica")


def test_content_is_a_prefix_of_blocks_in_order() -> None:
    """The reuse example of section 3.1: partial blocks are shared, [2, 1] shares nothing with [1, 2]."""
    batch = batch_of(row(0, 700, (1, 2)), row(1, 900, (1, 2)), row(2, 512), row(3, 1024, (1, 2)), row(4, 1024, (2, 1)))
    assert [shared_tokens(batch, 1, other) for other in (0, 2, 3, 4)] == [700, 512, 900, 0]


def test_content_blocks_beyond_the_prompt_are_dropped() -> None:
    batch = batch_of(row(0, 64, (1, 2, 3)), row(1, 64, (1,)), trace_block_size=64)
    assert spans_of(batch, 0) == spans_of(batch, 1) == [(1, 64)]


def test_content_without_shared_heads_has_no_spans() -> None:
    assert batch_of(row(0, 100, (1,)), row(1, 600, (2, 1))).span_id is None


def test_delta_turns_repeat_prompts_and_outputs() -> None:
    rows = [row(0, 100, (1,), session_id="a"), row(1, 50, (2,), session_id="a"), row(2, 10, (1,))]
    rows[0]["output_length"] = 4
    batch = batch_of(*rows, is_delta=True)
    assert batch.input_tokens.tolist() == [100, 154, 10]
    assert batch.output_span is not None
    assert spans_of(batch, 1) == [(1, 100), (int(batch.output_span[0]), 4), (2, 50)]
    assert shared_tokens(batch, 1, 2) == 10


def test_delta_turn_after_empty_output_repeats_the_prompt_only() -> None:
    rows = [row(0, 100, (1,), session_id="a", output_length=0), row(1, 50, (2,), session_id="a")]
    assert spans_of(batch_of(*rows, is_delta=True), 1) == [(1, 100), (2, 50)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speedup": 0.0}, "arrival_speedup_ratio"),
        ({"speedup": float("inf")}, "arrival_speedup_ratio"),
        ({"in_flight_cap": 0}, "in_flight_cap"),
        ({"trace_block_size": 0}, "trace_block_size"),
    ],
)
def test_drive_out_of_range_is_refused_by_name(changes: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TraceDrive(**changes)


def test_recorded_conversation_is_read_whole() -> None:
    """Figures published with the trace: rows, span, mean lengths and number of blocks."""
    batch = mooncake_batch(read_rows(trace("mooncake_conversation.jsonl")), TraceDrive())
    assert batch.num_requests == 12_031
    assert batch.span_id is not None
    assert batch.span_id.size == 288_500
    assert batch.arrival_ms.max() == 3_536_999.0
    assert round(batch.input_tokens.mean(), 1) == 12_035.1
    assert round(batch.output_tokens.mean(), 1) == 342.6


ROWS = st.lists(
    st.builds(
        lambda stamp, ids, cut, output, session: {
            "timestamp": stamp,
            "input_length": max(1, len(ids) * 16 - cut),
            "output_length": output,
            "hash_ids": ids,
            **({"session_id": session} if session else {}),
        },
        stamp=st.integers(0, 1000),
        ids=st.lists(st.integers(0, 3), min_size=1, max_size=4),
        cut=st.integers(0, 15),
        output=st.integers(0, 5),
        session=st.sampled_from([None, "a", "b"]),
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS, st.booleans(), st.sampled_from([None, 1, 3]))
def test_batch_any_trace_keeps_the_invariants(rows: list[dict[str, Any]], is_delta: bool, cap: int | None) -> None:
    rows = sorted(rows, key=lambda item: item["timestamp"])
    batch = batch_of(*rows, trace_block_size=16, is_delta=is_delta, in_flight_cap=cap)
    check_invariants(batch, len(rows))
    firsts = batch.arrival_ms[np.diff(batch.session, prepend=-1) != 0]
    assert (np.diff(firsts[batch.order]) >= 0).all()


@given(ROWS)
def test_shared_tokens_equal_those_of_the_written_out_prompts(rows: list[dict[str, Any]]) -> None:
    """The peer's rule: each id is its block written out, so a common prefix is one of the ids, cut at both lengths."""
    alone = [{key: value for key, value in item.items() if key != "session_id"} for item in rows]
    batch = batch_of(*alone, trace_block_size=16)
    for other in range(1, len(rows)):
        same = 0
        for mine, theirs in zip(rows[0]["hash_ids"], rows[other]["hash_ids"], strict=False):
            if mine != theirs:
                break
            same += 16
        assert shared_tokens(batch, 0, other) == min(same, rows[0]["input_length"], rows[other]["input_length"])
