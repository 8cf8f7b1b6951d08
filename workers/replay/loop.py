"""Replay a batch on a fleet: drive the compiled event loop, answer what it asks, and hand out what happened.

replay(fleet, batch, should_stop)        one replay with every per-request moment
replay_many(jobs, sla, should_stop, threads)   metrics of many candidates
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.errors import StuckError
from workers.replay import cohorts, event_loop, passes, state
from workers.replay.apart import pool_of, replay_apart
from workers.replay.arrays import build, order_queues, radix_overflow
from workers.replay.batch_facts import facts_of
from workers.replay.disaggregated import Side, mark_arrived, replay_both, replay_part
from workers.replay.drafts import extend_draws, needs_draws
from workers.replay.drive import ShouldStop, check_stop, drive
from workers.replay.fleet import Fleet, KvRouter, Pool
from workers.replay.grouping import grouping_of, never_meet
from workers.replay.metrics import Metric, Sla
from workers.replay.outcomes import COMPLETED, REJECTED, UNFINISHED, Outcomes
from workers.replay.reductions import folded, serves_in_order
from workers.replay.state import State
from workers.replay.step_table import StepTable, step_table
from workers.replay.summary import summarise
from workers.traffic.requests import RequestBatch

_STATUS = np.array([UNFINISHED, UNFINISHED, COMPLETED, REJECTED], dtype=np.int8)


def replay(fleet: Fleet, batch: RequestBatch, should_stop: ShouldStop | None = None, threads: int = 1) -> Outcomes:
    """Replay every request on a fleet, with as many threads where its replicas never meet; see apart.

    Raises: StuckError when the modelled engine makes no progress, StoppedError when `should_stop` says so,
    UnsupportedError for fleets that this replay does not cover.
    """
    if fleet.agg is None:
        return outcomes_of_both(*replay_both(fleet, batch, partial(check_stop, should_stop)), batch)
    return outcomes_of(_simulated(fleet.agg, batch, fleet.router, should_stop, threads), fleet.agg, batch)


def replay_many(
    jobs: Sequence[tuple[Fleet, RequestBatch]],
    sla: Sla | None = None,
    should_stop: ShouldStop | None = None,
    threads: int = 1,
) -> list[dict[str, Metric]]:
    """The report of every (fleet, batch), in order, with the keys and meanings of `metrics.report`.

    Identical replicas are simulated once where that is exact (see reductions). Threads take whole jobs, each with tables of its
    own, or the replicas of one after another where jobs are fewer. The same bytes for any number of them. Raises: as `replay`.
    """
    if len(jobs) < threads or threads == 1:
        return [_summary(fleet, batch, sla, should_stop, threads) for fleet, batch in jobs]
    reports: list[dict[str, Metric]] = [{} for _ in jobs]
    waiting = enumerate(jobs)

    def replay_waiting() -> None:
        for place, (fleet, batch) in waiting:
            reports[place] = _summary(fleet, batch, sla, should_stop)

    for done in [pool_of(threads).submit(replay_waiting) for _ in range(threads)]:
        done.result()
    return reports


def _summary(
    fleet: Fleet, batch: RequestBatch, sla: Sla | None, should_stop: ShouldStop | None, threads: int = 1
) -> dict[str, Metric]:
    st, copies = run_part(fleet, batch, should_stop, threads)
    pool = fleet.agg or fleet.decode
    assert pool is not None
    return summarise(st, pool, sla, copies, fleet.prefill)


def run_part(fleet: Fleet, batch: RequestBatch, should_stop: ShouldStop | None, threads: int = 1) -> tuple[State, int]:
    """The finished replay of one part of a fleet, and of how many equal parts the fleet consists. Raises: as `replay`.

    The state is that of the engines that emit the tokens.
    """
    if fleet.agg is None:
        pre, dec, copies = replay_part(fleet, batch, partial(check_stop, should_stop))
        mark_arrived(pre, dec)
        return dec.st, copies
    part, load, copies = (fleet.agg, batch, 1) if fleet.router else folded(fleet.agg, batch)
    return _simulated(part, load, fleet.router, should_stop, threads), copies


def _simulated(
    pool: Pool, batch: RequestBatch, router: KvRouter | None, should_stop: ShouldStop | None, threads: int
) -> State:
    """A finished replay; under a virtual-time limit a second run leaves out the token gaps of what the first left open."""
    st = _run(pool, batch, router, None, should_stop, threads)
    if batch.stop_after_ms is None:
        return st
    return _run(pool, batch, router, st["requests"][:, state.STATUS] == state.WAITING, should_stop, threads)


def _run(
    pool: Pool,
    batch: RequestBatch,
    router: KvRouter | None,
    silent: NDArray[np.bool_] | None,
    should_stop: ShouldStop | None,
    threads: int,
) -> State:
    """The state after one whole run; started anew with queues, cache or larger radix trees when it turns out to need them."""
    table = step_table(pool.step_times)
    if router is None and serves_in_order(pool, batch):
        st = build(pool, batch, in_order=True)
        order_queues(st)
        if drive(st, pool, table, facts_of(batch).asks_each_decode, should_stop, cohorts.run) == passes.FINISHED:
            return st
    radix_nodes: int | None = None
    full_cache = False
    grouping = grouping_of(pool, batch, router)
    while True:
        st = build(pool, batch, radix_nodes, router, full_cache=full_cache, grouping=grouping)
        if silent is not None:
            st["requests"][:, state.SILENT] = silent
        try:
            if advance(st, pool, table, batch, router, should_stop, threads):
                return st
            full_cache = True
        except StuckError:
            if not radix_overflow(st):
                raise
            radix_nodes = 2 * len(st["sgl_nodes"])


def advance(
    st: State,
    pool: Pool,
    table: StepTable,
    batch: RequestBatch,
    router: KvRouter | None = None,
    should_stop: ShouldStop | None = None,
    threads: int = 1,
) -> bool:
    """Run the whole replay; False when it needs the cache that was left out."""
    number = st["numbers"]
    exact = facts_of(batch).asks_each_decode
    if needs_draws(pool):
        extend_draws(st, pool)
    if not never_meet(batch, router):
        replicas = int(st["limits"][state.NUM_REPLICAS])
        number[state.FIRST_REPLICA], number[state.LAST_REPLICA] = 0, replicas
        number[state.SESSION_STRIDE] = 1
        number[state.EXACT_HORIZON] = int(replicas == 1)
        return drive(st, pool, table, exact, should_stop) == passes.FINISHED
    return replay_apart(st, pool, table, exact, should_stop, threads)


def outcomes_of(st: State, pool: Pool, batch: RequestBatch) -> Outcomes:
    """Per-request arrays and pooled gaps of a finished replay."""
    requests, stamps = (_in_request_order(st, name) for name in ("requests", "stamps"))

    def count(column: int) -> NDArray[np.int64]:
        return requests[:, column].astype(np.int64)

    def stamp(column: int) -> NDArray[np.float64]:
        return stamps[:, column].copy()

    status = _STATUS[requests[:, state.STATUS]]
    end = float(st["moments"][state.LAST_EVENT])
    gap_ms, gap_count = expanded_gaps(st)
    return Outcomes(
        arrival_ms=np.where(requests[:, state.WORKER] >= 0, stamps[:, state.ARRIVAL], np.nan),
        first_admit_ms=stamp(state.FIRST_ADMIT),
        first_token_ms=stamp(state.FIRST_TOKEN),
        second_token_ms=stamp(state.SECOND_TOKEN),
        last_token_ms=stamp(state.LAST_TOKEN),
        end_ms=stamp(state.END),
        generated_tokens=count(state.GENERATED),
        admissions=count(state.ADMISSIONS),
        first_reused_tokens=count(state.FIRST_REUSED),
        max_reused_tokens=count(state.MAX_REUSED),
        status=status,
        worker=requests[:, state.WORKER].copy(),
        dp_rank=requests[:, state.DP_RANK].copy(),
        prefill_worker=np.full(batch.num_requests, -1, dtype=np.int32),
        gap_ms=gap_ms,
        gap_count=gap_count,
        committed_prefill_tokens=int(st["numbers"][state.COMMITTED_PREFILL]),
        prefill_worker_s=0.0,
        decode_worker_s=pool.replicas * end / 1000.0,
        end_of_replay_ms=end,
    )


def _in_request_order(st: State, name: str) -> NDArray[Any]:
    if st.rows is None:
        return st[name]
    ordered = np.empty_like(st[name])
    ordered[st.rows] = st[name]
    return ordered


def expanded_gaps(st: State) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(gap_ms, gap_count) of the gap log, one entry per logged gap or decode pass."""
    log = st["gaps"][: int(st["numbers"][state.GAPS_USED])]
    repeats = np.maximum(log[:, state.GAP_STEPS], 1).astype(np.int64)
    gap_ms = np.empty(int(repeats.sum()))
    event_loop.expand_gaps(st.book, gap_ms)
    return gap_ms, np.repeat(log[:, state.GAP_COUNT].astype(np.int64), repeats)


def outcomes_of_both(pre: Side, dec: Side, batch: RequestBatch) -> Outcomes:
    """Per-request arrays and pooled gaps of a finished replay of both roles."""
    outcomes = outcomes_of(dec.st, dec.pool, batch)
    replica, rank = (pre.st["requests"][:, column] for column in (state.WORKER, state.DP_RANK))
    prefill_worker = np.where(replica >= 0, replica * pre.pool.attention_dp + rank, -1).astype(np.int32)
    arrived = (outcomes.worker >= 0) | (prefill_worker >= 0)
    return replace(
        outcomes,
        arrival_ms=np.where(arrived, dec.st["stamps"][:, state.ARRIVAL], np.nan),
        prefill_worker=prefill_worker,
        prefill_worker_s=pre.pool.replicas * outcomes.end_of_replay_ms / 1000.0,
    )
