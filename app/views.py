"""Rows as the documents clients see."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from orjson import Fragment
from sqlalchemy import Row

from app.candidates import named_objectives
from app.config import SERVICE_VERSION
from app.db.tables import CandidateRow, StudyRow, TrialRow
from app.schemas.status import STUDY_TERMINAL
from app.traces.store import NamedTrace


def utc(moment: datetime | None) -> datetime | None:
    """The same moment in UTC: the database answers in the session's zone."""
    return None if moment is None else moment.astimezone(UTC)


def study_summary(study: StudyRow) -> dict[str, Any]:
    """A study in a list: app.schemas.study_view.StudySummary."""
    base = f"/studies/{study.id}"
    return {
        "id": study.id,
        "version": study.version,
        "name": study.name,
        "labels": study.labels,
        "status": study.status,
        "model_name": study.model_name,
        "created_at": utc(study.created_at),
        "started_at": utc(study.started_at),
        "finished_at": utc(study.finished_at),
        "cancel_requested": study.cancel_requested_at is not None,
        "progress": progress(study),
        "best": study.best,
        "problem": study.problem,
        "links": {
            "self": base,
            "plan": f"{base}/plan",
            "candidates": f"{base}/candidates",
            "trials": f"{base}/trials",
            "events": f"{base}/events",
            "cancel": f"{base}/cancel",
        },
    }


def study_document(study: StudyRow) -> dict[str, Any]:
    """A study on its own: app.schemas.study_view.StudyView."""
    stored = study.provenance
    return {
        **study_summary(study),
        "config": study.config,
        "warnings": study.warnings,
        "coverage": study.coverage,
        "sla": study.sla,
        "provenance": {
            "service_version": stored.get("service_version", SERVICE_VERSION),
            "simulator_version": stored.get("simulator_version", stored.get("service_version", SERVICE_VERSION)),
            "perf_data": stored.get("perf_data"),
            "seed": study.seed,
            "config_sha256": study.config_sha256,
            "trace_sha256": stored.get("trace_sha256"),
            "repeatable": study.num_timed_out == 0,
        },
    }


def progress(study: StudyRow) -> dict[str, Any]:
    """Counts and pace: app.schemas.study_view.Progress."""
    outcomes = ("feasible", "infeasible", "unsupported", "failed", "timed_out", "cancelled")
    counts = {name: getattr(study, f"num_{name}") for name in outcomes}
    done = sum(counts.values())
    ended = study.status in STUDY_TERMINAL
    expected = None if study.expected_trials is None else max(study.expected_trials, study.num_trials)
    elapsed_s = _elapsed_s(study)
    per_second = done / elapsed_s if done and elapsed_s > 0 else None
    eta_s: float | None = 0.0 if ended else None
    if not ended and expected is not None and per_second:
        eta_s = max(expected - done, 0) / per_second
    fraction = 1.0 if study.status == "succeeded" else None
    if fraction is None and expected:
        fraction = min((done - study.num_cancelled) / expected, 1.0)  # what a cancel swept away was not done
    return {
        "trials_total": study.num_trials, "done": done, **counts, "cached": study.num_cached,
        "per_second": per_second, "eta_s": eta_s, "fraction": fraction,
    }  # fmt: skip


def _elapsed_s(study: StudyRow) -> float:
    if study.started_at is None:
        return 0.0
    return ((study.finished_at or datetime.now(UTC)) - study.started_at).total_seconds()


def candidate_document(goal: Mapping[str, Any], candidate: CandidateRow | Row[Any]) -> dict[str, Any]:
    """A candidate: app.schemas.candidate.CandidateView. Documents that come as JSON text stay text: see `Fragment`."""
    return {
        "id": candidate.id,
        "study_id": candidate.study_id,
        "trial": candidate.number,
        "rank": candidate.rank,
        "on_front": candidate.on_front,
        "used_gpus": candidate.used_gpus,
        "score": candidate.score,
        "objectives": named_objectives(goal, candidate.objectives),
        "rejected": candidate.rejected,
        "sla_met": candidate.sla_met,
        "deployment": _document(candidate.deployment),
        "load": _document(candidate.load),
        "metrics": _document(candidate.metrics),
        "stability": None if candidate.stability is None else _document(candidate.stability),
        "created_at": utc(candidate.created_at),
    }


def _document(stored: dict[str, Any] | str) -> Any:
    return Fragment(stored) if isinstance(stored, str) else stored


def trial_document(trial: TrialRow) -> dict[str, Any]:
    """A trial: app.schemas.study_view.TrialView."""
    reason = None if trial.reason_code is None else {"code": trial.reason_code, "detail": trial.reason_detail or ""}
    return {
        "number": trial.number,
        "round": trial.round,
        "status": trial.status,
        "reason": reason,
        "deployment": trial.deployment,
        "score": trial.score,
        "objectives": trial.objectives or None,
        "rejected": trial.rejected,
        "wall_s": trial.wall_s,
        "attempt": trial.attempt,
        "cache_hit": trial.cache_hit,
        "candidate_id": trial.candidate_id,
        "created_at": utc(trial.created_at),
        "started_at": utc(trial.started_at),
        "finished_at": utc(trial.finished_at),
    }


def trace_document(trace: NamedTrace) -> dict[str, Any]:
    """A trace: app.schemas.trace.TraceView. How many requests have which length is the planner's business only."""
    shown = {name: value for name, value in trace.summary.items() if name not in ("length_counts", "warnings")}
    return {
        "id": trace.id,
        "sha256": trace.sha256,
        "name": trace.names[0] if trace.names else None,
        "names": trace.names,
        "created_at": utc(trace.created_at),
        "block_size": trace.block_size,
        "num_requests": trace.num_requests,
        "num_bytes": trace.num_bytes,
        "summary": shown,
        "upload": trace.upload,
        "warnings": [*trace.summary.get("warnings", []), *trace.upload.get("warnings", [])],
        "links": {"self": f"/traces/{trace.id}"},
    }
