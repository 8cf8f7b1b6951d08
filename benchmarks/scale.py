"""What each worker and each study costs the parts that all workers share: Postgres, Redis, the trace store.

python -m benchmarks.scale [--workers 1 2 4] [--studies 4] [--out RESULT.json]

Needs DATABASE_URL and REDIS_URL. For each number of workers (one pool process each) a service of its own is looked at idle,
then while it runs some studies at once. Slopes over the number of workers say what one more worker costs, however few cores
there are here. Beside it, what rows of traces cost the store. `docs/scale.md` makes a site of a hundred workers of it.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psycopg
from redis import Redis

from benchmarks.scratch import circumstances
from benchmarks.served import EXAMPLES, served
from benchmarks.service import Service, family_mb, running_service
from benchmarks.stored_trace import stored_trace
from benchmarks.trace_upload import rows as made_rows
from tests.golden import files

_IDLE_S, _SAMPLE_EVERY_S, _ASK_S = 8.0, 0.25, 2.0
_STUDY_WITHIN_S = 120.0
_TRACE_ROWS = 200_000

_DATABASE = """
    SELECT xact_commit + xact_rollback, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'), pg_database_size(current_database()),
           (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())
    FROM pg_stat_database WHERE datname = current_database()
"""


class Gauge:
    """Counters of the shared parts; a reading is a mapping of floats."""

    def __init__(self, service: Service) -> None:
        self._url = service.database_url
        self._redis = Redis.from_url(os.environ["REDIS_URL"])

    def __call__(self) -> dict[str, float]:
        with psycopg.connect(self._url.replace("+psycopg", ""), autocommit=True) as connection:
            row = connection.execute(_DATABASE).fetchone()
        assert row is not None
        commands = self._redis.info("stats")["total_commands_processed"]
        clients = self._redis.info("clients")["connected_clients"]
        names = ("transactions", "wal_bytes", "database_bytes", "connections")
        found = dict(zip(names, map(float, row), strict=True))
        return found | {"redis_commands": float(commands), "redis_clients": float(clients) - 1.0}


def of_workers(workers: int, studies: int) -> dict[str, Any]:
    """A service with so many workers: idle, then running the studies at once."""
    with running_service(workers, 1) as service, httpx.Client(base_url=service.url, timeout=150) as client:
        gauge = Gauge(service)
        config = json.loads((EXAMPLES / "three-backends.json").read_text())
        served(client, config, _STUDY_WITHIN_S)
        idle = _idle(gauge)
        before, started = gauge(), time.monotonic()
        peaks = _while_running(gauge, lambda: _run(client, config, studies))
        seconds, after = time.monotonic() - started, gauge()
        memory_mb = [sum(family_mb(pid)) for pid in service.worker_pids]
    row = {
        "workers": workers,
        "idle_transactions_per_s": idle["transactions"],
        "idle_redis_commands_per_s": idle["redis_commands"],
        "connections": peaks["connections"],
        "redis_clients": peaks["redis_clients"],
        "worker_mb": max(memory_mb),
        "studies": studies,
        "seconds": seconds,
        **{
            f"{name}_per_study": (after[name] - before[name]) / studies
            for name in ("transactions", "wal_bytes", "database_bytes", "redis_commands")
        },
    }
    print({name: round(value, 2) for name, value in row.items()}, flush=True)
    return row


def _idle(gauge: Gauge) -> dict[str, float]:
    """What goes on per second while nobody asks for anything."""
    time.sleep(2.0)
    before = gauge()
    time.sleep(_IDLE_S)
    after = gauge()
    return {name: (after[name] - before[name]) / _IDLE_S for name in before}


def _while_running(gauge: Gauge, work: Callable[[], None]) -> dict[str, float]:
    """The highest readings while the work is done."""
    readings = [gauge()]
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        while not done.done():
            readings.append(gauge())
            time.sleep(_SAMPLE_EVERY_S)
        done.result()
    return {name: max(reading[name] for reading in readings) for name in readings[0]}


def _run(client: httpx.Client, config: dict[str, Any], studies: int) -> None:
    """The studies at once, each with a seed of its own."""

    def one(seed: int) -> str:
        study, _ = served(client, config | {"sweep": {"seed": seed}}, _STUDY_WITHIN_S)
        return str(study["status"])

    with ThreadPoolExecutor(studies) as pool:
        ended = list(pool.map(one, range(1, studies + 1)))
    if set(ended) != {"succeeded"}:
        raise RuntimeError(f"studies ended {ended}")


def shared_parts() -> dict[str, float]:
    """What Postgres and Redis do here: limits of connections, and answers per second to one client that asks one by one."""
    redis = Redis.from_url(os.environ["REDIS_URL"])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        shown = connection.execute("SHOW max_connections").fetchone()
        assert shown is not None
        return {
            "max_connections": float(shown[0]),
            "statements_per_s": _per_second(lambda: connection.execute("SELECT count(*) FROM pg_stat_activity")),
            "max_redis_clients": float(redis.config_get("maxclients")["maxclients"] or 0),
            "redis_commands_per_s": _per_second(redis.ping),
        }


def _per_second(ask: Callable[[], object]) -> float:
    started, count = time.perf_counter(), 0
    while (taken := time.perf_counter() - started) < _ASK_S:
        ask()
        count += 1
    return count / taken


def traces() -> dict[str, float]:
    """Rows taken in per second and stored bytes of a row: made rows, and those of the conversation trace."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.jsonl"
        made.write_bytes(b"".join(made_rows(_TRACE_ROWS)))
        started = time.perf_counter()
        stored = stored_trace(made, Path(folder, "one"))
        seconds = time.perf_counter() - started
        recorded = files.TRACES / "mooncake_conversation.jsonl.gz"
        known = stored_trace(recorded, Path(folder, "two"))
        recorded_rows = files.trace("mooncake_conversation.jsonl").count(b"\n")
        return {
            "rows_per_s": _TRACE_ROWS / seconds,
            "stored_bytes_of_a_made_row": stored.path.stat().st_size / _TRACE_ROWS,
            "stored_bytes_of_a_recorded_row": known.path.stat().st_size / recorded_rows,
        }


def per_worker(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """A straight line through each figure that grows with the workers: what one adds, and what is there without any."""
    names = ("connections", "redis_clients", "idle_transactions_per_s", "idle_redis_commands_per_s")
    workers = [row["workers"] for row in rows]
    lines = {name: np.polyfit(workers, [row[name] for row in rows], 1) for name in names}
    return {name: {"of_one": float(line[0]), "without": float(line[1])} for name, line in lines.items()}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--studies", type=int, default=4, help="at once, for each number of workers")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [of_workers(each, options.studies) for each in options.workers]
    found = {"rows": rows, "per_worker": per_worker(rows), "parts": shared_parts(), "traces": traces()}
    print(json.dumps({name: found[name] for name in ("per_worker", "parts", "traces")}, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps({"circumstances": circumstances(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
