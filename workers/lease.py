"""Leases: a heartbeat thread that keeps claimed trials ours, and the question `should_stop` that every replay asks.

The thread also watches for a cancel, once a second, and for a worker that is asked to leave. Replays run without the
GIL for most of their time, so the thread gets its turn.
"""

import multiprocessing
import threading
import time
from collections.abc import Sequence
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from app.config import settings
from app.db.engine import transaction
from app.db.lifecycle import Claim, renew_leases
from app.db.tables import StudyRow
from workers import watchdog

log = structlog.get_logger()
_LOOK_EVERY_S = 1.0

_leaving = multiprocessing.RawValue("b", 0)
"""Set in the worker's main process when it is told to go; pool processes are forked later and share it."""


def leave() -> None:
    """Ask every pool process of this worker to hand back what it has claimed but not evaluated."""
    _leaving.value = 1


class Watch:
    """Holds the leases of `claims` inside a `with` block; calling it says whether to stop now.

    max_eval_s: time for one evaluation, counted from the last `begin`; None for no limit. Without claims there is no
    lease to keep, and a cancel is watched for all the same.
    """

    def __init__(self, study_id: UUID, claims: Sequence[Claim], max_eval_s: float | None) -> None:
        self._study_id = study_id
        self._claims = claims
        self._max_eval_s = max_eval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True)
        self._started = time.monotonic()
        self.is_cancelled = False
        self.is_lost = False

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        watchdog.end()
        self._done.set()
        self._thread.join()

    def begin(self, claim: Claim) -> None:
        """A trial's evaluation begins: its time counts from now."""
        self._started = time.monotonic()
        watchdog.begin(self._study_id, claim, self._max_eval_s)

    def pause(self) -> None:
        """Nothing is evaluated for now."""
        watchdog.end()

    @property
    def is_leaving(self) -> bool:
        """The worker was asked to go."""
        return bool(_leaving.value)

    @property
    def is_interrupted(self) -> bool:
        """Stop for a reason outside the evaluation: the verdicts still missing are not the deployments' fault."""
        return self.is_cancelled or self.is_lost or self.is_leaving

    def __call__(self) -> bool:
        """Whether the running evaluation should stop."""
        overdue = self._max_eval_s is not None and time.monotonic() - self._started > self._max_eval_s
        return overdue or self.is_interrupted

    def _beat(self) -> None:
        renewed = time.monotonic()
        while not self._done.wait(min(_LOOK_EVERY_S, settings().heartbeat_s)):
            due = bool(self._claims) and time.monotonic() - renewed >= settings().heartbeat_s
            try:
                self._look(renew=due)
            except SQLAlchemyError as error:
                # The lease may run out meanwhile; then the fence, not this thread, keeps the verdicts right.
                log.warning("heartbeat_missed", study_id=str(self._study_id), error=type(error).__name__)
                continue
            if due:
                renewed = time.monotonic()

    def _look(self, *, renew: bool) -> None:
        with transaction() as db:
            query = select(StudyRow.cancel_requested_at).where(StudyRow.id == self._study_id)
            found = db.execute(query).one_or_none()
            if not self.is_cancelled and (found is None or found[0] is not None):
                self.is_cancelled = True
                watchdog.hurry()
            if renew and renew_leases(db, self._study_id, self._claims, settings().lease_s) == 0:
                self.is_lost = not self._done.is_set()
