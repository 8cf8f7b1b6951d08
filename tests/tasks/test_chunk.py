"""Chunks that meet trouble: errors, time-outs, cancels, a worker that leaves."""

import threading
from collections.abc import Callable

import pytest

from app.db.engine import transaction
from app.db.lifecycle import request_cancel
from tests.thin import Desk, study, submit, trials
from workers import lease
from workers.chunk import run_chunk
from workers.conductor import advance

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.lease._LOOK_EVERY_S", 0.05)


def test_error_in_a_batch_fails_its_own_trial_only(desk: Desk) -> None:
    row = desk.run(submit(trials=12, error=4))
    by_number = {trial.number: trial for trial in trials(row.id)}
    assert by_number[4].status == "failed"
    assert (by_number[4].reason_code, by_number[4].reason_detail) == (
        "replay_error",
        "The replay failed: RuntimeError.",
    )
    assert row.num_failed == 1
    assert row.status == "succeeded"


def test_trial_over_its_time_is_timed_out_and_its_neighbours_are_not(desk: Desk) -> None:
    row = desk.run(submit(trials=6, hang=3, sweep={"max_eval_seconds": 0.3}))
    by_number = {trial.number: trial for trial in trials(row.id)}
    assert (by_number[3].status, by_number[3].reason_code) == ("timed_out", "exceeded_runtime")
    assert row.num_timed_out == 1
    assert row.status == "succeeded"


def test_cancel_stops_a_running_chunk(desk: Desk) -> None:
    study_id = submit(trials=6, hang=3, sweep={"max_eval_seconds": None})
    advance(study_id)
    running = threading.Thread(target=run_chunk, args=(study_id, 0, 5))
    running.start()
    with transaction() as db:
        request_cancel(db, study_id)
    running.join(timeout=20)
    assert not running.is_alive()
    row = desk.run(study_id)
    assert row.status == "cancelled"
    assert {trial.number for trial in trials(study_id) if trial.status == "cancelled"} >= {3, 4, 5}


def test_leaving_worker_gives_back_what_it_has_not_evaluated(desk: Desk) -> None:
    study_id = submit(trials=6, hang=3, sweep={"max_eval_seconds": None})
    advance(study_id)
    lease.leave()
    try:
        run_chunk(study_id, 0, 5)
    finally:
        lease._leaving.value = 0
    given_back = [trial for trial in trials(study_id) if trial.status == "queued"]
    assert {trial.number for trial in given_back} >= {3, 4, 5}
    assert {trial.attempt for trial in given_back} == {0}
    assert {trial.chunk for trial in given_back} == {None}


def test_heartbeat_keeps_the_lease_of_a_long_trial(desk: Desk, setting: Callable[[str, object], None]) -> None:
    setting("lease_s", 0.5)
    setting("heartbeat_s", 0.05)
    study_id = submit(trials=1, infeasible=0, trial_ms=1500)
    advance(study_id)
    from workers.rescue import sweep

    running = threading.Thread(target=run_chunk, args=(study_id, 0, 0))
    running.start()
    while running.is_alive():
        sweep()
        running.join(timeout=0.1)
    assert [(trial.status, trial.attempt) for trial in trials(study_id)] == [("feasible", 1)]
    assert study(study_id).num_late == 0


def test_message_delivered_twice_evaluates_once(desk: Desk) -> None:
    study_id = submit(trials=6)
    advance(study_id)
    assert run_chunk(study_id, 0, 5) == 6
    assert run_chunk(study_id, 0, 5) == 0
    assert {trial.attempt for trial in trials(study_id)} == {1}
