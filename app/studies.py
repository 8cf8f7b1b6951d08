"""Verbs on studies: create, list, get, cancel, delete, plan, trials."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, delete, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer

from app.auth import Caller
from app.config import SERVICE_VERSION, settings
from app.db.engine import transaction
from app.db.lifecycle import add_study, lock_study, request_cancel
from app.db.tables import IdempotencyRow, StudyRow, TrialRow
from app.errors import ConflictError, KeyReuseError, NotFoundError, QuotaError
from app.ids import uuid7
from app.schemas.status import STUDY_TERMINAL, StudyStatus, TrialStatus
from app.schemas.study import SmartSearchConfig, config_sha256
from app.traces.offered import resolve
from app.traces.store import StoredTrace, unknown_trace

_QUOTA_LOCK = 7310403


class Submission(NamedTuple):
    """What a client hands in: the configuration, warnings about it, and how repeats are to be treated."""

    config: SmartSearchConfig
    warnings: Sequence[dict[str, str]] = ()
    idempotency_key: str | None = None
    reuse: bool = False


class Created(NamedTuple):
    """A study, and whether it existed before."""

    study: StudyRow
    is_replay: bool


class _LostRaceError(Exception):
    """Another request with the same Idempotency-Key committed first."""


def create_study(caller: Caller, submission: Submission) -> Created:
    """Store a queued study, once per Idempotency-Key, in a transaction of its own.

    Raises: KeyReuseError, QuotaError, InvalidRequestError (a trace_path that names no trace).
    """
    # Before the transaction: an offered file is read in here, which can take seconds.
    trace = named_trace(caller, submission.config)
    while True:
        try:
            with transaction() as db:
                earlier = _earlier(db, caller, submission)
                return Created(earlier, True) if earlier else Created(_insert(db, caller, submission, trace), False)
        except _LostRaceError:
            continue
        except IntegrityError as error:
            # Only the trace can be missing: it was deleted a moment ago.
            raise unknown_trace(str(submission.config.workload.trace_path)) from error


def _earlier(db: Session, caller: Caller, submission: Submission) -> StudyRow | None:
    sha256 = config_sha256(submission.config)
    if submission.idempotency_key is not None:
        known = db.get(IdempotencyRow, (caller.project, submission.idempotency_key))
        if known is not None and not _has_expired(db, known):
            if known.body_sha256 != sha256:
                raise KeyReuseError
            return db.get_one(StudyRow, known.study_id)
    if not submission.reuse:
        return None
    same = (
        StudyRow.project == caller.project,
        StudyRow.config_sha256 == sha256,
        StudyRow.status.not_in([StudyStatus.FAILED, StudyStatus.CANCELLED]),
        StudyRow.provenance["service_version"].astext == SERVICE_VERSION,
    )
    return db.scalars(select(StudyRow).where(*same).order_by(StudyRow.id.desc()).limit(1)).one_or_none()


def _has_expired(db: Session, known: IdempotencyRow) -> bool:
    age = func.now() - known.created_at
    return bool(db.scalar(select(age > func.make_interval(0, 0, 0, 0, 0, 0, settings().idempotency_hours * 3600))))


def _insert(db: Session, caller: Caller, submission: Submission, trace: StoredTrace | None) -> StudyRow:
    config = submission.config
    _check_quota(db, caller)
    sha256 = config_sha256(config)
    study = add_study(
        db,
        id=uuid7(),
        project=caller.project,
        key_id=caller.key_id,
        name=config.name,
        labels=config.labels,
        model_name=config.search_space.model_name,
        config=config.model_dump(mode="json"),
        config_sha256=sha256,
        seed=config.sweep.seed,
        trace_id=trace.id if trace else None,
        warnings=list(submission.warnings),
        provenance={"service_version": SERVICE_VERSION, "trace_sha256": trace.sha256 if trace else None},
    )
    if submission.idempotency_key is not None:
        _store_key(db, caller, submission.idempotency_key, sha256, study.id)
    return study


def _check_quota(db: Session, caller: Caller) -> None:
    # Counting and inserting under one lock per project, or parallel submissions would all see room for one.
    db.execute(text("SELECT pg_advisory_xact_lock(:lock, hashtext(:project))"), _project_lock(caller))
    is_open = (
        StudyRow.project == caller.project,
        StudyRow.key_id.is_not_distinct_from(caller.key_id),
        StudyRow.status.not_in(sorted(STUDY_TERMINAL)),
    )
    num_open = db.scalar(select(func.count()).select_from(StudyRow).where(*is_open)) or 0
    if num_open >= settings().max_open_studies:
        limit = settings().max_open_studies
        raise QuotaError(f"This key has {num_open} studies queued or running; the limit is {limit}.", limit=limit)


def _project_lock(caller: Caller) -> dict[str, Any]:
    return {"lock": _QUOTA_LOCK, "project": caller.project}


_STORE_KEY = text("""
    INSERT INTO idempotency_keys (project, key, body_sha256, study_id) VALUES (:project, :key, :body_sha256, :study_id)
    ON CONFLICT (project, key) DO UPDATE
        SET body_sha256 = excluded.body_sha256, study_id = excluded.study_id, created_at = now()
        WHERE idempotency_keys.created_at < now() - make_interval(secs => :age_s)
    RETURNING study_id
