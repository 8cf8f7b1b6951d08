"""What holds for every replay, whatever the fleet and the requests: small random cases of every backend and mode."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reference.block_pool import BlockPool
from tests.reference.engine_group import EngineGroup
from tests.reference.plain_replay import replay
from tests.reference.random_cases import Backend, Mode, assert_agree, random_case
from tests.reference.random_cases import seeds as at_least
from tests.reference.sequence import Sequence
from tests.reference.sglang import SglangRank
from tests.reference.step_times import ConstantTimes
from workers.errors import StuckError
from workers.replay.fleet import Fleet
from workers.replay.outcomes import COMPLETED, REJECTED, UNFINISHED, Outcomes
from workers.traffic.requests import RequestBatch

BACKENDS: tuple[Backend, ...] = ("vllm", "trtllm", "sglang")
MODES: tuple[Mode, ...] = ("aggregated", "disaggregated")
small = settings(
    max_examples=len(at_least(0, 25)), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10**6)


Run = tuple[Fleet, RequestBatch, Outcomes]


def _replayed(seed: int, backend: Backend, mode: Mode) -> Run | None:
    fleet, batch = random_case(seed, backend, mode)
    try:
        return fleet, batch, replay(fleet, batch)
    except StuckError:
        return None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
@small
@given(seed=seeds)
def test_any_replay_keeps_memory_tokens_time_and_cap(
    backend: Backend, mode: Mode, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replay, whose blocks are counted after every pass, and what holds for its outcome."""
    with monkeypatch.context() as patch:
        patch.setattr(EngineGroup, "finish_pass", _checked_finish)
        run = _replayed(seed, backend, mode)
    if run is not None:
        _assert_completed_requests_have_all_their_tokens(*run)
        _assert_moments_are_in_the_order_of_a_requests_life(run[2])
        _assert_sessions_in_flight_never_exceed_the_cap(*run[1:])


def _assert_completed_requests_have_all_their_tokens(fleet: Fleet, batch: RequestBatch, seen: Outcomes) -> None:
    done = seen.status == COMPLETED
    # Later turns of a session never arrive when no decode engine can ever hold an earlier one.
    unfinished = seen.status == UNFINISHED
    assert np.isnan(seen.arrival_ms[unfinished]).all()
    assert fleet.agg is None or not unfinished.any()
    assert (seen.generated_tokens[~done] == 0).all()
    assert (seen.generated_tokens <= batch.output_tokens).all()
    pool = fleet.agg or fleet.prefill
    if pool is not None and pool.context_length is None and pool.backend != "trtllm":
        assert (seen.generated_tokens[done] == batch.output_tokens[done]).all()
    assert seen.gap_count.sum() == np.maximum(seen.generated_tokens[done] - 1, 0).sum()


def _assert_moments_are_in_the_order_of_a_requests_life(seen: Outcomes) -> None:
    done = seen.status == COMPLETED
    life = [seen.arrival_ms, seen.first_admit_ms, seen.first_token_ms, seen.last_token_ms, seen.end_ms]
    for earlier, later in pairwise(life):
        assert not (earlier[done] > later[done]).any()  # a request without output has no tokens
    assert (seen.gap_ms >= 0).all()
    assert seen.end_of_replay_ms == max(seen.end_ms[~np.isnan(seen.end_ms)], default=0.0)


def _assert_sessions_in_flight_never_exceed_the_cap(batch: RequestBatch, seen: Outcomes) -> None:
    if batch.in_flight_cap is None:
        return
    starts = [seen.arrival_ms[batch.session == session].min() for session in batch.order]
    ends = [seen.end_ms[batch.session == session].max() for session in batch.order]
    for start in starts:
        in_flight = sum(s <= start < e or s == start == e for s, e in zip(starts, ends, strict=True))
        instant = sum(s == start == e for s, e in zip(starts, ends, strict=True))
        assert in_flight - instant <= batch.in_flight_cap


_finish = EngineGroup.finish_pass


def _checked_finish(group: EngineGroup) -> list[Sequence]:
    """Memory after every pass is within the pool and accounted for."""
    for rank in group.ranks:
        if isinstance(rank, SglangRank):
            owned = sum(held.own for held in rank.held.values())
            total = rank.pool.num_blocks * rank.page
            assert min(rank.free, rank.tree.evictable, owned) >= 0
            assert rank.free + owned + rank.tree.size == total
        else:
            _check_blocks(rank.blocks, {block for held in rank.held.values() for block in held})
    return _finish(group)


def _check_blocks(pool: BlockPool, held: set[object]) -> None:
    assert 0 <= pool.active <= pool.num_blocks
    assert pool.free >= 0
    assert pool.active == len(held)
    assert not held & set(pool.inactive)


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(seed=seeds)
def test_two_replays_of_one_case_agree(backend: Backend, seed: int) -> None:
    first, second = _replayed(seed, backend, "aggregated"), _replayed(seed, backend, "aggregated")

    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert_agree(first[2], second[2])


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(seed=seeds)
def test_times_doubled_double_every_moment_of_a_burst(backend: Backend, seed: int) -> None:
    """With constant step times and no clock but the engine's own, nothing but the unit of time changes."""
    fleet, batch = random_case(seed, backend)
    assert fleet.agg is not None
    batch = dataclasses.replace(batch, arrival_ms=batch.arrival_ms * 0.0, delay_ms=batch.delay_ms * 0.0)
    fleets = [Fleet(agg=dataclasses.replace(fleet.agg, step_times=ConstantTimes(8.0 * k, 1.0 * k))) for k in (1, 2)]
    try:
        once, twice = (replay(f, batch) for f in fleets)
    except StuckError:
        return

    np.testing.assert_array_equal(twice.end_ms, 2.0 * once.end_ms)
    np.testing.assert_array_equal(twice.status == REJECTED, once.status == REJECTED)
