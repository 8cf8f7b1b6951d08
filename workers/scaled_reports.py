"""Metrics, timeline and scale events of fleets that a planner scales; what acts alike is replayed once."""

from dataclasses import dataclass
from typing import Any

from workers.planner.settings import PlannerSettings
from workers.replay.drive import ShouldStop
from workers.replay.elastic import replay_elastic
from workers.replay.elastic_outcome import ElasticOutcome
from workers.replay.fleet import Fleet
from workers.replay.metrics import Sla
from workers.replay.reports import Report
from workers.scaling import new_planner
from workers.traffic.requests import RequestBatch

_MS_PER_S, _MS_PER_HOUR = 1000.0, 3_600_000.0


@dataclass(frozen=True, slots=True)
class ScaledReport:
    """A report, and what the planner did: `scaling` is JSON-ready, keys as in app.schemas.report.Scaling."""

    report: Report
    scaling: dict[str, Any]


class ScaledReports:
    """The reports of one goal. Limits that cannot bind still reach the planner, so no fleet stands for another."""

    def __init__(self, sla: Sla | None, should_stop: ShouldStop | None = None) -> None:
        self._sla, self._should_stop = sla, should_stop
        self._known: dict[tuple[Fleet, PlannerSettings, int], tuple[RequestBatch, ScaledReport]] = {}

    def of(self, fleet: Fleet, settings: PlannerSettings, batch: RequestBatch) -> ScaledReport:
        """The report of a fleet under a batch. Args: settings, the acting ones. Raises: as `elastic.replay_elastic`."""
        # The batch is kept with its report, so its id cannot pass to another one.
        key = (fleet, settings, id(batch))
        if key not in self._known:
            outcome = replay_elastic(fleet, batch, new_planner(settings, fleet), self._should_stop)
            self._known[key] = (batch, _report(outcome, self._sla))
        return self._known[key][1]


def _report(outcome: ElasticOutcome, sla: Sla | None) -> ScaledReport:
    metrics = dict(outcome.report(sla))
    gpu_hours, duration_ms = metrics["gpu_hours"], metrics["duration_ms"]
    metrics["avg_gpu"] = gpu_hours / (duration_ms / _MS_PER_HOUR) if gpu_hours and duration_ms else None
    metrics["num_scale_events"] = len(outcome.events)
    return ScaledReport(Report(metrics, outcome.course(), outcome.step_time_residual()), scaling_document(outcome))


def scaling_document(outcome: ElasticOutcome) -> dict[str, Any]:
    """Ticks, scale events in order, and the GPUs of every role over time."""
    events = [
        {
            "at_s": event.instant_ms / _MS_PER_S,
            "component": event.role,
            "from_count": event.before,
            "to_count": event.after,
            "reason": "scale_up" if event.after > event.before else "scale_down",
        }
        for event in outcome.events
    ]
    timelines = {role: outcome.gpu_timeline(role) for role in outcome.rosters}
    gpus = {
        role: {"instant_ms": line.instant_ms.tolist(), "gpus": line.gpus.tolist()} for role, line in timelines.items()
    }
    return {"planner_total_ticks": outcome.num_ticks, "events": events, "gpus": gpus}
