"""Real worker processes, killed and confused; results must equal those of an undisturbed run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import text

from app.config import settings
from app.db.engine import transaction
from app.db.lifecycle import request_cancel
from app.queue import redis_client, wake_study, wake_trials
from tests.thin import candidates, results, study, submit, trials
from workers.rescue import rescuer
from workers.stability import UNFINISHED

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]
_QUICK = {"SPICA_LEASE_S": "2", "SPICA_HEARTBEAT_S": "0.5", "SPICA_MAX_ATTEMPTS": "2", "SPICA_KILL_GRACE_S": "0.3"}
_REPOSITORY = Path(__file__).parent.parent.parent


class Worker:
    """A Celery worker of one pool process around the stand-in."""

    def __init__(self, log: Path) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.fake_worker", "worker"]
        # One process: half the memory and start-up time; concurrency has its own tests.
        options = ["--concurrency=1", "--without-mingle", "--without-gossip", "--loglevel=WARNING"]
        environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, *options], cwd=_REPOSITORY, env=environment, stdout=output, stderr=output
            )

    def kill(self) -> None:
        """kill -9, main process and pool process: as when the machine goes away."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in [self._process.pid, *map(int, children)]:
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """An orderly end, or a kill if it takes long."""
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Crew:
    """One worker for the tests of this module: starting one takes longer than most of them."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.worker = Worker(log)

    def kill(self) -> None:
        """The worker's machine goes away."""
        self.worker.kill()

    def start(self) -> None:
        """Another worker."""
        self.worker = Worker(self._log)


@pytest.fixture(scope="module")
def crew(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """A running worker, and a rescuer here, as in the API process; both with short leases."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _QUICK.items():
            patch.setenv(name, value)
        settings.cache_clear()
        crew, sweeping = Crew(tmp_path_factory.mktemp("worker") / "worker.log"), rescuer()
        sweeping.start()
        yield crew
        sweeping.stop()
        crew.worker.stop()
    settings.cache_clear()


@pytest.fixture(autouse=True)
def _clean(crew: Crew, empty_tables: None) -> None:
    """No rows and no messages of the test before."""


def _until(holds: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def _has_ended(study_id: UUID) -> bool:
    return study(study_id).finished_at is not None


def _is_running(study_id: UUID) -> bool:
    return any(trial.status == "running" for trial in trials(study_id))


def _num_done(study_id: UUID) -> int:
    row = study(study_id)
    return row.num_feasible + row.num_infeasible


def _submitted(**labels: object) -> UUID:
    study_id = submit(**labels)
    wake_study(study_id)
    return study_id


def test_trial_that_kills_its_process_fails_alone(crew: Crew) -> None:
    study_id = _submitted(trials=20, crash=7)
    _until(lambda: _has_ended(study_id))
    by_number = {trial.number: trial for trial in trials(study_id)}
    assert (by_number[7].status, by_number[7].reason_code) == ("failed", "worker_lost")
    assert study(study_id).num_failed == 1
    assert study(study_id).status == "succeeded"


def test_evaluation_that_is_deaf_to_its_time_limit_is_killed_alone(crew: Crew) -> None:
    study_id = _submitted(trials=20, deaf=7, sweep={"max_eval_seconds": 0.5})
    _until(lambda: _has_ended(study_id))
    by_number = {trial.number: trial for trial in trials(study_id)}
    assert (by_number[7].status, by_number[7].reason_code) == ("timed_out", "exceeded_runtime")
    assert study(study_id).num_timed_out == 1
    assert {trial.status for trial in trials(study_id) if trial.number != 7} == {"feasible", "infeasible"}
    assert study(study_id).status == "succeeded"


def test_cancel_ends_an_evaluation_that_is_deaf(crew: Crew) -> None:
    study_id = _submitted(trials=4, deaf=0, sweep={"max_eval_seconds": None})
    _until(lambda: _is_running(study_id))
    with transaction() as db:
        request_cancel(db, study_id)
    _until(lambda: _has_ended(study_id))
    assert {trial.status for trial in trials(study_id)} == {"cancelled"}
    following = _submitted(trials=4)
    _until(lambda: _has_ended(following))
    assert study(following).status == "succeeded"


def test_check_of_the_leaders_that_is_deaf_is_killed_and_the_study_ends_without(crew: Crew) -> None:
    study_id = _submitted(trials=10, deaf_check=1, sweep={"max_eval_seconds": 0.1})
    _until(lambda: _has_ended(study_id))
    assert study(study_id).status == "succeeded"
    assert [each["detail"] for each in study(study_id).warnings][-1:] == [UNFINISHED.warnings[0].detail]
    assert all(row.stability is None for row in candidates(study_id))


def test_cancel_ends_a_check_of_the_leaders_that_is_deaf(crew: Crew) -> None:
    study_id = _submitted(trials=10, deaf_check=1, sweep={"max_eval_seconds": None})
    _until(lambda: _num_done(study_id) == 10)
    with transaction() as db:
        request_cancel(db, study_id)
    _until(lambda: _has_ended(study_id))
    assert study(study_id).status == "cancelled"
    following = _submitted(trials=4)
    _until(lambda: _has_ended(following))


def test_emptied_broker_delays_but_loses_nothing(crew: Crew) -> None:
    study_ids = [_submitted(trials=40, trial_ms=10, round=20) for _ in range(3)]
    _until(lambda: _num_done(study_ids[0]) >= 5)
    redis_client().flushdb()
    _until(lambda: all(map(_has_ended, study_ids)))
    assert {study(each).status for each in study_ids} == {"succeeded"}
    assert len({str(results(each)) for each in study_ids}) == 1


def test_every_message_doubled_doubles_nothing(crew: Crew) -> None:
    study_id = submit(trials=40, trial_ms=5, round=20)
    for _ in range(3):
        wake_study(study_id)

    def has_ended() -> bool:
        wake_study(study_id)
        wake_trials(study_id, 0, 39)
        return _has_ended(study_id)

    _until(has_ended)
    assert [trial.number for trial in trials(study_id)] == list(range(40))
    assert {trial.attempt for trial in trials(study_id)} == {1}
    with transaction() as db:
        assert (
            db.scalar(text("SELECT count(*) FROM candidates")) == db.scalar(text("SELECT count(*) FROM reports")) == 32
        )


def test_kill_9_in_the_middle_gives_the_candidates_of_a_calm_run(crew: Crew) -> None:
    shape = {"trials": 30, "trial_ms": 60, "round": 15, "sweep": {"parallel_evals": 1}}
    calm = _submitted(**shape)
    _until(lambda: _has_ended(calm))
    killed = _submitted(**shape)
    _until(lambda: _num_done(killed) >= 15 and _is_running(killed))
    crew.kill()
    assert not _has_ended(killed)
    crew.start()
    _until(lambda: _has_ended(killed))
    assert study(killed).status == "succeeded"
    assert results(killed) == results(calm)
    assert max(trial.attempt for trial in trials(killed)) > 1


def test_sigterm_gives_back_what_is_not_evaluated(crew: Crew) -> None:
    study_id = _submitted(trials=400, trial_ms=30, sweep={"parallel_evals": 1})
    _until(lambda: _is_running(study_id))
    crew.worker.stop()
    assert {trial.status for trial in trials(study_id)} <= {"queued", "feasible", "infeasible"}
    assert {trial.attempt for trial in trials(study_id) if trial.status == "queued"} == {0}
