"""An elastic pool at a tick: what a planner sees, and the engine that takes a place. Apart from the compiled parts."""

import math

import numpy as np

from workers.planner.observation import PassRecord, RoleView, Traffic
from workers.replay import state
from workers.replay.drafts import draws_of_engine
from workers.replay.fleet import Pool
from workers.replay.renewal import renew
from workers.replay.state import HAS_LAST, State

_IDLE_REPORT_MS = 1000.0


def settle_engine(st: State, pool: Pool, place: int, engine: int) -> None:
    """Engine number `engine` takes a place that another one has left or nobody had."""
    ranks = slice(place * pool.attention_dp, (place + 1) * pool.attention_dp)
    renew(st.book, place)
    st["records"][ranks, state.ENGINE] = engine
    known = int(st["numbers"][state.NUM_DRAWS])
    if known:
        st["draws"][ranks.start * known : ranks.stop * known] = draws_of_engine(pool, engine, known)


class Reports:
    """When every rank last reported, by (engine, rank): a pass, or that it was idle for another second, ms."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._reported_ms: dict[tuple[int, int], float] = {}
        self._is_idle: set[tuple[int, int]] = set()

    def begin(self, engine: int, now: float) -> None:
        """An engine takes work from now on."""
        self._reported_ms |= {(engine, rank): now for rank in range(self._pool.attention_dp)}

    def view(self, st: State, places: list[tuple[int, int]], expected: int, now: float) -> RoleView:
        """What a planner sees now; places: (engine, place) of the ready ones, ascending. Call `record_passes` before."""
        records = [
            record
            for engine, place in places
            for rank in range(self._pool.attention_dp)
            if (record := self._latest(st, engine, rank, place * self._pool.attention_dp + rank, now)) is not None
        ]
        return RoleView(len(places), expected, tuple(records))

    def _latest(self, st: State, engine: int, rank: int, row: int, now: float) -> PassRecord | None:
        key = (engine, rank)
        columns, times = st["records"][row].tolist(), st["record_times"][row].tolist()
        if columns[HAS_LAST] and times[state.LAST_PASS_END] >= self._reported_ms[key]:
            self._reported_ms[key] = times[state.LAST_PASS_END]
            self._is_idle.discard(key)
        silent_ms = now - self._reported_ms[key]
        if silent_ms >= _IDLE_REPORT_MS:
            self._reported_ms[key] += math.floor(silent_ms / _IDLE_REPORT_MS) * _IDLE_REPORT_MS
            self._is_idle.add(key)
        if key in self._is_idle:
            return PassRecord(engine, rank, 0, 0, 0, 0, 0, 0, 0.0)
        if not columns[HAS_LAST]:
            return None
        prefills, prefill_tokens, decodes, decode_tokens, queued, queued_decode = columns[state.LAST_PREFILL_N :]
        wall_ms = times[state.LAST_WALL]
        return PassRecord(
            engine, rank, prefills, prefill_tokens, decodes, decode_tokens, queued, queued_decode, wall_ms
        )


def take_traffic(source: State, target: State) -> Traffic:
    """Sums since the last call: arrivals and completions are counted by `target`, admissions by `source`."""
    numbers, admitted = target["numbers"], source["numbers"]
    traffic = Traffic(
        num_requests=int(numbers[state.ARRIVED]),
        num_completed=int(numbers[state.COMPLETED]),
        isl_tokens=int(numbers[state.COMPLETED_INPUT]),
        osl_tokens=int(numbers[state.COMPLETED_OUTPUT]),
        num_admitted=int(admitted[state.ADMITTED]),
        hit_rate_sum=float(source["moments"][state.HIT_RATE_SUM]),
    )
    numbers[state.ARRIVED : state.ADMITTED] = 0
    admitted[state.ADMITTED] = 0
    source["moments"][state.HIT_RATE_SUM] = 0.0
    return traffic


def lay_out(st: State, places: int, attention_dp: int) -> None:
    """Give a new state the arrays of an elastic pool, no engine in any place yet."""
    st["ready"] = np.zeros(places, dtype=np.int64)
    st["live"] = np.arange(places, dtype=np.int64)
    st["records"] = np.zeros((places * attention_dp, state.NUM_RECORDS), dtype=np.int64)
    st["record_times"] = np.zeros((places * attention_dp, state.NUM_RECORD_TIMES))
