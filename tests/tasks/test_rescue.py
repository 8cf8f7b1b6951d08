"""The rescuer, one kind of loss at a time; ages are made by moving the rows' times back."""

import pytest

from app.config import settings
from app.db.engine import transaction
from app.db.lifecycle import claim_trials, request_cancel
from app.queue import TRIAL_QUEUE, redis_client
from tests.thin import Desk, execute, study, submit, trials
from workers.conductor import advance
from workers.rescue import _SWEEP_LOCK, sweep

pytestmark = pytest.mark.services


def _claimed(desk: Desk, **labels: object):  # type: ignore[no-untyped-def]
    study_id = submit(**labels)
    advance(study_id)
    desk.messages.clear()
    with transaction() as db:
        claim_trials(db, study_id, 0, 10**6, 60)
    return study_id


def test_expired_lease_puts_the_trial_back_and_the_study_ends(desk: Desk) -> None:
    study_id = _claimed(desk, trials=4)
    execute("UPDATE trials SET lease_expires_at = now() - interval '1 s'")
    assert sweep()
    assert {trial.status for trial in trials(study_id)} == {"queued"}
    desk.work()
    assert study(study_id).status == "succeeded"
    assert {trial.attempt for trial in trials(study_id)} == {2}


def test_live_lease_is_left_alone(desk: Desk) -> None:
    study_id = _claimed(desk, trials=4)
    sweep()
    assert {trial.status for trial in trials(study_id)} == {"running"}


def test_last_attempt_lost_fails_the_trial_as_worker_lost(desk: Desk) -> None:
    study_id = _claimed(desk, trials=2)
    execute("UPDATE trials SET attempt = :most WHERE number = 1", most=settings().max_attempts)
    execute("UPDATE trials SET lease_expires_at = now() - interval '1 s'")
    sweep()
    desk.work()
    lost = trials(study_id)[1]
    assert (lost.status, lost.reason_code) == ("failed", "worker_lost")
    assert study(study_id).num_failed == 1


def test_message_the_broker_forgot_is_sent_again(desk: Desk) -> None:
    study_id = submit(trials=4)
    advance(study_id)
    desk.messages.clear()
    sweep()
    assert desk.messages == []
    execute("UPDATE trials SET sent_at = now() - interval '3 s'")
    sweep()
    assert desk.messages == [("spica.run_trials", [str(study_id), 0, 3])]


def test_message_that_waits_in_a_long_queue_is_not_sent_again(desk: Desk) -> None:
    study_id = submit(trials=4)
    advance(study_id)
    desk.messages.clear()
    redis_client().rpush(TRIAL_QUEUE, "somebody else's")
    execute("UPDATE trials SET sent_at = now() - interval '3 s'")
    sweep()
    assert desk.messages == []
    execute("UPDATE trials SET sent_at = now() - interval '1 h'")
    sweep()
    assert [arguments[0] for _, arguments in desk.messages] == [str(study_id)]


def test_sleeping_study_is_woken_once(desk: Desk) -> None:
    study_id = submit(trials=4)
    execute("UPDATE studies SET updated_at = now() - interval '5 s', woken_at = now() - interval '5 s'")
    sweep()
    sweep()
    assert desk.messages == [("spica.advance_study", [str(study_id)])]
    desk.work()
    assert study(study_id).status == "succeeded"


def test_study_that_never_got_a_message_is_woken(desk: Desk) -> None:
    submit(trials=4)
    execute("UPDATE studies SET updated_at = now() - interval '5 s'")
    sweep()
    assert len(desk.messages) == 1


def test_study_whose_trials_wait_for_a_worker_is_woken_rarely(desk: Desk) -> None:
    study_id = submit(trials=4)
    advance(study_id)
    desk.messages.clear()
    redis_client().rpush(TRIAL_QUEUE, "somebody else's")
    execute("UPDATE studies SET updated_at = now() - interval '5 s', woken_at = now() - interval '5 s'")
    sweep()
    assert desk.messages == []
    execute("UPDATE studies SET updated_at = now() - interval '1 min', woken_at = now() - interval '1 min'")
    sweep()
    assert desk.messages == [("spica.advance_study", [str(study_id)])]


def test_study_with_trials_that_nobody_sent_is_woken(desk: Desk) -> None:
    study_id = submit(trials=4)
    advance(study_id)
    desk.messages.clear()
    execute("UPDATE trials SET chunk = NULL, sent_at = NULL")
    execute("UPDATE studies SET updated_at = now() - interval '5 s', woken_at = now() - interval '5 s'")
    sweep()
    assert desk.messages == [("spica.advance_study", [str(study_id)])]


def test_cancel_is_carried_out_although_no_worker_lives(desk: Desk) -> None:
    study_id = _claimed(desk, trials=4)
    with transaction() as db:
        request_cancel(db, study_id)
    sweep()
    assert study(study_id).status == "running"
    execute("UPDATE studies SET cancel_requested_at = now() - interval '3 s'")
    sweep()
    assert study(study_id).status == "cancelled"
    assert {trial.status for trial in trials(study_id)} == {"cancelled"}


def test_only_one_process_sweeps_at_a_time(desk: Desk) -> None:
    from sqlalchemy import func, select

    with transaction() as db:
        assert db.scalar(select(func.pg_try_advisory_xact_lock(_SWEEP_LOCK)))
        assert not sweep()
    assert sweep()
