"""History and coverage: what the thin half tells the sampler, and what the sampler answers about the whole space.

The seam, as both halves rely on it:

- `Search(config, plan, seed).ask(history, n)` returns at most `n` proposals; an empty list ends the study. It is a
  pure function of its arguments and keeps no state, so any process may ask. `history` holds every ended trial of the
  study in trial order, whatever its status: FAILED ones carry no evidence, yet must not be asked for again.
- `Search(...).coverage(history)` says how much of the space the history settles; `Search(...).left(history)` about how
  many trials are still to come.
- `n` is an upper bound fixed by the configuration, never by the machine; a sampler with its own rounds returns fewer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.schemas.deployment import Deployment
from app.schemas.status import ReasonCode, TrialStatus


class Proposal(NamedTuple):
    """What to evaluate next. suggestion: the values that an optimizer asked for, by parameter; None without one."""

    deployment: Deployment
    suggestion: Mapping[str, float | str] | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """One ended trial.

    number:     position in the study, from 0; history is sorted by it.
    status:     any terminal status.
    reason:     None if and only if FEASIBLE.
    score, objectives, rejected: as in workers.verdict.Verdict.
    cache_hit:  the deployment repeats an earlier trial, whose result this is.
    suggestion: as in its Proposal.
    """

    number: int
    deployment: Deployment
    status: TrialStatus
    reason: ReasonCode | None = None
    score: float | None = None
    objectives: tuple[float, ...] = ()
    rejected: int = 0
    cache_hit: bool = False
    suggestion: Mapping[str, float | str] | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the space is settled: evaluated + bounded_out + skipped <= total.

    evaluated:   distinct deployments with a verdict.
    bounded_out: deployments proven no better than one evaluated.
    skipped:     deployments left out by budget or failure.
    total:       deployments of the space; None when the space is continuous.
    exhaustive:  every deployment is evaluated or bounded out.
    """

    evaluated: int
    bounded_out: int
    skipped: int
    total: int | None
    exhaustive: bool
