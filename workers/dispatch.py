"""Which trials travel together in one message, and how many messages may be under way.

A chunk is sized to about a second of estimated work: long enough that a message and two transactions cost little, short
enough for lively progress and a quick stop. Nothing but speed depends on the sizes.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.config import settings
from app.db.tables import StudyRow

_UNKNOWN_TRIAL_S = 0.01
_SMALLEST_CHUNK_S = 0.1
_SHRINK_PER_ATTEMPT = 16

_UNSENT = text("""
    SELECT number, attempt FROM trials WHERE study_id = :id AND status = 'queued' AND sent_at IS NULL ORDER BY number
""")
_UNDER_WAY = text("""
    SELECT count(DISTINCT chunk) FROM trials WHERE study_id = :id AND status IN ('queued', 'running')
""")
_RECENT_WALL_S = text("""
    SELECT avg(wall_s) FROM (
        SELECT wall_s FROM trials WHERE study_id = :id AND number < :before AND NOT cache_hit
        ORDER BY number DESC LIMIT 200) AS recent
""")


def due_chunks(db: Session, study: StudyRow) -> list[tuple[int, int]]:
    """First and last trial number of each message to send now, at most `parallel_evals` being under way."""
    unsent = [(number, attempt) for number, attempt in db.execute(_UNSENT, {"id": study.id})]
    if not unsent:
        return []
    parallel = int(study.config["sweep"]["parallel_evals"])
    free = parallel - int(db.scalar(_UNDER_WAY, {"id": study.id}) or 0)
    if free <= 0:
        return []
    measured_s = db.scalar(_RECENT_WALL_S, {"id": study.id, "before": unsent[0][0]})
    sizes = chunk_size(len(unsent), parallel, measured_s or _planned_s(study.plan or {}))
    return cut(unsent, sizes)[:free]


def _planned_s(plan: dict[str, Any]) -> float:
    estimated_s, num_trials = plan.get("estimated_seconds"), plan.get("budget", {}).get("expected_trials")
    return estimated_s / num_trials if estimated_s and num_trials else _UNKNOWN_TRIAL_S


def chunk_size(num_trials: int, parallel: int, trial_s: float) -> int:
    """Trials in one message: an even share per lane, within a tenth of a second and a second of work."""
    largest = max(1, int(settings().chunk_s / trial_s))
    smallest = max(1, int(_SMALLEST_CHUNK_S / trial_s))
    return min(largest, max(smallest, math.ceil(num_trials / parallel)))


def cut(trials: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Ranges of consecutive trial numbers from (number, attempt) pairs in order of number.

    Trials whose worker died travel in ever smaller company, at their last attempt alone: the one that kills its worker must not
    use up the attempts of its neighbours.
    """
    chunks: list[tuple[int, int]] = []
    start = 0
    for end, (this, following) in enumerate(pairwise([*trials, (-1, -1)]), start=1):
        first, attempt = trials[start]
        largest = 1 if attempt >= settings().max_attempts - 1 > 0 else size // _SHRINK_PER_ATTEMPT**attempt
        is_full = end - start >= max(1, largest)
        if is_full or following != (this[0] + 1, attempt):
            chunks.append((first, this[0]))
            start = end
    return chunks
