"""The watchdog: kills a pool process whose evaluation ignores that it should stop, as compiled code may.

Each pool process has a slot in memory shared with the worker's main process, where it notes which trial it evaluates and
until when at most. A thread of the main process looks at the slots. It kills the process that is overdue and ends that
one trial as timed out; the other trials of its message are put back when their lease expires. Deadlines are on the
monotonic clock, which all processes of a machine share.
"""

import ctypes
import math
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import structlog
from billiard import current_process
from sqlalchemy.exc import SQLAlchemyError

from app.config import settings
from app.db.engine import transaction
from app.db.lifecycle import Claim, Ending, end_trials, lock_study, touch_study
from app.queue import wake_study
from app.schemas.status import ReasonCode, TrialStatus
from workers.periodic import Periodic

log = structlog.get_logger()
_LOOK_EVERY_S = 0.25
_MOST_PROCESSES = 512

CHECK = Claim(-1, 0, {}, "")
"""Stands for the check of the leaders, which no trial row stands for."""

STUCK = "stability_stuck"
"""Noted in a study's provenance when the check of its leaders had to be killed: it is not begun again."""


class _Slot(ctypes.Structure):
    """What a pool process is doing. deadline: seconds on the monotonic clock; 0 while it evaluates nothing."""

    _fields_ = (
        ("deadline", ctypes.c_double),
        ("pid", ctypes.c_int64),
        ("study_high", ctypes.c_uint64),
        ("study_low", ctypes.c_uint64),
        ("number", ctypes.c_int64),
        ("attempt", ctypes.c_int64),
    )


_slots = multiprocessing.RawArray(_Slot, _MOST_PROCESSES)
"""Made when the worker's main process imports this module; pool processes are forked later and share it."""


def _slot() -> _Slot:
    """This process's slot. A process that replaces a dead one has the same index, hence the same slot."""
    return _slots[getattr(current_process(), "index", 0) % _MOST_PROCESSES]


def begin(study_id: UUID, claim: Claim, seconds: float | None) -> None:
    """Note that a trial's evaluation begins, and that it may take so many seconds; None for any time."""
    slot = _slot()
    slot.deadline = 0.0  # Whoever reads in between must not see the new trial under the old deadline.
    slot.pid, slot.number, slot.attempt = os.getpid(), claim.number, claim.attempt
    slot.study_high, slot.study_low = study_id.int >> 64, study_id.int & (1 << 64) - 1
    allowed_s = math.inf if seconds is None else seconds + settings().kill_grace_s
    slot.deadline = time.monotonic() + allowed_s


def hurry() -> None:
    """Note that the evaluation under way should have stopped by now: it only gets the grace any more."""
    slot = _slot()
    if slot.deadline:
        slot.deadline = min(slot.deadline, time.monotonic() + settings().kill_grace_s)


def end() -> None:
    """Note that nothing is evaluated."""
    _slot().deadline = 0.0


class Overdue(NamedTuple):
    """An evaluation beyond its deadline."""

    pid: int
    study_id: UUID
    number: int
    attempt: int


def overdue() -> list[Overdue]:
    """Evaluations beyond their deadline; each is reported once."""
    found = []
    now = time.monotonic()
    for slot in _slots:
        deadline = slot.deadline
        if not 0 < deadline < now:
            continue
        each = Overdue(slot.pid, UUID(int=slot.study_high << 64 | slot.study_low), slot.number, slot.attempt)
        if slot.deadline == deadline:  # Else the process has gone on to the next trial while we read.
            slot.deadline = 0.0
            found.append(each)
    return found


def stop_for_real(each: Overdue) -> None:
    """Kill the process, then end its trial, or note that the check is stuck.

    If a cancel or a lost lease was faster, the fence drops the ending.
    """
    if not _is_our_child(each.pid):
        return
    log.warning("evaluation_killed", study_id=str(each.study_id), trial=each.number, pid=each.pid)
    with suppress(ProcessLookupError):
        os.kill(each.pid, signal.SIGKILL)
    try:
        with transaction() as db:
            study = lock_study(db, each.study_id)
            if study is not None and each.number == CHECK.number:
                touch_study(db, each.study_id, provenance={**study.provenance, STUCK: True})
            elif study is not None:
                end_trials(db, each.study_id, [_ending(each, is_cancelled=study.cancel_requested_at is not None)])
    except SQLAlchemyError as error:
        # The lease expires, and another attempt will end here again when the database is back.
        log.warning("killed_trial_not_ended", study_id=str(each.study_id), error=type(error).__name__)
    wake_study(each.study_id)


def _ending(each: Overdue, *, is_cancelled: bool) -> Ending:
    said = "did not stop when asked; its process was killed."
    if is_cancelled:
        detail = f"The study was cancelled; the replay {said}"
        return Ending(each.number, each.attempt, TrialStatus.CANCELLED, ReasonCode.CANCELLED, detail)
    detail = f"The replay did not end in time and {said}"
    return Ending(each.number, each.attempt, TrialStatus.TIMED_OUT, ReasonCode.EXCEEDED_RUNTIME, detail)


def _is_our_child(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[1]) == os.getpid()


def watchdog() -> Periodic:
    """A thread, for the worker's main process, that looks until stopped."""
    return Periodic("watchdog", lambda: _LOOK_EVERY_S, _look)


def _look() -> None:
    for each in overdue():
        stop_for_real(each)
