"""Replay a batch on a fleet: drive the compiled event loop, answer what it asks, and hand out what happened.

    replay(fleet, batch, should_stop)        one replay with every per-request moment
    replay_many(jobs, sla, should_stop)      metrics of many candidates
    warm()                                   compile or load everything, before a process pool forks
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from workers.errors import ReasonCode, StoppedError, StuckError, UnsupportedError
from workers.replay import event_loop, state
from workers.replay.arrays import build, sessions
from workers.replay.fleet import Fleet, Pool
from workers.replay.outcomes import COMPLETED, REJECTED, UNFINISHED, Outcomes
from workers.replay.state import State
from workers.replay.step_lookup import decode_duration
from workers.replay.step_table import StepTable, step_table
from workers.traffic.requests import RequestBatch

ShouldStop = Callable[[], bool]

_EVENTS_BETWEEN_CHECKS = 1 << 16
_STATUS = np.array([UNFINISHED, UNFINISHED, COMPLETED, REJECTED], dtype=np.int8)


def replay(fleet: Fleet, batch: RequestBatch, should_stop: ShouldStop | None = None) -> Outcomes:
    """Replay every request on an aggregated fleet with round-robin routing.

    Raises: StuckError when the modelled engine makes no progress, StoppedError when `should_stop` says so,
    UnsupportedError for fleets that this replay does not cover.
    """
    pool = _pool(fleet)
    table = step_table(pool.step_times)
    st = advance(build(pool, batch, table.times), table, batch, should_stop)
    return outcomes_of(st, pool, batch)


def advance(st: State, table: StepTable, batch: RequestBatch, should_stop: ShouldStop | None) -> State:
    """Run the whole replay; open-loop replicas without sessions are independent and run one after another."""
    number, time_ms = st.clock.number, st.clock.time_ms
    replicas = int(st.limits[state.NUM_REPLICAS])
    open_loop = batch.in_flight_cap is None
    independent = open_loop and sessions(batch).plain
    if not independent:
        number[state.FIRST_REPLICA], number[state.LAST_REPLICA] = 0, replicas
        number[state.SESSION_STRIDE] = 1
        number[state.EXACT_HORIZON] = int(replicas == 1)
        return drive(st, table, should_stop)
    for replica in range(replicas):
        number[state.FIRST_REPLICA], number[state.LAST_REPLICA] = replica, replica + 1
        number[state.NEXT_SESSION], number[state.SESSION_STRIDE] = replica, replicas
        number[state.EXACT_HORIZON] = 1
        time_ms[state.NOW] = 0.0
        st = drive(st, table, should_stop)
    return st


def drive(st: State, table: StepTable, should_stop: ShouldStop | None) -> State:
    """Call the compiled loop until it has finished, answering its questions; returns the state it ended with."""
    number = st.clock.number
    while True:
        number[state.EVENTS_LEFT] = _EVENTS_BETWEEN_CHECKS
        code = event_loop.run(st)
        if code == event_loop.FINISHED:
            return st
        if code == event_loop.STUCK:
            raise StuckError(ReasonCode.REPLAY_STUCK, f"no progress at {st.clock.time_ms[state.NOW]} ms")
        question = [int(number[i]) for i in (state.MISS_N, state.MISS_A, state.MISS_B)]
        if code == event_loop.NEED_PREFILL:
            table.learn_prefill(*question)
            st = st._replace(times=table.times)
        elif code == event_loop.NEED_DECODE:
            table.learn_decode(*question)
            st = st._replace(times=table.times)
        elif code == event_loop.GROW_GAPS:
            st = _with_longer_gap_log(st)
        if should_stop is not None and should_stop():
            raise StoppedError(ReasonCode.EXCEEDED_RUNTIME, "the caller stopped the replay")


def outcomes_of(st: State, pool: Pool, batch: RequestBatch) -> Outcomes:
    """Per-request arrays and pooled gaps of a finished replay."""
    req = st.req
    status = _STATUS[req.status]
    arrived = req.worker >= 0
    end = float(st.clock.time_ms[state.LAST_END])
    if batch.stop_after_ms is not None and bool((status == UNFINISHED).any()):
        end = batch.stop_after_ms
    gap_ms, gap_count = expanded_gaps(st)
    return Outcomes(
        arrival_ms=np.where(arrived, req.arrival_ms, np.nan),
        first_admit_ms=req.first_admit_ms,
        first_token_ms=req.first_token_ms,
        second_token_ms=req.second_token_ms,
        last_token_ms=req.last_token_ms,
        end_ms=req.end_ms,
        generated_tokens=req.generated,
        admissions=req.admissions,
        first_reused_tokens=req.first_reused,
        max_reused_tokens=req.max_reused,
        status=status,
        worker=req.worker,
        dp_rank=req.dp_rank,
        prefill_worker=np.full(batch.num_requests, -1, dtype=np.int32),
        gap_ms=gap_ms,
        gap_count=gap_count,
        committed_prefill_tokens=int(st.clock.number[state.COMMITTED_PREFILL]),
        prefill_worker_s=0.0,
        decode_worker_s=pool.replicas * end / 1000.0,
        end_of_replay_ms=end,
    )


def expanded_gaps(st: State) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(gap_ms, gap_count) of the gap log, one entry per logged gap or decode pass."""
    clock = st.clock
    used = int(clock.number[state.GAPS_USED])
    steps = clock.gap_steps[:used]
    repeats = np.maximum(steps, 1)
    source = np.repeat(np.arange(used), repeats)
    gap_ms, gap_count = clock.gap_ms[source], clock.gap_count[source]
    position = np.arange(source.size) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    for i in np.flatnonzero(steps[source] > 0):
        n = int(gap_count[i])
        gap_ms[i] = decode_duration(st.times, n, int(clock.gap_context[source[i]]) + n * int(position[i]))
    return gap_ms, gap_count


def _with_longer_gap_log(st: State) -> State:
    clock = st.clock
    extra = clock.gap_ms.size + int(st.rank[:, state.NUM_RUNNING].sum()) * 2 + int(st.group[:, state.REPEATS].sum())
    return st._replace(
        clock=clock._replace(
            gap_ms=np.concatenate([clock.gap_ms, np.zeros(extra)]),
            gap_count=np.concatenate([clock.gap_count, np.zeros(extra, dtype=np.int64)]),
            gap_context=np.concatenate([clock.gap_context, np.zeros(extra, dtype=np.int64)]),
            gap_steps=np.concatenate([clock.gap_steps, np.zeros(extra, dtype=np.int64)]),
        )
    )


def _pool(fleet: Fleet) -> Pool:
    if fleet.agg is None or fleet.router is not None:
        raise UnsupportedError(ReasonCode.REPLAY_ERROR, "the compiled replay covers aggregated round-robin fleets only")
    return fleet.agg
