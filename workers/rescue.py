"""The rescuer: a sweep, once a second, for whatever lost its owner or its message.

Four things can go missing: a worker in the middle of trials (their lease expires), the message for sent trials, the
message for a study, and the worker that should act on a cancel. Each has its query. Sweeps run in every worker's main
process and in every API process; an advisory lock lets one in at a time. Each finding is settled in a transaction of
its own by the guarded moves of `app.db.lifecycle`, so a sweep that is late, doubled or cut off does no harm.
"""

from uuid import UUID

import structlog
from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.config import settings
from app.db.engine import transaction
from app.db.lifecycle import lock_study, mark_sent, rescue_trials
from app.queue import STUDY_QUEUE, TRIAL_QUEUE, announce, num_waiting, wake_study, wake_trials
from app.schemas.status import STUDY_TERMINAL
from workers.endings import cancel_study
from workers.periodic import Periodic

log = structlog.get_logger()
_SWEEP_LOCK = 7310401
_MOST_AT_ONCE = 500


def rescuer() -> Periodic:
    """A thread that sweeps until stopped."""
    return Periodic("rescuer", lambda: settings().rescue_every_s, _sweep_or_wait)


def _sweep_or_wait() -> None:
    try:
        sweep()
    except SQLAlchemyError as error:
        # The database is away; the next sweep is due in a second.
        log.warning("sweep_failed", error=type(error).__name__)


def sweep() -> bool:
    """Look once for all four kinds of loss; False if another process is sweeping right now."""
    with transaction() as db:
        if not db.scalar(select(func.pg_try_advisory_xact_lock(_SWEEP_LOCK))):
            return False
        for study_id in _with_expired_leases(db):
            _rescue_trials(study_id)
        for study_id in _with_overdue_cancel(db):
            _force_cancel(study_id)
        _send_trials_again(db)
        sleeping = _note_sleepers(db)
    # Only after the commit: the conductor of a woken study must not wait for this transaction.
    for study_id in sleeping:
        wake_study(study_id)
    return True


_EXPIRED = text("""
    SELECT DISTINCT study_id FROM trials WHERE status = 'running' AND lease_expires_at < clock_timestamp() LIMIT :limit
""")


def _with_expired_leases(db: Session) -> list[UUID]:
    return list(db.scalars(_EXPIRED, {"limit": _MOST_AT_ONCE}))


def _rescue_trials(study_id: UUID) -> None:
    with transaction() as db:
        version = rescue_trials(db, study_id, settings().max_attempts)
    if version is not None:
        announce(study_id, version)
        wake_study(study_id)


_OVERDUE_CANCEL = text("""
    SELECT id FROM studies WHERE status IN ('planning', 'running')
      AND cancel_requested_at < clock_timestamp() - make_interval(secs => :grace_s) LIMIT :limit
""")


def _with_overdue_cancel(db: Session) -> list[UUID]:
    return list(db.scalars(_OVERDUE_CANCEL, {"grace_s": settings().cancel_grace_s, "limit": _MOST_AT_ONCE}))


def _force_cancel(study_id: UUID) -> None:
    """Cancel over the heads of workers that did not act in time; the fence drops what they may still hand in."""
    with transaction() as db:
        study = lock_study(db, study_id)
        if study is None or study.status in STUDY_TERMINAL:
            return
        version = cancel_study(db, study, force=True)
    if version is not None:
        announce(study_id, version)


_UNANSWERED = text("""
    SELECT study_id, chunk, max(number) FROM trials
    WHERE status = 'queued' AND sent_at < clock_timestamp() - make_interval(secs => :age_s)
    GROUP BY study_id, chunk ORDER BY min(sent_at) LIMIT :limit
""")


def _age_s(queue: str) -> float | None:
    """How old an unanswered message must be to count as lost; None while the broker is away.

    Messages wait in a long queue for good reasons; but if the queue is empty, the broker has forgotten them.
    """
    waiting = num_waiting(queue)
    if waiting is None:
        return None
    return settings().lost_message_s if waiting == 0 else settings().slow_message_s


def _send_trials_again(db: Session) -> None:
    age_s = _age_s(TRIAL_QUEUE)
    if age_s is None:
        return
    found = db.execute(_UNANSWERED, {"age_s": age_s, "limit": _MOST_AT_ONCE}).all()
    for study_id, first, last in found:
        with transaction() as own:
            if lock_study(own, study_id) is None:
                continue
            mark_sent(own, study_id, [(first, last)])
        wake_trials(study_id, first, last)
    if found:
        log.warning("trials_sent_again", messages=len(found))


_SLEEPING = text("""
    UPDATE studies SET woken_at = clock_timestamp() WHERE id IN (
        SELECT id FROM studies
        WHERE status NOT IN ('succeeded', 'failed', 'cancelled')
          AND greatest(updated_at, woken_at) < clock_timestamp() - make_interval(secs =>
              CASE WHEN status = 'planning' OR EXISTS (
                  SELECT FROM trials WHERE study_id = studies.id
                    AND (trials.status = 'running' OR trials.status = 'queued' AND trials.sent_at IS NOT NULL))
              THEN :busy_s ELSE :age_s END)
        LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id
""")


def _note_sleepers(db: Session) -> list[UUID]:
    """Open studies that nothing has moved or woken for a while; notes that they are about to be woken."""
    age_s = _age_s(STUDY_QUEUE)
    if age_s is None:
        return []
    # A study that is planning, or has trials sent or running, will most likely be woken by those; it is only asked
    # rarely, or the steps of many studies would keep their trials, which come second, from ever being run.
    parameters = {"age_s": age_s, "busy_s": max(age_s, settings().lease_s), "limit": _MOST_AT_ONCE}
    sleeping = list(db.scalars(_SLEEPING, parameters))
    if sleeping:
        log.info("studies_woken", count=len(sleeping))
    return sleeping
