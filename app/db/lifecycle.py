"""The only writer of `status` columns: every move is one guarded UPDATE, and every visible change raises the version.

Lock order, kept by every transaction that writes: the study row first, then its trials. Hence no deadlocks between the
conductor, workers, the rescuer and the verbs, whatever their number. The study's counters change under that lock
together with the trials they count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import orjson
import structlog
from sqlalchemy import CursorResult, func, insert, select, text, update
from sqlalchemy.orm import Session

from app.db.bulk import Jsonb, copy_rows
from app.db.tables import StudyRow
from app.errors import NotFoundError, TransitionRefusedError
from app.schemas.status import STUDY_MOVES, STUDY_TERMINAL, ReasonCode, StudyStatus, TrialStatus

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A proposal about to become a row: queued, or born ended as the repeat of an earlier trial.

    suggestion: the values that an optimizer asked for, if one did.
    """

    number: int
    deployment: Mapping[str, Any]
    deployment_sha256: str
    twin: int | None = None
    suggestion: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A trial that is this caller's to evaluate; `attempt` fences its verdict."""

    number: int
    attempt: int
    deployment: dict[str, Any]
    deployment_sha256: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a claimed trial ended."""

    number: int
    attempt: int
    status: TrialStatus
    reason_code: ReasonCode | None = None
    reason_detail: str | None = None
    score: float | None = None
    objectives: Sequence[float] = ()
    rejected: int = 0
    wall_s: float = 0.0
    candidate_id: UUID | None = None
    sla: Mapping[str, Any] | None = None


def add_study(db: Session, **columns: Any) -> StudyRow:
    """Insert a queued study of version 1."""
    statement = insert(StudyRow).values(status=StudyStatus.QUEUED, version=1, **columns).returning(StudyRow)
    row = db.scalars(statement).one()
    log.info("study_moved", study_id=str(row.id), to="queued", version=1)
    return row


def lock_study(db: Session, study_id: UUID) -> StudyRow | None:
    """The study, locked against every other writer until the transaction ends; readers are not held up."""
    query = select(StudyRow).where(StudyRow.id == study_id).with_for_update(key_share=True)
    return db.scalars(query.execution_options(populate_existing=True)).one_or_none()


def touch_study(db: Session, study_id: UUID, **changes: Any) -> int:
    """Raise the version, change columns other than status; the new version.

    Raises: NotFoundError if the study is gone.
    """
    values = {"version": StudyRow.version + 1, "updated_at": func.now(), **changes}
    changed = update(StudyRow).where(StudyRow.id == study_id).values(values).returning(StudyRow.version)
    version: int | None = db.scalar(changed)
    if version is None:
        raise NotFoundError("There is no such study.")
    return version


def move_study(db: Session, study_id: UUID, expected: StudyStatus, to: StudyStatus, **changes: Any) -> int:
    """Compare-and-set of a study's status; the new version.

    Raises: TransitionRefusedError if the study is not in `expected`. ValueError for a move that no rule allows.
    """
    if to not in STUDY_MOVES.get(expected, frozenset()):
        raise ValueError(f"no such move: study {expected} -> {to}")
    if to in STUDY_TERMINAL:
        changes["finished_at"] = func.clock_timestamp()
    values = {"status": to, "version": StudyRow.version + 1, "updated_at": func.now(), **changes}
    guarded = update(StudyRow).where(StudyRow.id == study_id, StudyRow.status == expected)
    version: int | None = db.scalar(guarded.values(values).returning(StudyRow.version))
    if version is None:
        raise TransitionRefusedError(f"The study is no longer {expected}.")
    log.info("study_moved", study_id=str(study_id), was=str(expected), to=str(to), version=version)
    return version


_NEW_TRIAL_COLUMNS = ("study_id", "number", "round", "status", "deployment", "deployment_sha256", "suggestion")

_COPY_TWINS = text("""
    INSERT INTO trials (study_id, number, round, status, deployment, deployment_sha256, cache_hit, reason_code,
                        reason_detail, score, objectives, rejected, wall_s, candidate_id, finished_at, suggestion)
    SELECT twin.study_id, v.number, :round, twin.status, twin.deployment, twin.deployment_sha256, true,
           twin.reason_code, twin.reason_detail, twin.score, twin.objectives, twin.rejected, 0, twin.candidate_id,
           clock_timestamp(), CAST(v.suggestion AS jsonb)
    FROM unnest(CAST(:numbers AS int[]), CAST(:twins AS int[]), CAST(:suggestions AS text[]))
        AS v(number, twin, suggestion)
    JOIN trials AS twin ON twin.study_id = :study_id AND twin.number = v.twin
    RETURNING status
