"""The planner of one replay: what it makes of each tick. Source: search spec, section 5."""

import math
from collections.abc import Mapping

from workers.planner import measures
from workers.planner.budget import Band
from workers.planner.demand import Demand, added
from workers.planner.models import Models
from workers.planner.observation import EngineFacts, Observation, Role, RoleView, Traffic
from workers.planner.predictors.catalogue import new_predictor
from workers.planner.seeds import StepTimes
from workers.planner.settings import PlannerSettings

_MS_PER_S = 1000.0
_CLOCK_SLACK_MS = 1e-6
"""Ticks are counted up in floating point: one that is due may come a hair early."""


class Planner:
    """A `Scaler`. Throughput scaling goes first: with load scaling beside it, it sets the floor of the same tick."""

    def __init__(
        self, settings: PlannerSettings, facts: Mapping[Role, EngineFacts], times: Mapping[Role, StepTimes]
    ) -> None:
        """Args: facts, times: of every role that the deployment has."""
        self._settings, self._facts = settings, facts
        self.interval_ms = settings.interval_s * _MS_PER_S
        self.startup_ms = settings.startup_s * _MS_PER_S
        floors = {role: settings.floor(role) for role in facts}
        widths = {role: known.gpus for role, known in facts.items()}
        self._band = Band(settings.max_gpu_budget, settings.min_gpu_budget, widths, floors)
        self._models = Models(settings, facts, times) if settings.optimization_target == "sla" else None
        interval_s = settings.throughput_adjustment_interval_seconds
        self._demand = (
            Demand(lambda: new_predictor(settings.predictor, interval_s), interval_s)
            if settings.scales_by_throughput
            else None
        )
        self._lower: dict[Role, int] = dict.fromkeys(facts, 1)
        self._traffic, self._hit_rate = Traffic(), 0.0
        self._load_due_ms = settings.load_adjustment_interval_seconds * _MS_PER_S
        self._throughput_due_ms = interval_s * _MS_PER_S

    def decide(self, observation: Observation) -> dict[Role, int]:
        """See `Scaler`."""
        now = {role: observation.roles[role].expected for role in self._facts}
        wanted = dict(now)
        self._traffic = added(self._traffic, observation.traffic)
        if self._models is not None:
            for role in self._facts:
                self._models.learn(role, observation.roles[role])
        if self._settings.scales_by_throughput and self._is_due(observation.now_ms, "throughput"):
            wanted = self._by_throughput(now)
        if self._settings.scales_by_load and self._is_due(observation.now_ms, "load"):
            wanted = self._by_load(observation, now)
        if wanted == now:
            return {}
        allowed = self._band.fit(now, wanted)
        return {role: count for role, count in allowed.items() if count != now[role]}

    def _is_due(self, now_ms: float, loop: str) -> bool:
        """Whether a loop runs at this tick; if so it is due again one interval later."""
        if loop == "load":
            due = now_ms >= self._load_due_ms - _CLOCK_SLACK_MS
            self._load_due_ms += due * self._settings.load_adjustment_interval_seconds * _MS_PER_S
            return due
        due = now_ms >= self._throughput_due_ms - _CLOCK_SLACK_MS
        self._throughput_due_ms += due * self._settings.throughput_adjustment_interval_seconds * _MS_PER_S
        return due

    def _by_throughput(self, now: Mapping[Role, int]) -> dict[Role, int]:
        """Engines for the forecast demand; with load scaling beside it only the lower bound moves."""
        assert self._demand is not None
        assert self._models is not None
        self._note_hit_rate()
        self._demand.observe(self._traffic)
        self._traffic = Traffic()
        ahead = self._demand.forecast(self._hit_rate)
        needed: dict[Role, int] = {}
        for role in self._facts:
            rate = self._models.engine_rps(role, ahead)
            if rate is None:
                return dict(now)
            count = max(math.ceil(ahead.requests_per_s / rate), self._settings.floor(role))
            most = self._settings.max_throughput_scaling_replicas
            needed[role] = min(max(count, now[role] - most), now[role] + most)
        if self._settings.scales_by_load:
            self._lower = needed
            return dict(now)
        return needed

    def _by_load(self, observation: Observation, now: Mapping[Role, int]) -> dict[Role, int]:
        """One engine more or fewer per role, or as it is while the records do not show the whole fleet."""
        if not self._settings.scales_by_throughput:
            self._note_hit_rate()
            self._traffic = Traffic()
        views = [observation.roles[role] for role in self._facts]
        if not any(view.records for view in views) or not all(_is_settled(view) for view in views):
            return dict(now)
        wanted = {}
        for role, view in zip(self._facts, views, strict=True):
            floor = max(self._settings.floor(role), self._lower[role])
            wanted[role] = max(view.ready + (self._step(role, view) if view.records else 0), floor)
        return wanted

    def _step(self, role: Role, view: RoleView) -> int:
        if self._models is not None:
            return self._models.step(role, view, self._hit_rate)
        target = self._settings.optimization_target
        return measures.step(role, target, self._facts[role], view.records, view.ready)

    def _note_hit_rate(self) -> None:
        """The hit rate of the traffic seen since it was noted last; without admissions the old one stands."""
        if self._traffic.num_admitted:
            self._hit_rate = self._traffic.hit_rate_sum / self._traffic.num_admitted


def _is_settled(view: RoleView) -> bool:
    """No engine is starting, and those that report are those that are ready (or none reports)."""
    reporting = len({record.engine for record in view.records})
    return view.ready == view.expected and reporting in (0, view.ready)
