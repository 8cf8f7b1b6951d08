"""The engines of one role while a planner adds and drains them, and the places of the pool they take.

Numbers go on after the highest ever used. Up: a new engine takes work when its start-up is over. Down: starting engines are
cancelled first, then active ones drain, both highest number first; a draining engine takes no new work and vanishes with
its last request. Source: search specification, section 5.8.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workers.planner.observation import Role, RoleView
from workers.replay import state
from workers.replay.fleet import Pool
from workers.replay.state import State
from workers.replay.tick_state import Reports, lay_out, settle_engine


class TooFewPlacesError(Exception):
    """More engines exist at one time than the state has places for: replay anew with more."""

    def __init__(self, role: Role) -> None:
        super().__init__(role)
        self.role = role


@dataclass(frozen=True, slots=True)
class EngineLife:
    """One engine: creation (0 for those of the start), readiness, begin of its drain, removal; ms, None = never."""

    role: Role
    engine: int
    created_ms: float
    ready_ms: float | None
    drained_ms: float | None = None
    removed_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    """A decision that changed a role: engines wanted before and after, starting ones included, and which ones."""

    instant_ms: float
    role: Role
    before: int
    after: int
    engines: tuple[int, ...]


class Roster:
    """Engines of a role, by state and place."""

    def __init__(self, role: Role, pool: Pool, st: State, engines: int, startup_ms: float) -> None:
        """pool: as many replicas as there are places; the first `engines` of them are taken and ready at 0."""
        self._role, self._pool, self._st, self._startup_ms = role, pool, st, startup_ms
        self._lives: list[EngineLife] = []
        self._place: dict[int, int] = {}
        self._tenants: dict[int, list[int]] = {}
        self._ready: list[int] = []
        self._starting: list[int] = []
        self._draining: list[int] = []
        self._reports = Reports(pool)
        lay_out(st, pool.replicas, pool.attention_dp)
        for _ in range(engines):
            self._take_work(self._add(0.0), 0.0)
        self._publish()

    @property
    def lives(self) -> tuple[EngineLife, ...]:
        """Every engine that ever was, by number."""
        return tuple(self._lives)

    @property
    def next_ready_ms(self) -> float:
        """When the next start-up is over; infinity when nothing is starting."""
        return self._lives[self._starting[0]].created_ms + self._startup_ms if self._starting else np.inf

    @property
    def expected(self) -> int:
        """Ready and starting engines."""
        return len(self._ready) + len(self._starting)

    def start_due(self, now: float) -> None:
        """Engines whose start-up is over take work."""
        while self.next_ready_ms <= now:
            self._take_work(self._starting.pop(0), now)
        self._publish()

    def view(self, now: float) -> RoleView:
        """What a planner sees of this role."""
        return self._reports.view(self._st, [(e, self._place[e]) for e in self._ready], self.expected, now)

    def scale(self, target: int, now: float) -> ScaleEvent | None:
        """Have `target` engines. Raises: ValueError below one, TooFewPlacesError."""
        if target < 1:
            raise ValueError(f"a role keeps at least one engine, {target} wanted for {self._role}")
        before = self.expected
        if target == before:
            return None
        if target > before:
            engines = [self._add(now) for _ in range(target - before)]
            if self._startup_ms == 0:
                for engine in engines:
                    self._take_work(engine, now)
            else:
                self._starting += engines
        else:
            engines = [self._take_away(now) for _ in range(before - target)]
        self.remove_drained()
        self._publish()
        return ScaleEvent(now, self._role, before, target, tuple(engines))

    def remove_drained(self) -> None:
        """Draining engines without requests are gone since their last request left."""
        dp = self._pool.attention_dp
        for engine in tuple(self._draining):
            rows = slice(self._place[engine] * dp, (self._place[engine] + 1) * dp)
            if not self._st["records"][rows, state.NUM_HERE].any():
                left_ms = float(self._st["record_times"][rows, state.LAST_LEFT].max())
                drained_ms = self._lives[engine].drained_ms
                assert drained_ms is not None
                self._draining.remove(engine)
                self._remove(engine, max(left_ms, drained_ms))

    def engine_of(self, places: NDArray[np.int32], end_ms: NDArray[np.float64]) -> NDArray[np.int32]:
        """int32 [R]: the engines that were in `places` (NONE where none) until `end_ms` (NaN: to the end)."""
        engines = places.copy()
        for place, tenants in self._tenants.items():
            here = places == place
            created = np.array([self._lives[engine].created_ms for engine in tenants])
            turns = np.searchsorted(created, end_ms[here], side="left") - 1
            engines[here] = np.array(tenants, dtype=np.int32)[np.maximum(turns, 0)]
        return engines

    def _add(self, now: float) -> int:
        engine = len(self._lives)
        place = next((p for p in range(self._pool.replicas) if p not in self._place.values()), None)
        if place is None:
            raise TooFewPlacesError(self._role)
        self._lives.append(EngineLife(self._role, engine, now, None))
        self._place[engine] = place
        self._tenants.setdefault(place, []).append(engine)
        settle_engine(self._st, self._pool, place, engine)
        return engine

    def _take_work(self, engine: int, now: float) -> None:
        self._lives[engine] = replace(self._lives[engine], ready_ms=now)
        self._ready.append(engine)
        self._reports.begin(engine, now)

    def _take_away(self, now: float) -> int:
        if self._starting:
            engine = self._starting.pop()
            self._remove(engine, now)
        else:
            engine = self._ready.pop()
            self._lives[engine] = replace(self._lives[engine], drained_ms=now)
            self._draining.append(engine)
        return engine

    def _remove(self, engine: int, when: float) -> None:
        self._lives[engine] = replace(self._lives[engine], removed_ms=when)
        del self._place[engine]

    def _publish(self) -> None:
        """Tell the compiled clock who takes work and in which order engines act."""
        ready, live = self._st["ready"], self._st["live"]
        ready[: len(self._ready)] = [self._place[engine] for engine in self._ready]
        self._st["numbers"][state.NUM_READY] = len(self._ready)
        taken = [self._place[engine] for engine in sorted(self._place)]
        live[:] = taken + [place for place in range(len(live)) if place not in taken]