""")


def add_trials(db: Session, study_id: UUID, round_number: int, trials: Sequence[NewTrial]) -> None:
    """Insert a round: fresh trials queued, repeats born with the verdict of their twin, which must have ended.

    The caller holds the study's lock.
    """
    fresh = [trial for trial in trials if trial.twin is None]
    copy_rows(
        db,
        "trials",
        _NEW_TRIAL_COLUMNS,
        (
            (
                study_id,
                t.number,
                round_number,
                TrialStatus.QUEUED.value,
                Jsonb(t.deployment),
                t.deployment_sha256,
                None if t.suggestion is None else Jsonb(t.suggestion),
            )
            for t in fresh
        ),
    )
    repeats = [(trial.number, trial.twin, _text(trial.suggestion)) for trial in trials if trial.twin is not None]
    counts: dict[str, int] = {"num_cached": len(repeats)}
    if repeats:
        numbers, twins, suggestions = map(list, zip(*repeats, strict=True))
        parameters = {"study_id": study_id, "round": round_number}
        parameters |= {"numbers": numbers, "twins": twins, "suggestions": suggestions}
        counts |= _tally(status for (status,) in db.execute(_COPY_TWINS, parameters))
    touch_study(db, study_id, round=round_number, **_raised({"num_trials": len(trials), **counts}))


def _text(document: Mapping[str, Any] | None) -> str | None:
    return None if document is None else orjson.dumps(document).decode()


def _tally(statuses: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for status in statuses:
        counts[f"num_{status}"] = counts.get(f"num_{status}", 0) + 1
    return counts


def _raised(counts: Mapping[str, float]) -> dict[str, Any]:
    return {name: getattr(StudyRow, name) + by for name, by in counts.items() if by}


_CLAIM = text("""
    UPDATE trials SET status = 'running', attempt = attempt + 1, started_at = clock_timestamp(),
                      lease_expires_at = clock_timestamp() + make_interval(secs => :lease_s)
    WHERE study_id = :study_id AND number BETWEEN :first AND :last AND chunk = :first AND status = 'queued'
    RETURNING number, attempt, deployment, deployment_sha256
""")


def claim_trials(db: Session, study_id: UUID, first: int, last: int, lease_s: float) -> list[Claim]:
    """Take the queued trials of one message, numbered first..last, in trial order.

    None if others have them or a cancel is pending. A message that comes late takes only what was not sent anew since
    in other company: trials whose worker died travel apart, and an old message must not bring them together again.
    """
    study = lock_study(db, study_id)
    if study is None or study.status != StudyStatus.RUNNING or study.cancel_requested_at is not None:
        return []
    parameters = {"study_id": study_id, "first": first, "last": last, "lease_s": lease_s}
    claims = sorted((Claim(*row) for row in db.execute(_CLAIM, parameters)), key=lambda claim: claim.number)
    if claims:
        touch_study(db, study_id)
    return claims


_RENEW = text("""
    UPDATE trials SET lease_expires_at = clock_timestamp() + make_interval(secs => :lease_s)
    FROM unnest(CAST(:numbers AS int[]), CAST(:attempts AS int[])) AS mine(number, attempt)
    WHERE trials.study_id = :study_id AND trials.number = mine.number AND trials.attempt = mine.attempt
      AND status = 'running'
