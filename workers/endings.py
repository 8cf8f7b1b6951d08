"""How studies end: the problem documents of failed ones, and the final move."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.db.lifecycle import cancel_trials, finish_cancel, move_study
from app.db.tables import StudyRow
from app.schemas.status import StudyStatus
from workers import ledger
from workers.search.history import Coverage

MAX_EQUAL_FAILURES = 10
"""Failed trials in a row with one cause that end a study. Source: service contract, section 8."""

_LATEST = text("""
    SELECT status, reason_code, reason_detail FROM trials
    WHERE study_id = :id AND finished_at IS NOT NULL AND NOT cache_hit
    ORDER BY finished_at DESC, number DESC LIMIT :limit
""")
_REASONS = text("""
    SELECT reason_code, count(*) AS num, min(reason_detail) AS example FROM trials
    WHERE study_id = :id AND reason_code IS NOT NULL GROUP BY reason_code ORDER BY num DESC, reason_code
""")


def problem(kind: str, title: str, detail: str, **extensions: Any) -> dict[str, Any]:
    """A problem document for a study's `problem` field."""
    return {"type": f"urn:spica:problem:{kind}", "title": title, "detail": detail, **extensions}


def planning_problem(error: Exception | None) -> dict[str, Any]:
    """Why planning failed; an unforeseen error is named as such and explained in the log only."""
    detail = str(error) if error is not None else "An unexpected error; the service's log has the details."
    code = {"code": str(error.code)} if error is not None and hasattr(error, "code") else {}
    return problem("planning-failed", "The study could not be planned", detail, **code)


def sampler_problem(error: Exception) -> dict[str, Any]:
    """Why no next trials could be had."""
    return problem("sampler-failed", "The optimizer could not go on", str(error))


def repeated_failure(db: Session, study: StudyRow) -> dict[str, Any] | None:
    """The problem of a study whose latest trials all failed with one cause, else None."""
    if study.num_failed < MAX_EQUAL_FAILURES:
        return None
    latest = db.execute(_LATEST, {"id": study.id, "limit": MAX_EQUAL_FAILURES}).all()
    codes = {row.reason_code for row in latest}
    if len(latest) < MAX_EQUAL_FAILURES or len(codes) > 1 or any(row.status != "failed" for row in latest):
        return None
    detail = f"{MAX_EQUAL_FAILURES} trials in a row failed with {latest[0].reason_code}: {latest[0].reason_detail}"
    return problem("trials-keep-failing", "The trials keep failing", detail, code=latest[0].reason_code)


def end_study(db: Session, study: StudyRow, cause: dict[str, Any] | None) -> int:
    """Move a running study to its end: failed with `cause`, succeeded, or failed for want of any candidate.

    Trials still open are cancelled; what was found is ranked for the last time. The caller holds the lock.
    """
    cancel_trials(db, study.id, "The study ended before this trial was evaluated.", running_too=True)
    ledger.write_ranking(db, study, ledger.results_so_far(db, study))
    if cause is None and study.num_feasible > 0:
        return move_study(db, study.id, StudyStatus.RUNNING, StudyStatus.SUCCEEDED)
    cause = cause or _no_viable_candidate(db, study)
    return move_study(db, study.id, StudyStatus.RUNNING, StudyStatus.FAILED, problem=cause)


def cancel_study(db: Session, study: StudyRow, *, force: bool) -> int | None:
    """Carry out a requested cancel as far as possible (`lifecycle.finish_cancel`); what was found is ranked."""
    version = finish_cancel(db, study, force=force)
    if version is not None:
        ledger.write_ranking(db, study, ledger.results_so_far(db, study))
    return version


def _no_viable_candidate(db: Session, study: StudyRow) -> dict[str, Any]:
    reasons = [
        {"code": row.reason_code, "count": row.num, "example": row.example}
        for row in db.execute(_REASONS, {"id": study.id})
    ]
    plan = study.plan or {}
    said = (
        ", ".join(f"{reason['count']} x {reason['code']}" for reason in reasons) or "the plan has nothing to evaluate"
    )
    detail = f"None of {study.num_trials} trials is feasible: {said}."
    extensions = {"reasons": reasons, "excluded": plan.get("excluded", []), "nearest": plan.get("nearest")}
    return problem("no-viable-candidate", "No viable candidate", detail, **extensions)


def coverage_document(coverage: Coverage) -> dict[str, Any]:
    """The coverage as a JSON document."""
    return asdict(coverage)
