"""The real thing for tests of documents and of the command line: an API process and a worker process of this package.

They have a database and a Redis database of their own, so that no other test reads their messages.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from launch.process import Child, Program
from launch.servers import free_port
from launch.stack import answers
from tests.conftest import PYTHON, REPOSITORY, SERVICE_REDIS_DATABASE, new_database
from tests.live.collector import Collector, listening_collector

READY_WITHIN_S = 240.0


def _program(name: str, words: list[str], env: Mapping[str, str], folder: Path) -> Program:
    return Program(name=name, argv=[PYTHON, "-m", *words], env=env, folder=REPOSITORY, log=folder / f"{name}.log")


class Service(NamedTuple):
    """A running service, and a key to it with the scopes `read` and `submit`."""

    url: str
    key: str


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    """Where the service sends its traces."""
    with listening_collector() as listening:
        yield listening


@pytest.fixture(scope="package")
def service(
    template_database: str, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Service]:
    """API and worker, on real performance data."""
    folder = tmp_path_factory.mktemp("live")
    redis_url = os.environ["REDIS_URL"].rpartition("/")[0] + f"/{SERVICE_REDIS_DATABASE}"
    port = free_port()
    for database_url in new_database(template_database):
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPICA_")},
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "SPICA_DATA_DIR": str(folder / "files"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        celery = ["celery", "-A", "workers.main", "worker", "--concurrency=1", "--loglevel=INFO"]
        worker = Child(_program("worker", celery, env, folder))
        api = Child(_program("api", ["uvicorn", "app.main:app", "--port", str(port), "--no-access-log"], env, folder))
        try:
            api.wait_until(lambda _pid: answers(f"http://127.0.0.1:{port}/readyz"), READY_WITHIN_S)
            yield Service(f"http://127.0.0.1:{port}", _new_key(env))
        finally:
            for child in (api, worker):
                child.ask_to_stop()
            for child in (api, worker):
                child.wait_stopped()


def _new_key(env: Mapping[str, str]) -> str:
    words = [PYTHON, "-m", "app.keys", "create", "--name", "tests"]
    return subprocess.run(words, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def environment(service: Service, tmp_path: Path) -> dict[str, str]:
    """What a shell of a user has: the service's address and key, and `spica` and `python3` on the path."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, words in {"spica": f'"{PYTHON}" -m app.client', "python3": f'"{PYTHON}"'}.items():
        script = commands / name
        script.write_text(f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" exec {words} "$@"\n')
        script.chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "SPICA_URL": service.url, "SPICA_API_KEY": service.key, "no_proxy": "127.0.0.1"}
