"""A scratch database beside DATABASE_URL, filled with ended studies, and processes of the service on it.

`python3 run.py test`-like services are expected in DATABASE_URL and REDIS_URL; nothing but the scratch database is
written to.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import make_url

REPOSITORY = Path(__file__).parent.parent
_METRICS = {f"p{number}_of_some_latency_ms": 1000.0 / (number + 1) for number in range(90)}
_DEPLOYMENT = {
    "mode": "agg",
    "backend": "vllm",
    "agg": {"shape": {"tp": 4, "pp": 1, "dp": 1}, "replicas": 2, "max_num_batched_tokens": 8192, "max_num_seqs": 256},
}

_FILL_STUDIES = """
    INSERT INTO studies (id, project, status, labels, model_name, config, config_sha256, seed, warnings, provenance,
                         plan, num_trials, num_feasible, started_at, finished_at)
    SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'default', 'succeeded', '{}', 'm',
           '{"goal": {"target": "throughput"}}', md5(n::text), 0, '[]', '{}', '{}', %(each)s, %(each)s, now(), now()
    FROM generate_series(1, %(studies)s) AS n
"""
_FILL_CANDIDATES = """
    INSERT INTO candidates (id, study_id, number, deployment_sha256, place, rank, on_front, used_gpus, score,
                            objectives, rejected, load, metrics, deployment)
    SELECT gen_random_uuid(), ('01900000-0000-7000-8000-' || lpad(to_hex(s), 12, '0'))::uuid, n, md5(n::text), n + 1,
           n + 1, n = 0, 8, 1000.0 - n, ARRAY[1000.0 - n], 0, '{"concurrency": 64}', %(metrics)s, %(deployment)s
    FROM generate_series(%(first)s::int, %(last)s::int) AS s, generate_series(0, %(each)s - 1) AS n
"""
_STUDIES_AT_ONCE = 100


def study_id(number: int) -> str:
    """Id of the number-th filled study, from 1."""
    return f"01900000-0000-7000-8000-{number:012x}"


@contextlib.contextmanager
def scratch_database() -> Iterator[str]:
    """URL of an empty database with the newest schema, dropped in the end."""
    server, name = make_url(os.environ["DATABASE_URL"]), f"spica_benchmark_{uuid4().hex[:12]}"
    url = server.set(database=name, drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        try:
            command.upgrade(Config(toml_file=REPOSITORY / "pyproject.toml", attributes={"url": url}), "head")
            yield url
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def fill(url: str, num_studies: int, candidates_each: int) -> None:
    """Store ended studies with ranked candidates of realistic size."""
    documents = {"metrics": json.dumps(_METRICS), "deployment": json.dumps(_DEPLOYMENT), "each": candidates_each}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_FILL_STUDIES, {"studies": num_studies, "each": candidates_each})
        for first in range(1, num_studies + 1, _STUDIES_AT_ONCE):
            last = min(first + _STUDIES_AT_ONCE - 1, num_studies)
            connection.execute(_FILL_CANDIDATES, {**documents, "first": first, "last": last})
        connection.execute("VACUUM ANALYZE")


@contextlib.contextmanager
def process(arguments: Sequence[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process of the repository, asked to end on leaving, killed if it does not."""
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class CoreTime(NamedTuple):
    """Seconds that the threads of a process ran, and waited for a core although they could have run."""

    ran_s: float
    waited_s: float


def core_time(pid: int) -> CoreTime:
    """Core time of a process so far; threads that have ended are not counted."""
    texts = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return CoreTime(sum(int(text[0]) for text in texts) / 1e9, sum(int(text[1]) for text in texts) / 1e9)


def circumstances() -> dict[str, Any]:
    """What a figure depends on: commit, machine, load."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
