"""The verdict transaction: statuses, candidates, reports and the study's new version, all or nothing.

Many trials share one transaction, yet each is fenced by its own attempt: a trial whose lease was lost in the meantime
is left out, and its neighbours are not affected.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import zstandard
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.bulk import Jsonb, copy_rows
from app.db.engine import patiently, transaction
from app.db.lifecycle import Claim, Ending, end_trials, lock_study
from app.db.tables import StudyRow
from app.ids import uuid7
from app.queue import announce
from app.schemas.deployment import Deployment
from app.schemas.goal import Goal
from app.schemas.status import ReasonCode, TrialStatus
from workers.search.sla import sla_standing
from workers.verdict import Reason, Verdict

_CANDIDATE_COLUMNS = (
    "id", "study_id", "number", "deployment_sha256", "used_gpus", "score", "objectives", "rejected", "sla_met", "load",
    "metrics", "deployment",
)  # fmt: skip
_compressor = zstandard.ZstdCompressor(level=1)


class Outcome(NamedTuple):
    """A claimed trial with its verdict; the candidate's id is chosen here: a repeated commit writes the same."""

    claim: Claim
    deployment: Deployment
    verdict: Verdict
    candidate_id: UUID
    report_zstd: bytes
    sla: dict[str, Any] | None


def outcome(goal: Goal, claim: Claim, deployment: Deployment, verdict: Verdict) -> Outcome:
    """Prepare a verdict for its transaction. One that claims to be feasible without finite objectives is infeasible:
    a number that no client could read or rank must not reach the candidates."""
    values = (verdict.score, *verdict.objectives)
    if verdict.status == TrialStatus.FEASIBLE and not all(v is not None and math.isfinite(v) for v in values):
        reason = Reason(ReasonCode.OBJECTIVE_UNDEFINED, "The goal's metric has no sample in this replay.")
        verdict = replace(verdict, status=TrialStatus.INFEASIBLE, reason=reason, score=None, objectives=())
    report = _compressor.compress(orjson.dumps(verdict.report)) if verdict.status == TrialStatus.FEASIBLE else b""
    return Outcome(claim, deployment, verdict, uuid7(), report, sla_standing(goal, verdict.metrics))


def persist(study_id: UUID, outcomes: Sequence[Outcome], *, cancelled: Sequence[Claim] = ()) -> None:
    """Write verdicts, and claims that end by a cancel; waits for a database that is away, then tells the version."""
    endings = [_ending(each) for each in outcomes] + [_cancelled(claim) for claim in cancelled]
    if not endings:
        return
    version = patiently(lambda: _write(study_id, outcomes, endings))
    if version is not None:
        announce(study_id, version)


def _write(study_id: UUID, outcomes: Sequence[Outcome], endings: Sequence[Ending]) -> int | None:
    with transaction() as db:
        if lock_study(db, study_id) is None:
            return None
        accepted = end_trials(db, study_id, endings)
        feasible = [
            each for each in outcomes if each.claim.number in accepted and each.verdict.status == TrialStatus.FEASIBLE
        ]
        _write_candidates(db, study_id, feasible)
        return db.scalar(select(StudyRow.version).where(StudyRow.id == study_id))


def _write_candidates(db: Session, study_id: UUID, outcomes: Sequence[Outcome]) -> None:
    copy_rows(db, "candidates", _CANDIDATE_COLUMNS, (_candidate(study_id, each) for each in outcomes))
    reports = ((each.candidate_id, each.report_zstd) for each in outcomes)
    copy_rows(db, "reports", ("candidate_id", "body_zstd"), reports)


def _candidate(study_id: UUID, each: Outcome) -> tuple[Any, ...]:
    claim, verdict = each.claim, each.verdict
    return (
        each.candidate_id, study_id, claim.number, claim.deployment_sha256, each.deployment.used_gpus, verdict.score,
        list(verdict.objectives), verdict.rejected, verdict.sla_met, Jsonb(verdict.load), Jsonb(verdict.metrics),
        Jsonb(claim.deployment),
    )  # fmt: skip


def _ending(each: Outcome) -> Ending:
    verdict, reason = each.verdict, each.verdict.reason
    is_feasible = verdict.status == TrialStatus.FEASIBLE
    return Ending(
        number=each.claim.number,
        attempt=each.claim.attempt,
        status=verdict.status,
        reason_code=reason.code if reason else None,
        reason_detail=reason.detail if reason else None,
        score=verdict.score if is_feasible else None,
        objectives=verdict.objectives,
        rejected=verdict.rejected,
        wall_s=verdict.wall_s,
        candidate_id=each.candidate_id if is_feasible else None,
        sla=each.sla,
    )


def _cancelled(claim: Claim) -> Ending:
    detail = "The study was cancelled while this trial ran."
    return Ending(claim.number, claim.attempt, TrialStatus.CANCELLED, ReasonCode.CANCELLED, detail)
