"""A study as clients see it, its pages, its trials and the comparison of two winners."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from app.schemas.problem import Problem
from app.schemas.status import ReasonCode, StudyStatus, TrialStatus


class WarningView(BaseModel):
    """Something about the configuration that deserves a second look."""

    pointer: str
    detail: str


class Progress(BaseModel):
    """Counts of trials by outcome, and the pace. `cached` trials are counted under their outcome, too."""

    trials_total: int = Field(description="Trials asked for so far.")
    done: int
    feasible: int
    infeasible: int
    unsupported: int
    failed: int
    timed_out: int
    cancelled: int
    cached: int
    per_second: float | None = Field(description="Trials ended per second since the start; null before the first.")
    eta_s: float | None = Field(
        description="About how many seconds are left at this pace; 0 once ended. null while nobody knows: before the first "
        "results, and in searches that end when they find nothing better (a range of KV loads, moves through a large space)."
    )
    fraction: float | None = Field(description="Part of the expected work that is done, 0 to 1; null while unknown.")


class Best(BaseModel):
    """The first of the ranking, or of the front."""

    candidate_id: UUID
    trial: int
    score: float
    used_gpus: int
    sla_met: bool | None = Field(None, description="Whether it meets the SLA; null without one.")
    front_size: int | None = None


class SlaBound(BaseModel):
    """One bound of the SLA against a replay. ratio: mean over limit, above 1 when the bound is missed."""

    limit: float
    mean: float | None
    p99: float | None
    ratio: float | None


class SlaStanding(BaseModel):
    """How far a replay is from the SLA."""

    worst_ratio: float | None = Field(description="The largest ratio; null if a mean has no sample.")
    good_ratio: float | None = Field(description="Part of the requests that met every bound.")
    bounds: dict[str, SlaBound]


class LeastViolating(BaseModel):
    """A trial that misses the SLA by little."""

    trial: int
    candidate_id: UUID | None
    deployment: dict[str, Any]
    rejected: int
    sla: SlaStanding


class SlaView(BaseModel):
    """Who met the SLA of the goal."""

    met_by: int = Field(description="Candidates that meet every bound.")
    least_violating: list[LeastViolating] = Field(
        description="When nobody meets it: the trials that come closest, best first; apart from the ranking."
    )


class CoverageView(BaseModel):
    """How much of the space is settled."""

    evaluated: int
    bounded_out: int
    skipped: int
    total: int | None
    exhaustive: bool


class Provenance(BaseModel):
    """What the result rests on."""

    service_version: str
    simulator_version: str
    perf_data: dict[str, Any] | None
    seed: int
    config_sha256: str
    trace_sha256: str | None
    repeatable: bool = Field(description="False after a time-out, which depends on the machine.")


class StudyLinks(BaseModel):
    """Where to go from here."""

    self: str
    plan: str
    candidates: str
    trials: str
    events: str
    cancel: str


class StudySummary(BaseModel):
    """One study in a list."""

    id: UUID
    version: int = Field(description="Rises with every visible change.")
    name: str | None
    labels: dict[str, str]
    status: StudyStatus
    model_name: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested: bool
    progress: Progress
    best: Best | None
    problem: Problem | None
    links: StudyLinks


class StudyView(StudySummary):
    """One study."""

    config: dict[str, Any] = Field(description="The configuration as resolved, defaults filled in.")
    warnings: list[WarningView]
    coverage: CoverageView | None
    sla: SlaView | None = Field(description="Null without an SLA, and before the first ranking.")
    provenance: Provenance


class StudyPage(BaseModel):
    """A page of studies, newest first."""

    items: list[StudySummary]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null at the end.")


class ReasonView(BaseModel):
    """Why a trial is not feasible."""

    code: ReasonCode
    detail: str


class TrialView(BaseModel):
    """One trial."""

    number: int
    round: int
    status: TrialStatus
    reason: ReasonView | None
    deployment: dict[str, Any]
    score: float | None
    objectives: list[float] | None
    rejected: int
    wall_s: float | None
    attempt: int
    cache_hit: bool
    candidate_id: UUID | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TrialPage(BaseModel):
    """A page of trials in the order of asking."""

    items: list[TrialView]
    next_cursor: str | None


class MetricComparison(BaseModel):
    """One metric of both winners. ratio: this study over the baseline; null if one is missing or the baseline is 0."""

    metric: str
    is_objective: bool
    value: float | None
    baseline: float | None
    ratio: float | None
    verdict: str = Field(description="better, worse, equal, or unknown where the direction or a value is.")


class Comparison(BaseModel):
    """Both winners, metric by metric; objectives first."""

    study_id: UUID
    baseline_id: UUID
    candidate_id: UUID
    baseline_candidate_id: UUID
    tolerance: float | None
    within_tolerance: bool | None
    metrics: list[MetricComparison]
