"""Postgres and Redis really stop under a live API and a live worker, come back, and nothing is lost."""

import signal
import time
from collections.abc import Iterator

import pytest

from tests.site import Site, running_site, suffer, until
from tests.thin import document

pytestmark = [pytest.mark.services, pytest.mark.timeout(480)]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Everything up and ready."""
    with running_site() as site:
        yield site


def test_postgres_stopped_is_503_with_retry_after_and_studies_go_on_when_it_is_back(site: Site) -> None:
    calm = site.submit(trials=20)
    site.wait_for_success(calm)
    study_id = site.submit(trials=20, trial_ms=100, round=10, sweep={"parallel_evals": 2})
    until(lambda: site.num_done(study_id) > 0)
    site.stop_postgres()
    for method, path in (
        ("GET", f"/studies/{study_id}"),
        ("GET", f"/studies/{study_id}/candidates"),
        ("GET", "/studies"),
        ("POST", "/studies"),
        ("POST", f"/studies/{study_id}/cancel"),
    ):
        answer = site.http.request(method, path, json=document() if path == "/studies" else None)
        assert answer.status_code == 503, f"{method} {path}: {answer.status_code} {answer.text}"
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) >= 1
    assert site.http.get("/healthz").status_code == 200
    assert site.http.get("/readyz").json()["parts"]["database"] == "not reachable"
    site.start_postgres()
    site.wait_for_success(study_id)
    assert _scores(site, study_id) == _scores(site, calm)


def _scores(site: Site, study_id: str) -> list[tuple[int, float]]:
    return [(each["trial"], each["score"]) for each in site.results(study_id)]


def test_redis_restarted_empty_under_live_workers_loses_nothing(site: Site) -> None:
    before = site.submit(trials=40, trial_ms=50, round=20)
    until(lambda: site.num_done(before) > 0)
    site.kill_redis()
    site.start_redis()
    after = site.submit(trials=20)
    site.wait_for_success(before, after)
    assert len(site.results(before)) == 32


def test_redis_that_refuses_writes_ends_no_worker_and_loses_nothing(site: Site) -> None:
    before = site.submit(trials=40, trial_ms=50, round=20)
    until(lambda: site.num_done(before) > 0)
    site.refuse_in_redis()
    try:
        after = site.submit(trials=20)
        time.sleep(1)  # so that the worker meets the refusal
        assert site.worker.poll() is None
    finally:
        site.accept_in_redis()
    site.wait_for_success(before, after)
    assert site.worker.poll() is None


def test_study_submitted_while_redis_hangs_is_accepted_and_runs_later(site: Site) -> None:
    site.redis.popen.send_signal(signal.SIGSTOP)
    try:
        study_id = site.submit(trials=10)
    finally:
        site.redis.popen.send_signal(signal.SIGCONT)
    site.wait_for_success(study_id)


def test_studies_that_suffer_every_misfortune_give_what_a_calm_one_gives(site: Site) -> None:
    shape = {"trials": 60, "trial_ms": 40, "round": 20, "sweep": {"parallel_evals": 2}}
    calm = site.submit(**shape)
    site.wait_for_success(calm)
    tried = [site.submit(**shape) for _ in range(3)]
    suffer(site, seed=7, num=9, pause_s=2, outage_s=1)
    site.wait_for_success(*tried)
    for each in tried:
        progress = site.study(each)["progress"]
        assert (progress["trials_total"], progress["done"], progress["failed"]) == (60, 60, 0)
        assert site.results(each) == site.results(calm)