""")


def renew_leases(db: Session, study_id: UUID, claims: Sequence[Claim], lease_s: float) -> int:
    """Extend the leases still held; how many those are."""
    numbers, attempts = [claim.number for claim in claims], [claim.attempt for claim in claims]
    parameters = {"study_id": study_id, "numbers": numbers, "attempts": attempts, "lease_s": lease_s}
    return cast("CursorResult[Any]", db.execute(_RENEW, parameters)).rowcount


_END = text("""
    UPDATE trials SET status = v.status, lease_expires_at = NULL, finished_at = clock_timestamp(),
        reason_code = v.reason_code, reason_detail = v.reason_detail, score = v.score, objectives = v.objectives,
        rejected = v.rejected, wall_s = v.wall_s, candidate_id = v.candidate_id, sla = v.sla
    FROM jsonb_to_recordset(CAST(:endings AS jsonb)) AS v(number int, attempt int, status text, reason_code text,
        reason_detail text, score float8, objectives float8[], rejected bigint, wall_s float8, candidate_id uuid,
        sla jsonb)
    WHERE trials.study_id = :study_id AND trials.number = v.number AND trials.attempt = v.attempt
      AND trials.status = 'running'
    RETURNING trials.number, trials.status
""")


def end_trials(db: Session, study_id: UUID, endings: Sequence[Ending]) -> set[int]:
    """Write verdicts whose lease still holds; the numbers accepted. The rest lost their lease: dropped and counted.

    The caller holds the study's lock and raises no version itself: this does.
    """
    document = orjson.dumps(endings, option=orjson.OPT_SERIALIZE_DATACLASS).decode()
    parameters = {"study_id": study_id, "endings": document}
    accepted: dict[int, str] = dict(db.execute(_END, parameters).all())
    num_late = len(endings) - len(accepted)
    if num_late:
        log.warning("late_verdicts_dropped", study_id=str(study_id), count=num_late)
    replay_s = sum(each.wall_s for each in endings if each.number in accepted)
    touch_study(db, study_id, **_raised({"num_late": num_late, "replay_s": replay_s, **_tally(accepted.values())}))
    return set(accepted)


_GIVE_BACK = text("""
    UPDATE trials SET status = 'queued', lease_expires_at = NULL, started_at = NULL, chunk = NULL, sent_at = NULL,
                      attempt = trials.attempt - 1
    FROM unnest(CAST(:numbers AS int[]), CAST(:attempts AS int[])) AS mine(number, attempt)
    WHERE trials.study_id = :study_id AND trials.number = mine.number AND trials.attempt = mine.attempt
      AND status = 'running'
""")


def give_back_trials(db: Session, study_id: UUID, claims: Sequence[Claim]) -> None:
    """Return claimed trials untouched, as if never claimed: for a worker that is asked to go."""
    lock_study(db, study_id)
    numbers, attempts = [claim.number for claim in claims], [claim.attempt for claim in claims]
    db.execute(_GIVE_BACK, {"study_id": study_id, "numbers": numbers, "attempts": attempts})
    touch_study(db, study_id)


_REQUEUE = text("""
    UPDATE trials SET status = 'queued', lease_expires_at = NULL, started_at = NULL, chunk = NULL, sent_at = NULL
    WHERE study_id = :study_id AND status = 'running' AND lease_expires_at < clock_timestamp() AND attempt <
    :max_attempts RETURNING number
""")
_GIVE_UP = text("""
    UPDATE trials SET status = 'failed', lease_expires_at = NULL, finished_at = clock_timestamp(),
        reason_code = 'worker_lost',
        reason_detail = 'The worker died or went silent during each of ' || attempt || ' attempts.'
    WHERE study_id = :study_id AND status = 'running' AND lease_expires_at < clock_timestamp()
    RETURNING number
