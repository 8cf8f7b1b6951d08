"""Pruning takes what has ended long ago, all of it, and nothing else."""

import pytest

from app.db.engine import transaction
from app.studies import count_by_status
from tests.thin import Desk, execute, study, submit
from workers.prune import prune

pytestmark = pytest.mark.services


def test_prune_deletes_old_ended_studies_and_never_open_ones(desk: Desk) -> None:
    old, recent, opened = (submit(trials=2) for _ in range(3))
    desk.run(old)
    desk.run(recent)
    execute("UPDATE studies SET finished_at = now() - interval '31 days' WHERE id = :id", id=old)
    execute("UPDATE studies SET created_at = now() - interval '99 days', updated_at = now() - interval '99 days'")
    assert prune(30) == 1
    assert study(recent).status == "succeeded"
    assert study(opened).status == "queued"


def test_prune_takes_all_of_many(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.prune._STUDIES_AT_ONCE", 2)
    for _ in range(5):
        desk.run(submit(trials=1))
    execute("UPDATE studies SET finished_at = now() - interval '2 days'")
    assert prune(1) == 5
    with transaction() as db:
        assert count_by_status(db) == {}


def test_without_a_retention_time_only_expired_idempotency_keys_go(desk: Desk) -> None:
    kept = desk.run(submit(trials=2))
    execute("UPDATE studies SET finished_at = now() - interval '999 days'")
    for age in ("25 hours", "23 hours"):
        execute(
            "INSERT INTO idempotency_keys (project, key, body_sha256, study_id, created_at)"
            f" VALUES ('p', :key, 'x', :id, now() - interval '{age}')",
            key=age,
            id=kept.id,
        )
    assert prune(None) == 0
    assert study(kept.id).status == "succeeded"
    with transaction() as db:
        from sqlalchemy import text

        assert list(db.scalars(text("SELECT key FROM idempotency_keys"))) == ["23 hours"]
