"""The engines of one role while a planner adds and drains them (search specification, sections 5.7 and 5.8)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, inf

from tests.reference.engine_group import EngineGroup, LatestPass
from tests.reference.kv_routing import KvRouting
from tests.reference.routing import RoundRobin
from tests.reference.sequence import PassLoad
from workers.planner.observation import PassRecord, Role, RoleView
from workers.replay.fleet import Pool

IDLE_REPORT_MS = 1000.0


@dataclass
class Life:
    """One engine from its creation to its removal, ms; None where that has not come."""

    engine: int
    created_ms: float
    ready_ms: float | None
    drained_ms: float | None = None
    removed_ms: float | None = None


class ElasticEngines:
    """Numbers go on after the highest ever used; `groups` are all engines that ever were, by number."""

    def __init__(
        self, role: Role, pool: Pool, groups: list[EngineGroup], routing: RoundRobin | KvRouting, startup_ms: float
    ) -> None:
        self.role, self.pool, self.groups, self.routing = role, pool, groups, routing
        self.startup_ms = startup_ms
        self.lives = [Life(group.number, 0.0, 0.0) for group in groups]
        self.events: list[tuple[float, Role, int, int, tuple[int, ...]]] = []
        self.reported_ms = {(group.number, rank): 0.0 for group in groups for rank in range(pool.attention_dp)}
        self.records: dict[tuple[int, int], PassRecord] = {}

    @property
    def ready(self) -> list[Life]:
        """Engines that take work."""
        return [life for life in self.lives if life.ready_ms is not None and life.drained_ms is None]

    @property
    def starting(self) -> list[Life]:
        """Engines that take none yet."""
        return [life for life in self.lives if life.ready_ms is None and life.removed_ms is None]

    @property
    def next_ready_ms(self) -> float:
        """When the next starting engine is ready, infinity if none is starting."""
        return min((life.created_ms + self.startup_ms for life in self.starting), default=inf)

    def start_due(self, now: float) -> None:
        """Starting engines whose time has come take work."""
        for life in self.starting:
            if life.created_ms + self.startup_ms <= now:
                self._take_work(life, now)

    def _take_work(self, life: Life, now: float) -> None:
        life.ready_ms = now
        self.routing.add(life.engine)
        self.reported_ms |= {(life.engine, rank): now for rank in range(self.pool.attention_dp)}

    def scale(self, target: int, now: float) -> None:
        """Have `target` engines, starting ones included."""
        before = len(self.ready) + len(self.starting)
        engines = [self._add(now) for _ in range(target - before)]
        engines += [self._take_away(now) for _ in range(before - target)]
        if engines:
            self.events.append((now, self.role, before, target, tuple(engines)))

    def _add(self, now: float) -> int:
        group = EngineGroup(self.pool, len(self.groups))
        self.groups.append(group)
        self.lives.append(Life(group.number, now, None))
        if self.startup_ms == 0:
            self._take_work(self.lives[-1], now)
        return group.number

    def _take_away(self, now: float) -> int:
        if self.starting:
            life = self.starting[-1]
            life.removed_ms = now
        else:
            life = self.ready[-1]
            life.drained_ms = now
            self.routing.ready.remove(life.engine)
        return life.engine

    def remove_drained(self, has_work: Callable[[EngineGroup], bool], now: float) -> None:
        """Draining engines without work vanish."""
        for life in self.lives:
            if life.drained_ms is not None and life.removed_ms is None and not has_work(self.groups[life.engine]):
                life.removed_ms = now

    def view(self, now: float) -> RoleView:
        """What a planner sees of these engines."""
        places = [(life.engine, rank) for life in self.ready for rank in range(self.pool.attention_dp)]
        for place in places:
            latest = self.groups[place[0]].latest[place[1]]
            if latest is not None and latest.end_ms >= self.reported_ms[place]:
                self.reported_ms[place] = latest.end_ms
                self.records[place] = _record(place, latest)
            silent_ms = now - self.reported_ms[place]
            if silent_ms >= IDLE_REPORT_MS:
                self.reported_ms[place] += floor(silent_ms / IDLE_REPORT_MS) * IDLE_REPORT_MS
                self.records[place] = _record(place, LatestPass(PassLoad(), 0.0, now))
        records = tuple(self.records[place] for place in places if place in self.records)
        return RoleView(len(self.ready), len(self.ready) + len(self.starting), records)


def _record(place: tuple[int, int], latest: LatestPass) -> PassRecord:
    load = latest.load
    return PassRecord(
        engine=place[0],
        dp_rank=place[1],
        num_prefill_requests=load.num_prefill_requests,
        prefill_tokens=load.prefill_tokens,
        num_decode_requests=load.num_decode_requests,
        decode_kv_tokens=load.decode_kv_tokens,
        queued_prefill_tokens=load.queued_prefill_tokens,
        queued_decode_kv_tokens=load.queued_decode_kv_tokens,
        wall_time_ms=latest.wall_time_ms,
    )
