"""The tasks: what each message makes a worker do. Each is safe to repeat, and says how.

No task retries itself: what an error or a death leaves undone, the rescuer finds in the rows.
"""

from typing import Any
from uuid import UUID

from app.config import settings
from app.db.engine import patiently
from app.queue import ADVANCE_STUDY, PRUNE, RESCUE, RUN_TRIALS, celery, wake_study
from app.telemetry import work_of_message
from workers import prune as pruning
from workers import rescue as rescuer
from workers.chunk import run_chunk
from workers.conductor import advance


@celery.task(name=ADVANCE_STUDY, bind=True)  # type: ignore[untyped-decorator]
def advance_study(self: Any, study_id: str) -> None:
    """Take a study one step further. Repeated: finds nothing to do."""
    with work_of_message("advance_study", self.request.headers or {}, study_id=study_id):
        patiently(lambda: advance(UUID(study_id)))


@celery.task(name=RUN_TRIALS, bind=True)  # type: ignore[untyped-decorator]
def run_trials(self: Any, study_id: str, first: int, last: int) -> None:
    """Evaluate the trials first..last, then wake the study. Repeated: claims nothing, so evaluates nothing."""
    with work_of_message("run_trials", self.request.headers or {}, study_id=study_id, first=first, last=last):
        if run_chunk(UUID(study_id), first, last):
            wake_study(UUID(study_id))


@celery.task(name=RESCUE)  # type: ignore[untyped-decorator]
def rescue() -> None:
    """Sweep once. Repeated: finds nothing."""
    rescuer.sweep()


@celery.task(name=PRUNE)  # type: ignore[untyped-decorator]
def prune() -> None:
    """Delete what has outlived its promise. Repeated: finds nothing."""
    pruning.prune(settings().retention_days)