""")


def _store_key(db: Session, caller: Caller, key: str, sha256: str, study_id: UUID) -> None:
    parameters = {"project": caller.project, "key": key, "body_sha256": sha256, "study_id": study_id}
    if db.scalar(_STORE_KEY, {**parameters, "age_s": settings().idempotency_hours * 3600}) is None:
        raise _LostRaceError


def _readable() -> Select[StudyRow]:
    """Studies without their plans, which are large and shown on their own; a plan is read when it is asked for."""
    return select(StudyRow).options(defer(StudyRow.plan))


def _visible(caller: Caller) -> Select[StudyRow]:
    query = _readable()
    return query if caller.sees_all_projects else query.where(StudyRow.project == caller.project)


def get_study(db: Session, caller: Caller, study_id: UUID) -> StudyRow:
    """Raises: NotFoundError, also for a study of another project."""
    study = db.scalars(_visible(caller).where(StudyRow.id == study_id)).one_or_none()
    if study is None:
        raise NotFoundError("There is no such study.")
    return study


def study_to_read(db: Session, study_id: UUID) -> StudyRow:
    """A study, for a caller known to see it. Raises: NotFoundError if it is gone by now."""
    study = db.scalars(_readable().where(StudyRow.id == study_id)).one_or_none()
    if study is None:
        raise NotFoundError("There is no such study.")
    return study


def version_of(db: Session, study_id: UUID) -> int:
    """The present version. Raises: NotFoundError."""
    return _one(db, StudyRow.version, study_id)


def ranked_version_of(db: Session, study_id: UUID) -> int:
    """The version that last changed a ranked candidate. Raises: NotFoundError."""
    return _one(db, StudyRow.ranked_version, study_id)


def _one(db: Session, column: Any, study_id: UUID) -> int:
    version: int | None = db.scalar(select(column).where(StudyRow.id == study_id))
    if version is None:
        raise NotFoundError("There is no such study.")
    return version


class StudyFilter(NamedTuple):
    """Which studies to list; None leaves a criterion out. label: `key` or `key=value`."""

    status: StudyStatus | None = None
    label: str | None = None
    model_name: str | None = None
    created_after: datetime | None = None


def list_studies(db: Session, caller: Caller, wanted: StudyFilter, limit: int, before: UUID | None) -> list[StudyRow]:
    """Newest first, those older than study `before`; ids are in order of time."""
    query = _visible(caller)
    if wanted.status is not None:
        query = query.where(StudyRow.status == wanted.status)
    if wanted.label is not None:
        key, has_value, value = wanted.label.partition("=")
        labels = StudyRow.labels
        query = query.where(labels.contains({key: value}) if has_value else labels.has_key(key))
    if wanted.model_name is not None:
        query = query.where(StudyRow.model_name == wanted.model_name)
    if wanted.created_after is not None:
        query = query.where(StudyRow.created_at > wanted.created_after)
    if before is not None:
        query = query.where(StudyRow.id < before)
    return list(db.scalars(query.order_by(StudyRow.id.desc()).limit(limit)))


def cancel_study(caller: Caller, study_id: UUID) -> StudyRow:
    """Ask a study to stop. Repeating it, also after the study was cancelled, changes nothing.

    Raises: NotFoundError; ConflictError if it has ended otherwise.
    """
    with transaction() as db:
        get_study(db, caller, study_id)
        return request_cancel(db, study_id)


def delete_study(caller: Caller, study_id: UUID) -> None:
    """Delete a study with all that hangs on it. Raises: NotFoundError; ConflictError while it runs."""
    with transaction() as db:
        get_study(db, caller, study_id)
        study = lock_study(db, study_id)
        if study is not None and study.status not in STUDY_TERMINAL:
            raise ConflictError(f"The study is {study.status}; cancel it first.", status_now=study.status)
        db.execute(delete(StudyRow).where(StudyRow.id == study_id))


def named_trace(caller: Caller, config: SmartSearchConfig) -> StoredTrace | None:
    """The trace that a configuration names; None for synthetic traffic. Raises: InvalidRequestError."""
    trace_path = config.workload.trace_path
    return None if trace_path is None else resolve(caller.project, trace_path)


def list_trials(
    db: Session, study_id: UUID, status: TrialStatus | None, limit: int, after: int | None
) -> list[TrialRow]:
    """Trials in the order of asking, those after number `after`."""
    query = select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.number > (-1 if after is None else after))
    if status is not None:
        query = query.where(TrialRow.status == status)
    return list(db.scalars(query.order_by(TrialRow.number).limit(limit)))


def count_by_status(db: Session) -> dict[str, int]:
    """Studies by status."""
    query = select(StudyRow.status, func.count()).group_by(StudyRow.status)
    return dict(db.execute(query).all())


class Totals(NamedTuple):
    """Sums over all stored studies. trials: by outcome, `trials` being all. replay_s: what their evaluation took.

    versions: visible changes.
    """

    trials: dict[str, int]
    replay_s: float
    versions: int


def totals(db: Session) -> Totals:
    """Sums of the studies' counters; the trials themselves are not read."""
    names = ("trials", "feasible", "infeasible", "unsupported", "failed", "timed_out", "cancelled", "cached", "late")
    columns = [StudyRow.replay_s, StudyRow.version, *(getattr(StudyRow, f"num_{name}") for name in names)]
    sums = select(*(func.coalesce(func.sum(column), 0) for column in columns))
    replay_s, versions, *trials = db.execute(sums).one()
    return Totals(dict(zip(names, map(int, trials), strict=True)), float(replay_s), int(versions))
