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

from app.db.engine import transaction
from app.queue import redis_client, wake_study, wake_trials
from tests.thin import results, study, submit, trials
from workers.rescue import Rescuer

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]
_REPOSITORY = Path(__file__).parent.parent.parent


class Worker:
    """A Celery worker of one pool process around the stand-in."""

    def __init__(self, log: Path) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.fake_worker", "worker"]
        # One process: half the memory and start-up time; concurrency has its own tests.
        options = ["--concurrency=1", "--without-mingle", "--without-gossip", "--loglevel=WARNING"]
        environment = {**os.environ, "SPICA_LEASE_S": "2", "SPICA_HEARTBEAT_S": "0.5", "PYTHONPATH": str(_REPOSITORY)}
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


@pytest.fixture
def start_worker(empty_tables: None, tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    """Start workers; whatever still runs in the end is stopped. A rescuer runs here, as in the API process."""
    started: list[Worker] = []

    def start() -> Worker:
        started.append(Worker(tmp_path / "worker.log"))
        return started[-1]

    rescuer = Rescuer()
    rescuer.start()
    yield start
    rescuer.stop()
    for worker in started:
        worker.stop()


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


def test_kill_9_in_the_middle_gives_the_candidates_of_a_calm_run(start_worker: Callable[[], Worker]) -> None:
    worker = start_worker()
    shape = {"trials": 30, "trial_ms": 60, "round": 15, "sweep": {"parallel_evals": 1}}
    calm = _submitted(**shape)
    _until(lambda: _has_ended(calm))
    killed = _submitted(**shape)
    _until(lambda: _num_done(killed) >= 15 and _is_running(killed))
    worker.kill()
    assert not _has_ended(killed)
    start_worker()
    _until(lambda: _has_ended(killed))
    assert study(killed).status == "succeeded"
    assert results(killed) == results(calm)
    assert max(trial.attempt for trial in trials(killed)) > 1


def test_trial_that_kills_its_process_fails_alone(start_worker: Callable[[], Worker]) -> None:
    start_worker()
    study_id = _submitted(trials=20, crash=7)
    _until(lambda: _has_ended(study_id))
    by_number = {trial.number: trial for trial in trials(study_id)}
    assert (by_number[7].status, by_number[7].reason_code) == ("failed", "worker_lost")
    assert study(study_id).num_failed == 1
    assert study(study_id).status == "succeeded"


def test_emptied_broker_delays_but_loses_nothing(start_worker: Callable[[], Worker]) -> None:
    worker = start_worker()
    study_ids = [_submitted(trials=40, trial_ms=20, round=20) for _ in range(4)]
    _until(lambda: _num_done(study_ids[0]) >= 5)
    redis_client().flushdb()
    _until(lambda: all(map(_has_ended, study_ids)))
    assert {study(each).status for each in study_ids} == {"succeeded"}
    assert len({str(results(each)) for each in study_ids}) == 1
    worker.stop()


def test_every_message_doubled_doubles_nothing(start_worker: Callable[[], Worker]) -> None:
    study_id = submit(trials=40, trial_ms=5, round=20)
    start_worker()
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


def test_sigterm_gives_back_what_is_not_evaluated(start_worker: Callable[[], Worker]) -> None:
    worker = start_worker()
    study_id = _submitted(trials=400, trial_ms=30, sweep={"parallel_evals": 1})
    _until(lambda: _is_running(study_id))
    worker.stop()
    assert {trial.status for trial in trials(study_id)} <= {"queued", "feasible", "infeasible"}
    assert {trial.attempt for trial in trials(study_id) if trial.status == "queued"} == {0}
