"""Replay a batch on a fleet that a planner scales while the traffic runs.

The compiled clocks stop at every tick and where a start-up ends; the rosters of the roles then change who takes work. First
tick at one interval, then every interval; all work of an instant settles first; no tick follows the last completion.
Source: search specification, section 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from workers.errors import ReasonCode, StuckError
from workers.planner.observation import Observation, Role, Scaler
from workers.replay import handoff_loop, passes, state
from workers.replay.arrays import build, radix_overflow
from workers.replay.batch_facts import facts_of
from workers.replay.disaggregated import Side, drive_both, pools_of, sides_of
from workers.replay.drafts import extend_draws, needs_draws
from workers.replay.drive import ShouldStop, check_stop, drive
from workers.replay.elastic_outcome import ElasticOutcome
from workers.replay.fleet import Fleet, Pool
from workers.replay.renewal import record_passes
from workers.replay.roster import Roster, ScaleEvent, TooFewPlacesError
from workers.replay.step_table import step_table
from workers.replay.tick_state import take_traffic
from workers.traffic.requests import RequestBatch

_FIRST_PLACES = 4


def replay_elastic(
    fleet: Fleet, batch: RequestBatch, scaler: Scaler, should_stop: ShouldStop | None = None
) -> ElasticOutcome:
    """Replay every request while `scaler`, one of its own for each replay, adds and drains engines.

    Raises: as `loop.replay`; ValueError when fewer than one engine of a role is wanted.
    """
    decisions = _Decisions(scaler)
    outcome = _finished(fleet, batch, decisions, None, should_stop)
    if batch.stop_after_ms is None:
        return outcome
    # A second run leaves out the token gaps of what the limit cuts off.
    silent = outcome.st["requests"][:, state.STATUS] == state.WAITING
    return _finished(fleet, batch, decisions, silent, should_stop)


class _Decisions:
    """What the scaler has answered, so that a replay started anew takes the same course without asking again."""

    def __init__(self, scaler: Scaler) -> None:
        self.interval_ms, self.startup_ms = scaler.interval_ms, scaler.startup_ms
        self._scaler = scaler
        self._known: list[Mapping[Role, int]] = []

    def at(self, tick: int, observation: Observation) -> Mapping[Role, int]:
        """The decision of tick number `tick`, counted from 0."""
        if tick == len(self._known):
            self._known.append(dict(self._scaler.decide(observation)))
        return self._known[tick]


@dataclass
class _Room:
    """What a replay may turn out to need more of."""

    places: dict[Role, int]
    radix_nodes: int | None = None
    explicit: bool = False


def _finished(
    fleet: Fleet,
    batch: RequestBatch,
    decisions: _Decisions,
    silent: NDArray[np.bool_] | None,
    should_stop: ShouldStop | None,
) -> ElasticOutcome:
    """One whole run, started anew with more room when it asks for it."""
    room = _Room({role: max(_FIRST_PLACES, 2 * pool.replicas) for role, pool in _pools(fleet).items()})
    while True:
        run = _Run(fleet, batch, decisions, room, should_stop)
        if silent is not None:
            run.sides[-1].st["requests"][:, state.SILENT] = silent
        try:
            if run.finish():
                return run.outcome()
        except TooFewPlacesError as error:
            room.places[error.role] *= 2


def _pools(fleet: Fleet) -> dict[Role, Pool]:
    if fleet.agg is not None:
        return {"agg": fleet.agg}
    prefill, decode = pools_of(fleet)
    return {"prefill": prefill, "decode": decode}


class _Run:
    """One attempt: the states of the roles, their rosters and the clock between stops."""

    def __init__(
        self, fleet: Fleet, batch: RequestBatch, decisions: _Decisions, room: _Room, should_stop: ShouldStop | None
    ) -> None:
        self._fleet, self._batch, self._decisions, self._room = fleet, batch, decisions, room
        self._should_stop = should_stop
        self._exact = facts_of(batch).asks_each_decode
        pools = _pools(fleet)
        self._roles = tuple(pools)
        self.sides = self._build({role: replace(pool, replicas=room.places[role]) for role, pool in pools.items()})
        self._rosters = {
            role: Roster(role, side.pool, side.st, pools[role].replicas, decisions.startup_ms)
            for role, side in zip(self._roles, self.sides, strict=True)
        }
        self._events: list[ScaleEvent] = []
        self._num_ticks = 0
        self._tick_ms = decisions.interval_ms

    def _build(self, pools: Mapping[Role, Pool]) -> tuple[Side, ...]:
        """State at time 0, one of each role."""
        if "agg" not in pools:
            sides = sides_of(self._fleet, (pools["prefill"], pools["decode"]), self._batch, self._room.radix_nodes)
            if self._room.explicit:
                sides[1].st["limits"][state.EXPLICIT] = 1
            return sides
        pool = pools["agg"]
        st, table = build(pool, self._batch, self._room.radix_nodes, self._fleet.router), step_table(pool.step_times)
        st["numbers"][state.LAST_REPLICA], st["numbers"][state.SESSION_STRIDE] = pool.replicas, 1
        if needs_draws(pool):
            extend_draws(st, pool)
        return (Side(pool, table, st),)

    def finish(self) -> bool:
        """Run to the end; False when that needs more room. Raises: as `replay_elastic`, and TooFewPlacesError."""
        while True:
            self._set_stop()
            code = self._advance()
            if code == passes.FINISHED:
                return True
            if code != passes.TICK_DUE:
                return False
            self._stop()

    def _set_stop(self) -> None:
        """The clock stops before anything later than a tick, and before the very instant at which a start-up ends."""
        moments = self.sides[-1].st["moments"]
        ready_ms = min(roster.next_ready_ms for roster in self._rosters.values())
        stop_ms = self._tick_ms if self._tick_ms < ready_ms else float(np.nextafter(ready_ms, -np.inf))
        moments[state.TICK] = np.inf if min(ready_ms, self._tick_ms) > moments[state.STOP_AFTER] else stop_ms

    def _advance(self) -> int:
        """Run to the next stop or the end; says which, or what is needed to start anew."""
        if len(self.sides) == 1:
            return self._advance_one(self.sides[0])
        code = drive_both((self.sides[0], self.sides[1]), self._exact, partial(check_stop, self._should_stop))
        if code == passes.STUCK:
            now = self.sides[1].st["moments"][state.NOW]
            raise StuckError(ReasonCode.REPLAY_STUCK, f"no progress at {now} ms")
        self._room.explicit |= code == handoff_loop.NEED_EXPLICIT
        if code == handoff_loop.NEED_RADIX_NODES:
            self._room.radix_nodes = 2 * max(len(side.st["sgl_nodes"]) for side in self.sides)
        return code

    def _advance_one(self, side: Side) -> int:
        try:
            return drive(side.st, side.pool, side.table, self._exact, self._should_stop)
        except StuckError:
            if not radix_overflow(side.st):
                raise
            self._room.radix_nodes = 2 * len(side.st["sgl_nodes"])
            return handoff_loop.NEED_RADIX_NODES

    def _stop(self) -> None:
        """A start-up is over, or a tick is due; of both at one instant the start-up comes first."""
        ready_ms = min(roster.next_ready_ms for roster in self._rosters.values())
        if ready_ms <= self._tick_ms:
            for roster in self._rosters.values():
                roster.start_due(ready_ms)
            return
        now = self._tick_ms
        for side in self.sides:
            record_passes(side.st.book, now)
        views = {role: roster.view(now) for role, roster in self._rosters.items()}
        traffic = take_traffic(self.sides[0].st, self.sides[-1].st)
        wanted = self._decisions.at(self._num_ticks, Observation(now, views, traffic))
        for role, roster in self._rosters.items():
            roster.remove_drained()
            event = roster.scale(wanted[role], now) if role in wanted else None
            if event is not None:
                self._events.append(event)
        self._num_ticks += 1
        self._tick_ms += self._decisions.interval_ms

    def outcome(self) -> ElasticOutcome:
        """What happened, after `finish`."""
        for roster in self._rosters.values():
            roster.remove_drained()
        lives = tuple(life for roster in self._rosters.values() for life in roster.lives)
        if len(self.sides) == 2:
            committed = self.sides[0].st["numbers"][state.COMMITTED_PREFILL]
            self.sides[1].st["numbers"][state.COMMITTED_PREFILL] += committed
        return ElasticOutcome(self._fleet, self.sides, self._rosters, tuple(self._events), lives, self._num_ticks)
