"""The private Postgres and Redis: kept data, and nothing left behind after kill -9."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from launch.folders import REPOSITORY, new_run_folder, open_data_folder
from tests.launch.test_process import wait_gone

LAUNCHER = """
import sys, time
from pathlib import Path
from launch import install, stack
install.VENV, stack.PYTHON = Path(sys.prefix), Path(sys.executable)  # the environment these tests run in
with stack.services(Path(sys.argv[1])) as running:
    print(*(child.popen.pid for child in running.children), flush=True)
    print(running.env["DATABASE_URL"], running.env["REDIS_URL"], flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder that user nobody can reach, which tmp_path is not."""
    made = new_run_folder()
    with open_data_folder(made):
        yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def launched(folder: Path) -> Iterator[list[str]]:
    """Both servers under a launcher that is killed at the end, and with it they; gives their URLs."""
    env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    argv = [sys.executable, "-c", LAUNCHER, str(folder)]
    with subprocess.Popen(argv, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        lines = [launcher.stdout.readline().split() for _ in range(4)]
        pids = [int(word) for word in lines[2]]
        try:
            yield lines[3]
        finally:
            launcher.send_signal(signal.SIGKILL)
            assert all(wait_gone(pid) for pid in pids)


def test_killed_launcher_leaves_no_server_and_the_next_one_finds_the_data(folder: Path) -> None:
    with launched(folder) as (database_url, redis_url):
        with psycopg.connect(database_url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        with redis.Redis.from_url(redis_url) as client:
            client.set("kept", 42)
            client.waitaof(1, 0, 5000)

    with launched(folder) as (database_url, redis_url):
        with psycopg.connect(database_url) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        with redis.Redis.from_url(redis_url) as client:
            assert client.get("kept") == b"42"
