"""Synthetic traffic: arrivals, sessions, shared prefixes (traffic spec, section 2)."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workers.traffic.prompts import shared_tokens, spans_of
from workers.traffic.requests import RequestBatch
from workers.traffic.synthetic import (
    SyntheticTraffic,
    constant_arrivals,
    poisson_arrivals,
    prefix_groups,
    shared_prefix_tokens,
    synthetic_batch,
)

PLAIN = SyntheticTraffic(isl=256, osl=4, sessions=4, block_size=64)


def test_constant_arrivals_interval_30_accumulate_as_observed() -> None:
    expected = [0.0, 29.999999999999996, 59.99999999999999, 89.99999999999999, 119.99999999999999, 149.99999999999997]
    assert constant_arrivals(6, 30.0).tolist() == expected


def test_constant_arrivals_rate_7_accumulate_as_observed() -> None:
    assert constant_arrivals(5, 1000.0 / 7)[[1, 2, 4]].tolist() == [
        142.85714285714286,
        285.7142857142857,
        571.4285714285714,
    ]


def test_constant_arrivals_interval_zero_is_a_burst() -> None:
    assert constant_arrivals(3, 0.0).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("interval_ms", [-1.0, float("nan"), float("inf")])
def test_constant_arrivals_bad_interval_is_refused(interval_ms: float) -> None:
    with pytest.raises(ValueError, match="interval_ms"):
        constant_arrivals(3, interval_ms)


def test_poisson_arrivals_rate_2_seed_42_are_the_observed_ones() -> None:
    assert poisson_arrivals(8, 2.0, 42).tolist() == [
        0.0,
        373.86230882034823,
        765.0976975956942,
        1271.0376842248202,
        1531.3929757803517,
        1548.8661716639485,
        1816.9010052971657,
        2485.5091772975816,
    ]


def test_poisson_arrivals_are_a_prefix_of_longer_ones() -> None:
    assert poisson_arrivals(10, 3.0, 5).tolist() == poisson_arrivals(100, 3.0, 5)[:10].tolist()
    assert poisson_arrivals(1, 3.0, 5).tolist() == [0.0]


@pytest.mark.parametrize("rate", [0.0, -2.0, float("nan"), float("inf")])
def test_poisson_arrivals_bad_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        poisson_arrivals(2, rate, 1)


def test_batch_open_loop_has_arrivals_and_no_cap() -> None:
    batch = synthetic_batch(PLAIN, constant_arrivals(4, 1000.0))
    assert batch.arrival_ms.tolist() == [0.0, 1000.0, 2000.0, 3000.0]
    assert batch.in_flight_cap is None
    assert batch.span_id is None


def test_batch_needs_exactly_one_drive() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        synthetic_batch(PLAIN)
    with pytest.raises(ValueError, match="exactly one"):
        synthetic_batch(PLAIN, constant_arrivals(4, 1.0), in_flight_cap=2)


def test_batch_cap_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        synthetic_batch(PLAIN, in_flight_cap=0)


def test_batch_arrays_are_read_only() -> None:
    batch = synthetic_batch(PLAIN, in_flight_cap=2)
    with pytest.raises(ValueError, match="read-only"):
        batch.input_tokens[0] = 1


def test_spica_turns_are_fresh_prompts_of_isl_tokens() -> None:
    batch = synthetic_batch(dataclasses.replace(PLAIN, turns=3, inter_turn_delay_ms=25.0), in_flight_cap=1)
    assert batch.num_requests == 12
    assert set(batch.input_tokens.tolist()) == {256}
    assert batch.delay_ms[:3].tolist() == [0.0, 25.0, 25.0]
    assert np.isnan(batch.arrival_ms[1:3]).all()
    assert batch.session[:6].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.span_id is None


def test_spica_turns_zero_counts_as_one() -> None:
    assert synthetic_batch(dataclasses.replace(PLAIN, turns=0), in_flight_cap=1).num_requests == 4


def test_cli_turns_repeat_earlier_prompts_and_outputs() -> None:
    traffic = SyntheticTraffic(isl=128, osl=4, sessions=2, block_size=64, turns=3, dialect="cli")
    batch = synthetic_batch(traffic, in_flight_cap=1)
    assert batch.input_tokens[:3].tolist() == [128, 260, 392]
    assert shared_tokens(batch, 0, 1) == 128
    assert shared_tokens(batch, 1, 2) == 260
    assert shared_tokens(batch, 0, 3) == 0
    assert batch.output_span is not None
    assert spans_of(batch, 2)[1] == (int(batch.output_span[0]), 4)


@pytest.mark.parametrize(
    ("isl", "block_size", "ratio", "tokens"),
    [
        (256, 64, 0.5, 128),
        (300, 64, 0.5, 192),
        (300, 16, 0.5, 160),
        (300, 128, 0.5, 256),
        (256, 64, 1.0, 256),
        (256, 64, 0.3, 64),
        (256, 64, 0.375, 128),
        (256, 64, 0.625, 192),
        (300, 64, 1.0, 300),
        (301, 1, 0.5, 151),
    ],
)
def test_shared_prefix_is_whole_blocks_half_rounded_up(isl: int, block_size: int, ratio: float, tokens: int) -> None:
    traffic = SyntheticTraffic(
        isl=isl, osl=1, sessions=3, block_size=block_size, shared_prefix_ratio=ratio, num_prefix_groups=1
    )
    assert shared_prefix_tokens(traffic) == tokens
    assert shared_tokens(synthetic_batch(traffic, in_flight_cap=1), 0, 2) == tokens


@pytest.mark.parametrize(
    ("dialect", "groups", "first_sessions"),
    [
        ("spica", 4, [0, 1, 4, 7]),
        ("cli", 4, [0, 1, 5, 9]),
        ("cli", 2, [0, 5]),
        ("cli", 3, [0, 2, 5]),
        ("cli", 8, [0, 1, 2, 5, 9, 13, 19, 30]),
    ],
)
def test_prefix_groups_first_sessions_are_the_observed_ones(
    dialect: str, groups: int, first_sessions: list[int]
) -> None:
    traffic = dataclasses.replace(
        PLAIN, sessions=40, shared_prefix_ratio=0.5, num_prefix_groups=groups, dialect=dialect
    )
    drawn = prefix_groups(traffic)
    assert drawn is not None
    assert sorted(np.unique(drawn, return_index=True)[1].tolist()) == first_sessions


def test_prefix_groups_do_not_depend_on_lengths_load_or_turns() -> None:
    traffic = dataclasses.replace(PLAIN, sessions=30, shared_prefix_ratio=0.5, num_prefix_groups=5)
    other = dataclasses.replace(traffic, isl=999, osl=7, turns=3, block_size=16)
    first, second = prefix_groups(traffic), prefix_groups(other)
    assert first is not None
    assert second is not None
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize(("ratio", "groups"), [(0.5, 0), (0.0, 2)])
def test_prefix_sharing_needs_ratio_and_groups(ratio: float, groups: int) -> None:
    traffic = dataclasses.replace(PLAIN, shared_prefix_ratio=ratio, num_prefix_groups=groups)
    assert synthetic_batch(traffic, in_flight_cap=1).span_id is None


def test_group_sharing_in_cli_sessions_covers_the_first_part_only() -> None:
    traffic = SyntheticTraffic(
        isl=256, osl=4, sessions=2, block_size=64, turns=2, shared_prefix_ratio=0.5, num_prefix_groups=1, dialect="cli"
    )
    batch = synthetic_batch(traffic, in_flight_cap=1)
    assert shared_tokens(batch, 0, 2) == 128
    assert shared_tokens(batch, 1, 3) == 128


@pytest.mark.parametrize("prefix", [128, 100, 256])
def test_cached_prefix_tokens_are_shared_by_all(prefix: int) -> None:
    batch = synthetic_batch(dataclasses.replace(PLAIN, cached_prefix_tokens=prefix), in_flight_cap=1)
    assert shared_tokens(batch, 0, 3) == prefix


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"isl": 0}, "isl"),
        ({"osl": 0}, "osl"),
        ({"sessions": 0}, "sessions"),
        ({"inter_turn_delay_ms": -5.0}, "inter_turn_delay_ms"),
        ({"inter_turn_delay_ms": float("nan")}, "inter_turn_delay_ms"),
        ({"shared_prefix_ratio": 1.5}, "shared_prefix_ratio"),
        ({"num_prefix_groups": -1}, "num_prefix_groups"),
        ({"cached_prefix_tokens": 257}, "cached_prefix_tokens"),
    ],
)
def test_traffic_out_of_range_is_refused_by_name(changes: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(PLAIN, **changes)


TRAFFIC = st.builds(
    SyntheticTraffic,
    isl=st.integers(1, 400),
    osl=st.integers(1, 50),
    sessions=st.integers(1, 12),
    block_size=st.sampled_from([1, 4, 16, 64]),
    turns=st.integers(1, 4),
    shared_prefix_ratio=st.floats(0, 1),
    num_prefix_groups=st.integers(0, 4),
    dialect=st.sampled_from(["spica", "cli"]),
)


@given(TRAFFIC)
def test_batch_any_traffic_keeps_the_invariants(traffic: SyntheticTraffic) -> None:
    check_invariants(synthetic_batch(traffic, in_flight_cap=3), traffic.sessions * traffic.turns)


@given(TRAFFIC)
def test_prefix_groups_share_exactly_their_prefix(traffic: SyntheticTraffic) -> None:
    batch = synthetic_batch(traffic, in_flight_cap=1)
    groups = prefix_groups(traffic)
    for session in range(1, traffic.sessions):
        together = groups is not None and groups[0] == groups[session]
        expected = shared_prefix_tokens(traffic) if together else 0
        assert shared_tokens(batch, 0, session * traffic.turns) == expected


def check_invariants(batch: RequestBatch, num_requests: int) -> None:
    assert batch.num_requests == num_requests
    assert sorted(batch.order.tolist()) == list(range(batch.order.size))
    assert (np.diff(batch.session) >= 0).all()
    is_first = np.diff(batch.session, prepend=-1) != 0
    assert not np.isnan(batch.arrival_ms[is_first]).any()
    assert np.isnan(batch.arrival_ms[~is_first]).all()
    assert (batch.delay_ms >= 0).all()
    for request in range(batch.num_requests if batch.span_id is not None else 0):
        spans = spans_of(batch, request)
        assert sum(tokens for _, tokens in spans) == batch.input_tokens[request]
        assert all(tokens >= 1 and name >= 0 for name, tokens in spans)