""")


def rescue_trials(db: Session, study_id: UUID, max_attempts: int) -> int | None:
    """Requeue trials whose lease has expired, or fail them after the last attempt; the new version, None if none."""
    if lock_study(db, study_id) is None:
        return None
    requeued = list(db.scalars(_REQUEUE, {"study_id": study_id, "max_attempts": max_attempts}))
    lost = list(db.scalars(_GIVE_UP, {"study_id": study_id}))
    if not requeued and not lost:
        return None
    log.warning("leases_expired", study_id=str(study_id), requeued=len(requeued), lost=len(lost))
    return touch_study(db, study_id, **_raised({"num_failed": len(lost)}))


_CANCEL_TRIALS = text("""
    UPDATE trials SET status = 'cancelled', lease_expires_at = NULL, finished_at = clock_timestamp(),
        reason_code = 'cancelled', reason_detail = :detail
    WHERE study_id = :study_id AND (status = 'queued' OR (status = 'running' AND :running_too))
    RETURNING number
""")


def cancel_trials(db: Session, study_id: UUID, detail: str, *, running_too: bool) -> int:
    """Cancel open trials; how many. The caller holds the lock. A running one loses its verdict to the fence."""
    parameters = {"study_id": study_id, "detail": detail, "running_too": running_too}
    cancelled = len(list(db.scalars(_CANCEL_TRIALS, parameters)))
    if cancelled:
        touch_study(db, study_id, **_raised({"num_cancelled": cancelled}))
    return cancelled


def request_cancel(db: Session, study_id: UUID) -> StudyRow:
    """Ask a study to stop: a queued one is cancelled at once, a moving one gets a mark that its owners act on.

    Raises: NotFoundError. ConflictError (TransitionRefusedError) if it has ended otherwise than by a cancel.
    """
    study = lock_study(db, study_id)
    if study is None:
        raise NotFoundError("There is no such study.")
    if study.status in STUDY_TERMINAL and study.status != StudyStatus.CANCELLED:
        raise TransitionRefusedError(f"The study has ended: {study.status}.")
    if study.status == StudyStatus.QUEUED:
        move_study(db, study_id, StudyStatus.QUEUED, StudyStatus.CANCELLED, cancel_requested_at=func.now())
    elif study.status != StudyStatus.CANCELLED and study.cancel_requested_at is None:
        touch_study(db, study_id, cancel_requested_at=func.now())
    db.expire_all()
    return db.get_one(StudyRow, study_id)


def finish_cancel(db: Session, study: StudyRow, *, force: bool) -> int | None:
    """Carry out a requested cancel as far as possible; the version if the study moved to cancelled, else None.

    Without `force`, running trials are left to their workers, which hand in what they have and stop.
    """
    cancel_trials(db, study.id, "The study was cancelled.", running_too=force)
    if has_open_trials(db, study.id):
        return None
    return move_study(db, study.id, StudyStatus(study.status), StudyStatus.CANCELLED)


def has_open_trials(db: Session, study_id: UUID) -> bool:
    """Whether any trial of the study is queued or running."""
    query = text("SELECT EXISTS (SELECT FROM trials WHERE study_id = :id AND status IN ('queued', 'running'))")
    return bool(db.scalar(query, {"id": study_id}))


_SEND = text("""
    UPDATE trials SET chunk = v.first, sent_at = clock_timestamp()
    FROM unnest(CAST(:firsts AS int[]), CAST(:lasts AS int[])) AS v(first, last)
    WHERE study_id = :study_id AND number BETWEEN v.first AND v.last AND status = 'queued'
""")


def mark_sent(db: Session, study_id: UUID, chunks: Sequence[tuple[int, int]]) -> None:
    """Note that a message for each chunk (first and last trial number) is about to be sent. No visible change."""
    firsts, lasts = [first for first, _ in chunks], [last for _, last in chunks]
    db.execute(_SEND, {"study_id": study_id, "firsts": firsts, "lasts": lasts})


def database_now(db: Session) -> datetime:
    """The database's clock: the only one that leases and ages are measured by."""
    return cast(datetime, db.scalar(select(func.clock_timestamp())))
