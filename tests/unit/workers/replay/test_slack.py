"""Limits that cannot bind change nothing; those that can are left alone. Judged by the plain replay."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.reference.plain_replay import replay
from tests.unit.workers.replay.observed import POOL
from workers.replay import reports
from workers.replay.fleet import Fleet, KvRouter, Pool
from workers.replay.metrics import report
from workers.replay.reports import Reports
from workers.replay.slack import without_slack
from workers.replay.timeline import capacity_tokens, timeline
from workers.traffic.requests import RequestBatch
from workers.traffic.synthetic import SyntheticTraffic, constant_arrivals, synthetic_batch

TRAFFIC = SyntheticTraffic(
    isl=300,
    osl=20,
    sessions=24,
    block_size=64,
    turns=1,
    inter_turn_delay_ms=0.0,
    shared_prefix_ratio=0.0,
    num_prefix_groups=0,
)
CLOSED = synthetic_batch(TRAFFIC, in_flight_cap=6)
OPEN = synthetic_batch(TRAFFIC, constant_arrivals(24, 15.0))


def wide(backend: Any) -> Pool:
    """A pool none of whose limits binds."""
    return dataclasses.replace(
        POOL, backend=backend, num_blocks=5000, max_num_seqs=1024, max_num_batched_tokens=32768, block_size=64
    )


def pair(backend: str) -> Fleet:
    """Prefill and decode apart."""
    pool = wide(backend)
    return Fleet(
        prefill=dataclasses.replace(pool, role="prefill"),
        decode=dataclasses.replace(pool, role="decode", prefix_caching=False),
    )


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("batch", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize("mode", ["agg", "disagg"])
def test_fleet_without_slack_replays_exactly_alike(mode: str, backend: str, batch: RequestBatch) -> None:
    fleet = Fleet(agg=wide(backend)) if mode == "agg" else pair(backend)
    acting = without_slack(fleet, batch)
    assert acting != fleet
    ours, theirs = replay(acting, batch), replay(fleet, batch)
    for name in ("first_admit_ms", "first_token_ms", "last_token_ms", "generated_tokens", "status", "worker", "gap_ms"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name), equal_nan=True), name


def test_limits_that_bind_are_kept() -> None:
    tight = dataclasses.replace(POOL, num_blocks=8, max_num_seqs=2, max_num_batched_tokens=64)
    assert without_slack(Fleet(agg=tight), CLOSED) == Fleet(agg=tight)


def test_blocks_are_kept_where_a_cached_block_may_be_hit() -> None:
    shared = synthetic_batch(
        dataclasses.replace(TRAFFIC, shared_prefix_ratio=0.5, num_prefix_groups=2), in_flight_cap=6
    )
    for fleet, batch in (
        (Fleet(agg=wide("vllm")), shared),
        (Fleet(agg=wide("vllm"), router=KvRouter()), CLOSED),
        (Fleet(agg=dataclasses.replace(wide("vllm"), acceptance=(0.8,))), CLOSED),
    ):
        acting = without_slack(fleet, batch).agg
        assert acting is not None
        assert acting.num_blocks == 5000


def test_equal_work_is_replayed_once_and_kv_use_is_that_of_each_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[Fleet] = []

    def plain(self: Reports, fleet: Fleet, batch: RequestBatch) -> reports.Report:
        del self
        replayed.append(fleet)
        outcomes = replay(fleet, batch)
        return reports.Report(report(outcomes, batch, fleet), timeline(outcomes, batch, fleet))

    monkeypatch.setattr(Reports, "_replayed", plain)
    small, large = Fleet(agg=wide("vllm")), Fleet(agg=dataclasses.replace(wide("vllm"), num_blocks=9000))
    known = Reports(None)
    first, second = known.of(small, CLOSED), known.of(large, CLOSED)
    assert len(replayed) == 1
    assert first.metrics == second.metrics
    for fleet, found in ((small, first), (large, second)):
        assert found.course.kv_used_ratio == pytest.approx(found.course.kv_tokens / capacity_tokens(fleet))
