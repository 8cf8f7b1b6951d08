"""Thresholds of the targets throughput, latency and load."""

from dataclasses import replace

import pytest

from tests.unit.workers.planner.looks import FACTS, evenly, record
from workers.planner.measures import measures, step
from workers.planner.observation import Role
from workers.planner.settings import Target


def test_agg_measure_of_the_observed_first_tick_asks_for_an_engine() -> None:
    """40 decoding requests, 10897 KV tokens and 22784 queued prompt tokens against 12800."""
    seen = record(num_decode_requests=40, decode_kv_tokens=10897, queued_prefill_tokens=22784)
    assert measures("agg", "throughput", FACTS, [seen]) == [(10897 + 22784) / 12800]
    assert step("agg", "throughput", FACTS, [seen], 1) == 1


def test_decode_measure_leaves_queued_prompts_out() -> None:
    seen = record(decode_kv_tokens=6400, queued_decode_kv_tokens=3200, queued_prefill_tokens=99999)
    assert measures("decode", "throughput", FACTS, [seen]) == [0.75]


@pytest.mark.parametrize(
    ("role", "target", "tokens", "expected"),
    [
        ("agg", "throughput", 12800, 0),
        ("agg", "throughput", 12801, 1),
        ("decode", "latency", 5120, 0),
        ("decode", "latency", 5121, 1),
        ("agg", "load", 11519, 0),
        ("agg", "load", 11520, 1),
    ],
)
def test_kv_at_the_upper_threshold_acts_only_under_load(role: Role, target: Target, tokens: int, expected: int) -> None:
    assert step(role, target, FACTS, evenly(3, decode_kv_tokens=tokens), 3) == expected


@pytest.mark.parametrize(
    ("target", "queued", "expected"),
    [
        ("throughput", 2048, 1),
        ("throughput", 2047, 0),
        ("throughput", 205, 0),
        ("throughput", 204, -1),
        ("latency", 205, 1),
        ("latency", 1, 0),
        ("latency", 0, -1),
        ("load", 1, 1),
        ("load", 0, -1),
    ],
)
def test_prefill_queue_against_the_context_length(target: Target, queued: int, expected: int) -> None:
    facts = replace(FACTS, context_length=2048)
    assert step("prefill", target, facts, evenly(2, queued_prefill_tokens=queued), 2) == expected


def test_prefill_without_a_context_length_never_scales() -> None:
    assert step("prefill", "throughput", FACTS, evenly(2, queued_prefill_tokens=10**6), 2) == 0


def test_one_rank_above_is_enough_to_grow() -> None:
    busy = record(2, 1, decode_kv_tokens=13000)
    assert step("agg", "throughput", FACTS, [*evenly(2), busy], 3) == 1


def test_one_rank_not_below_keeps_the_fleet() -> None:
    assert step("agg", "throughput", FACTS, [*evenly(2), record(2, decode_kv_tokens=7680)], 3) == 0


def test_scale_down_is_refused_where_those_left_would_pass_the_upper_threshold() -> None:
    # 0.55 of two engines is 1.1 of one; of three engines it is 0.825 of two.
    assert step("agg", "throughput", FACTS, evenly(2, decode_kv_tokens=7040), 2) == 0
    assert step("agg", "throughput", FACTS, evenly(3, decode_kv_tokens=7040), 3) == -1


def test_last_engine_stays() -> None:
    assert step("agg", "throughput", FACTS, evenly(1), 1) == 0
