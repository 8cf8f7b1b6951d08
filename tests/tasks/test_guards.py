"""The guards that hold whoever calls, however often, at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import IntegrityError

from app.db.engine import transaction
from app.db.lifecycle import Ending, claim_trials, end_trials, lock_study, mark_sent, rescue_trials
from app.schemas.status import TrialStatus
from tests.thin import Desk, execute, study, submit, trials
from workers.conductor import advance

pytestmark = pytest.mark.services
_AT_ONCE = 64


def test_advance_64_at_once_asks_for_one_round(desk: Desk) -> None:
    study_id = submit(trials=30)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda _: advance(study_id), range(_AT_ONCE)))
    row = study(study_id)
    assert (row.status, row.round, row.num_trials) == ("running", 1, 30)
    assert [trial.number for trial in trials(study_id)] == list(range(30))


def test_claim_64_at_once_has_one_winner(desk: Desk) -> None:
    study_id = submit(trials=3)
    advance(study_id)

    def claim(_: int) -> int:
        with transaction() as db:
            return len(claim_trials(db, study_id, 0, 2, 60))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        won = list(pool.map(claim, range(_AT_ONCE)))
    assert sorted(won)[-2:] == [0, 3]


def test_verdict_of_a_lost_lease_is_dropped_and_counted(desk: Desk) -> None:
    study_id = submit(trials=2)
    advance(study_id)
    with transaction() as db:
        mine = claim_trials(db, study_id, 0, 1, 60)
    execute("UPDATE trials SET lease_expires_at = now() - interval '1 s' WHERE number = 0")
    with transaction() as db:
        rescue_trials(db, study_id, 4)
        mark_sent(db, study_id, [(0, 0)])
    with transaction() as db:
        claim_trials(db, study_id, 0, 0, 60)
    late = [Ending(claim.number, claim.attempt, TrialStatus.FEASIBLE, score=1.0) for claim in mine]
    with transaction() as db:
        lock_study(db, study_id)
        accepted = end_trials(db, study_id, late)
    assert accepted == {1}
    assert [(trial.status, trial.attempt) for trial in trials(study_id)] == [("running", 2), ("feasible", 1)]
    assert (study(study_id).num_late, study(study_id).num_feasible) == (1, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trials SET status = 'feasible'",
        "UPDATE trials SET status = 'running'",
        "UPDATE trials SET status = 'done'",
        "UPDATE trials SET lease_expires_at = now()",
        "UPDATE studies SET status = 'succeeded'",
        "UPDATE studies SET status = 'failed', finished_at = now()",
        "UPDATE studies SET status = 'queued', finished_at = now()",
    ],
)
def test_bare_status_write_is_refused(desk: Desk, statement: str) -> None:
    advance(submit(trials=2))
    with pytest.raises(IntegrityError):
        execute(statement)


def test_old_message_does_not_bring_together_trials_that_were_sent_apart(desk: Desk) -> None:
    study_id = submit(trials=4)
    advance(study_id)
    with transaction() as db:
        mark_sent(db, study_id, [(0, 1), (2, 2), (3, 3)])
    with transaction() as db:
        assert [claim.number for claim in claim_trials(db, study_id, 0, 3, 60)] == [0, 1]
