"""Verdict: what one evaluation of a deployment ends in; the only thing the pure half hands to the thin half.

The seam, as both halves rely on it:

- `workers.evaluate.evaluate_many(config, deployments, trace, should_stop)` yields exactly one verdict per deployment,
  in the order given. It yields early and often: the thin half persists what it has twice a second.
- `should_stop()` is cheap and may be called often. When it answers True, the deployments that could not be finished
  get TIMED_OUT verdicts with code EXCEEDED_RUNTIME (the thin half turns them into CANCELLED if it was a cancel), and
  the iterator goes on; `should_stop` starts anew after each verdict taken from the iterator.
- Errors of one deployment become its own verdict (FAILED, code REPLAY_ERROR), never an exception of the iterator. An
  exception that escapes fails the deployments without verdict, each with REPLAY_ERROR.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from app.schemas.status import ReasonCode, TrialStatus


class Reason(NamedTuple):
    """Why a trial is anything but feasible: a code of the closed set, and a sentence for a person."""

    code: ReasonCode
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One evaluated deployment.

    status:     FEASIBLE, INFEASIBLE, UNSUPPORTED, FAILED or TIMED_OUT.
    reason:     None if and only if FEASIBLE.
    score:      larger is better (minimized targets negated); None unless FEASIBLE.
    objectives: raw values, one per objective of the goal, in the goal's order; empty unless FEASIBLE.
    load:       what drives the replay: kv_load_ratio, concurrency, kv_load_concurrency_capacity, num_requests, ...
    metrics:    the flat metrics of the replay; None marks a metric without a sample.
    report:     the trace report: percentiles and timeline, JSON-ready; stored compressed and handed out unread.
    wall_s:     seconds of wall time this evaluation took (its share of a batch).
    rejected:   requests the candidate could never hold; fewer rank first.
    sla_met:    whether the goal's SLA bounds hold; None when no SLA was given.
    """

    status: TrialStatus
    reason: Reason | None = None
    score: float | None = None
    objectives: tuple[float, ...] = ()
    load: dict[str, float | None] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    report: dict[str, object] = field(default_factory=dict)
    wall_s: float = 0.0
    rejected: int = 0
    sla_met: bool | None = None
