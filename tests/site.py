"""A whole site to break: Postgres, Redis, an API process and a worker of its own, each of which can die and come back.

The worker evaluates the stand-in. Servers are started here and not taken from the environment, so that stopping them
disturbs nobody else.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
from redis import Redis
from redis.exceptions import RedisError

from launch import servers
from launch.folders import new_run_folder, open_data_folder
from launch.process import Child
from launch.stack import answers
from tests.conftest import REPOSITORY, migrate
from tests.thin import document

_QUICK = {"SPICA_LEASE_S": "3", "SPICA_HEARTBEAT_S": "0.5"}
_PATIENCE_S = 120.0


def until(holds: Callable[[], bool], seconds: float = _PATIENCE_S) -> None:
    """Return once it holds. Raises: AssertionError if that takes too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


class Site:
    """The running parts: servers from the start, API and worker when told. folder: data and logs."""

    def __init__(self, folder: Path) -> None:
        (folder / "logs").mkdir()
        self._folder = folder
        self.postgres, self.database_url = servers.start_postgres(folder, for_tests=True)
        self.redis, self.redis_url = servers.start_redis(folder)
        migrate(self.database_url)
        self._port = servers.free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self._ours: list[subprocess.Popen[bytes]] = []

    def _start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        urls = {"DATABASE_URL": self.database_url, "REDIS_URL": self.redis_url, "PYTHONPATH": str(REPOSITORY)}
        with (self._folder / "logs" / "ours.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=REPOSITORY,
                env={**os.environ, **_QUICK, **urls},
                stdout=log,
                stderr=log,
            )
        self._ours.append(child)
        return child

    def start_worker(self) -> None:
        """A worker of two pool processes; it is ready some seconds later."""
        options = ["--concurrency=2", "--without-mingle", "--without-gossip", "--loglevel=WARNING"]
        self.worker = self._start(["celery", "-A", "tests.fake_worker", "worker", *options])

    def start_api(self) -> None:
        """The API, ready to answer; it is ready without database and broker, too."""
        options = ["--port", str(self._port), "--log-level=warning", "--timeout-graceful-shutdown=1"]
        self.api = self._start(["uvicorn", "app.main:app", *options])
        until(lambda: answers(f"{self.url}/healthz"))

    def kill_pool_process(self) -> None:
        """kill -9 of one process that evaluates."""
        for pid in _children(self.worker.pid)[:1]:
            _kill(pid)

    def kill_worker(self) -> None:
        """kill -9 of the whole worker, as when its machine goes away."""
        for pid in [self.worker.pid, *_children(self.worker.pid)]:
            _kill(pid)
        self.worker.wait()

    def kill_api(self) -> None:
        """kill -9."""
        self.api.kill()
        self.api.wait()

    def stop_worker(self) -> None:
        """SIGTERM; it gives back what it has claimed."""
        _end(self.worker)

    def stop_postgres(self) -> None:
        """Shut it down; its clients are thrown out."""
        self.postgres.ask_to_stop()
        self.postgres.wait_stopped()

    def kill_postgres(self) -> None:
        """kill -9: its clients see their connections reset in the middle of whatever they asked."""
        self.postgres.popen.send_signal(signal.SIGKILL)
        self.postgres.popen.wait()

    def start_postgres(self) -> None:
        """The same data on the same port."""

        def is_up() -> bool:
            # It refuses to start while processes of a killed one still hold its memory.
            if self.postgres.popen.poll() is not None:
                self.postgres = Child(self.postgres.program)
            return _can_connect(self.database_url)

        until(is_up)

    def kill_redis(self) -> None:
        """kill -9, and what it kept is lost."""
        self.redis.popen.send_signal(signal.SIGKILL)
        self.redis.popen.wait()
        for kept in Path(self.redis.program.folder).glob("appendonlydir*"):
            shutil.rmtree(kept)

    def start_redis(self) -> None:
        """An empty one on the same port."""
        self.redis = Child(self.redis.program)
        until(lambda: _answers_ping(self.redis_url))

    def refuse_in_redis(self) -> None:
        """It answers, but takes no writes: as with a full disk, or while another one takes over."""
        Redis.from_url(self.redis_url).config_set("min-replicas-to-write", 1)

    def accept_in_redis(self) -> None:
        """It takes writes again."""
        Redis.from_url(self.redis_url).config_set("min-replicas-to-write", 0)

    def empty_redis(self) -> None:
        """The broker forgets everything, and goes on."""
        Redis.from_url(self.redis_url).flushall()

    def submit(self, **labels: object) -> str:
        """A study's id."""
        answer = self.http.post("/studies", json=document(**labels))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def study(self, study_id: str) -> dict[str, Any]:
        """The study as the API tells it."""
        answer = self.http.get(f"/studies/{study_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def num_done(self, study_id: str) -> int:
        """Trials ended so far."""
        return int(self.study(study_id)["progress"]["done"])

    def results(self, study_id: str) -> list[dict[str, Any]]:
        """Every candidate, best first, without what differs between two runs of one configuration: ids and times."""
        page = self.http.get(f"/studies/{study_id}/candidates", params={"limit": 500}).json()
        return [
            {name: value for name, value in item.items() if name not in ("id", "study_id", "created_at")}
            for item in page["items"]
        ]

    def wait_for_success(self, *study_ids: str) -> None:
        """Return when all have succeeded. Raises: AssertionError if one ends otherwise, or too late."""
        until(lambda: all(self.study(each)["finished_at"] for each in study_ids))
        assert {self.study(each)["status"] for each in study_ids} == {"succeeded"}

    def stop(self) -> None:
        """End everything."""
        self.http.close()
        for child in self._ours:
            child.terminate()
        for child in self._ours:
            _end(child)
        for server in (self.redis, self.postgres):
            server.ask_to_stop()
            server.wait_stopped()


def _children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def _kill(pid: int) -> None:
    # A pool replaces its processes whenever it likes: one may be gone since it was listed.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _can_connect(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _answers_ping(url: str) -> bool:
    try:
        return bool(Redis.from_url(url, socket_timeout=2).ping())
    except RedisError:
        return False


@contextmanager
def running_site() -> Iterator[Site]:
    """A site, up and ready; gone afterwards, data and all."""
    folder = new_run_folder()
    with ExitStack() as leaving:
        leaving.callback(shutil.rmtree, folder, ignore_errors=True)
        leaving.enter_context(open_data_folder(folder))
        leaving.callback(setattr, servers, "site_packages", servers.site_packages)
        servers.site_packages = lambda: Path(sysconfig.get_path("purelib"))
        site = Site(folder)
        leaving.callback(site.stop)
        site.start_worker()
        site.start_api()
        until(lambda: answers(f"{site.url}/readyz"))
        yield site


class Misfortune(NamedTuple):
    """Something goes wrong, and what puts it right again."""

    name: str
    strike: Callable[[], None]
    heal: Callable[[], None]


def misfortunes(site: Site, seed: int, num: int) -> list[Misfortune]:
    """`num` of them in an order drawn from the seed; every kind comes before any comes again."""

    def nothing() -> None:
        """It heals by itself."""

    kinds = [
        Misfortune("pool process killed", site.kill_pool_process, nothing),
        Misfortune("worker killed", site.kill_worker, site.start_worker),
        Misfortune("worker stopped", site.stop_worker, site.start_worker),
        Misfortune("API killed", site.kill_api, site.start_api),
        Misfortune("Postgres stopped", site.stop_postgres, site.start_postgres),
        Misfortune("Postgres killed", site.kill_postgres, site.start_postgres),
        Misfortune("Redis killed", site.kill_redis, site.start_redis),
        Misfortune("Redis emptied", site.empty_redis, nothing),
        Misfortune("Redis read-only", site.refuse_in_redis, site.accept_in_redis),
    ]
    rng = random.Random(seed)
    found: list[Misfortune] = []
    while len(found) < num:
        found += rng.sample(kinds, len(kinds))
    return found[:num]


def suffer(site: Site, seed: int, num: int, *, pause_s: float, outage_s: float) -> list[str]:
    """Strike and heal, one after the other, after random pauses; the names of what struck."""
    rng = random.Random(seed)
    struck = misfortunes(site, seed, num)
    for each in struck:
        time.sleep(rng.uniform(0.2, 1) * pause_s)
        each.strike()
        time.sleep(rng.uniform(0.2, 1) * outage_s)
        each.heal()
    return [each.name for each in struck]
