"""Deletes what has outlived its promise: `python -m workers.prune`, and once an hour by the scheduler.

Studies that have not ended are never touched, whatever their age.
"""

import argparse
from typing import cast

import structlog
from sqlalchemy import CursorResult, text

from app.config import settings
from app.db.engine import transaction
from app.log import configure_logging

log = structlog.get_logger()
_STUDIES_AT_ONCE = 50
_DAY_S = 86_400

_OLD_KEYS = text("DELETE FROM idempotency_keys WHERE created_at < now() - make_interval(secs => :age_s)")
_OLD_STUDIES = text("""
    DELETE FROM studies WHERE id IN (
        SELECT id FROM studies WHERE finished_at < now() - make_interval(secs => :age_s)
        ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED)
""")


def prune(days: float | None) -> int:
    """Delete expired Idempotency-Keys, and studies that ended more than `days` ago; how many studies.

    days: None keeps all studies. A few studies a transaction, so that nobody waits long for a lock.
    """
    with transaction() as db:
        db.execute(_OLD_KEYS, {"age_s": settings().idempotency_hours * 3600})
    if days is None:
        return 0
    num_deleted = 0
    while True:
        with transaction() as db:
            done = cast(
                "CursorResult[object]", db.execute(_OLD_STUDIES, {"age_s": days * _DAY_S, "limit": _STUDIES_AT_ONCE})
            )
            num = done.rowcount
        num_deleted += num
        if num == 0:
            log.info("studies_pruned", count=num_deleted)
            return num_deleted


def main() -> None:
    """Prune once, now."""
    parser = argparse.ArgumentParser(prog="python -m workers.prune", description=__doc__)
    parser.add_argument(
        "--days", type=float, default=settings().retention_days, help="keep studies so long; SPICA_RETENTION_DAYS"
    )
    arguments = parser.parse_args()
    configure_logging()
    print(f"{prune(arguments.days)} studies deleted")


if __name__ == "__main__":
    main()
