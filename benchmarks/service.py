"""An API and a worker of their own on a scratch database, for benchmarks that time the service from outside."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.scratch import process, scratch_database
from launch.servers import free_port

READY_WITHIN_S = 120.0
_REDIS_DATABASE = 11


@dataclass(frozen=True, slots=True)
class Service:
    """A service that said it is ready. ready_s: seconds from the start of its processes to that."""

    url: str
    ready_s: float
    worker_pids: tuple[int, ...]
    api_pid: int
    database_url: str


@contextlib.contextmanager
def running_service(workers: int = 1, concurrency: int | None = None) -> Iterator[Service]:
    """A service on caches as they are, stopped on leaving. Raises: TimeoutError when it does not become ready.

    concurrency: pool processes of each worker, as many as there are cores without it.
    """
    cores, port = concurrency or len(os.sched_getaffinity(0)), free_port()
    redis_url = os.environ["REDIS_URL"].partition("?")[0].rsplit("/", 1)[0] + f"/{_REDIS_DATABASE}"
    worker = ["celery", "-A", "workers.main", "worker", f"--concurrency={cores}", "--loglevel=ERROR"]
    api = ["uvicorn", "app.main:app", "--port", str(port), "--no-access-log", "--log-level=warning"]
    with scratch_database() as database_url:
        environment = {"DATABASE_URL": database_url, "REDIS_URL": redis_url}
        started = time.perf_counter()
        with contextlib.ExitStack() as running:
            working = [
                running.enter_context(process([*worker, f"--hostname=worker{number}@benchmark"], environment))
                for number in range(workers)
            ]
            answering = running.enter_context(process(api, environment))
            url = f"http://127.0.0.1:{port}"
            _await_ready(url)
            ready_s = time.perf_counter() - started
            yield Service(url, ready_s, tuple(each.pid for each in working), answering.pid, database_url)


def _await_ready(url: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        time.sleep(0.02)
    raise TimeoutError(f"the service was not ready within {READY_WITHIN_S:.0f} s")


def family_mb(pid: int) -> list[float]:
    """Resident MB of a process and of its children; pages that they share count in each."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = [int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in (str(pid), *children)]
    return [each * os.sysconf("SC_PAGE_SIZE") / 1e6 for each in pages]
