"""Metrics and timeline of many candidates; what acts alike is replayed once.

The candidates of a chunk share their requests and step times, and many differ only in limits that cannot bind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from workers.memory import keep_freed_memory
from workers.replay import compiled, state, step_table
from workers.replay.drive import ShouldStop
from workers.replay.fleet import Fleet, Pool
from workers.replay.loop import replay, run_part
from workers.replay.metrics import Metric, Sla
from workers.replay.residual import residual
from workers.replay.slack import without_slack
from workers.replay.state import State
from workers.replay.summary import summarise
from workers.replay.timeline import Moments, Timeline, capacity_tokens, course
from workers.timing.fixed import FixedTimes
from workers.traffic.requests import RequestBatch


@dataclass(frozen=True, slots=True)
class Report:
    """One replay: the keys and meanings of `metrics.report`, the course in buckets, and the error of its step times."""

    metrics: Mapping[str, Metric]
    course: Timeline
    step_time_residual: float = 0.0


class Reports:
    """The reports of one goal; each distinct replay is run once."""

    def __init__(self, sla: Sla | None, should_stop: ShouldStop | None = None, threads: int = 1) -> None:
        self._sla, self._should_stop, self._threads = sla, should_stop, threads
        self._known: dict[tuple[Fleet, int], tuple[RequestBatch, Report]] = {}

    def of(self, fleet: Fleet, batch: RequestBatch) -> Report:
        """The report of a fleet under a batch. Raises: as `loop.replay`."""
        acting = without_slack(fleet, batch)
        # The batch is kept with its report, so its id cannot pass to another one.
        key = (acting, id(batch))
        if key not in self._known:
            self._known[key] = (batch, self._replayed(acting, batch))
        known = self._known[key][1]
        used_ratio = known.course.kv_tokens / capacity_tokens(fleet)
        return replace(known, course=replace(known.course, kv_used_ratio=used_ratio))

    def _replayed(self, fleet: Fleet, batch: RequestBatch) -> Report:
        st, copies = run_part(fleet, batch, self._should_stop, self._threads)
        pool = fleet.agg or fleet.decode
        assert pool is not None
        metrics = summarise(st, pool, self._sla, copies, fleet.prefill)
        buckets = course(moments_of(st), end_of(st), capacity_tokens(fleet), copies=copies)
        return Report(metrics, buckets, residual(st, pool))


def end_of(st: State) -> float:
    """Last event of a finished replay, ms."""
    return float(st["moments"][state.LAST_EVENT])


def moments_of(st: State) -> Moments:
    """What the timeline reads, from a finished replay."""
    requests, stamps = st["requests"], np.ascontiguousarray(st["stamps"].T)
    return Moments(
        np.where(requests[:, state.WORKER] >= 0, stamps[state.ARRIVAL], np.nan),
        stamps[state.FIRST_ADMIT],
        stamps[state.FIRST_TOKEN],
        stamps[state.LAST_TOKEN],
        stamps[state.END],
        requests[:, state.PROMPT].astype(np.float64),
        requests[:, state.GENERATED].astype(np.float64),
    )


def warm() -> None:
    """Compile or load what aggregated fleets need, by tiny replays; call before a process pool forks.

    The loop of disaggregated fleets is as large again: the first replay that needs it loads it.
    """
    keep_freed_memory()
    compiled.prepare()
    step_table.warm()
    times = FixedTimes(1.0, 1.0)
    pool = Pool("agg", "vllm", 1, 1, 1, 8, 16, 64, 4, times)
    one = np.ones(1, dtype=np.int64)
    start = np.zeros(1)
    batch = RequestBatch(start, start, one, one, 0 * one, 0 * one, None, np.array([0, 1]), 0 * one, one, one)
    replay(Fleet(agg=pool), batch)
    closed = replace(batch, in_flight_cap=1, span_offset=None, span_id=None, span_tokens=None)
    Reports(None).of(Fleet(agg=pool), closed)
