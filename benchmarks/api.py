"""Dashboards poll a study: latency of full pages and of 304, and CPU time per answer.

    python -m benchmarks.api                                       # one study of 1,000 candidates
    python -m benchmarks.api --studies 5000 --candidates 1000000   # the same polls in a large database

Needs DATABASE_URL and REDIS_URL; runs an API process of its own on a scratch database. Each dashboard polls once per
`--every` seconds; in the round of full pages the study's version rises twice a second. Prints JSON.
"""

import argparse
import asyncio
import json
import random
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from benchmarks.scratch import circumstances, cpu_s, fill, process, quantile, scratch_database, study_id

_START_WITHIN_S = 60.0
_BUMP_EVERY_S = 0.5


class Dashboard:
    """One browser: a connection that is kept, and the entity tag of what it shows."""

    def __init__(self, port: int, study: str) -> None:
        self._port = port
        self._path = f"/studies/{study}/candidates"
        self.tag = ""

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def poll(self, *, conditional: bool) -> tuple[int, float]:
        """One poll: status and milliseconds."""
        condition = f"If-None-Match: {self.tag}\r\n" if conditional else ""
        started = time.perf_counter()
        self._writer.write(f"GET {self._path} HTTP/1.1\r\nHost: spica\r\n{condition}\r\n".encode())
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        await self._reader.readexactly(int(headers.get("content-length", 0)))
        self.tag = headers.get("etag", self.tag)
        return int(lines[0].split()[1]), 1000 * (time.perf_counter() - started)


async def _poll_all(dashboards: list[Dashboard], seconds: float, every_s: float, *, conditional: bool) -> list[float]:
    """Milliseconds of every poll."""
    expected = 304 if conditional else 200
    taken: list[float] = []

    async def one(dashboard: Dashboard) -> None:
        ends = time.monotonic() + seconds
        await asyncio.sleep(random.random() * every_s)
        while time.monotonic() < ends:
            status, milliseconds = await dashboard.poll(conditional=conditional)
            if status != expected:
                raise RuntimeError(f"status {status}, expected {expected}")
            taken.append(milliseconds)
            await asyncio.sleep(every_s * (0.5 + random.random()))

    await asyncio.gather(*(one(dashboard) for dashboard in dashboards))
    return taken


async def _bump(url: str, study: str) -> None:
    """Raise the study's version now and then, as a running study does."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            await connection.execute("UPDATE studies SET version = version + 1 WHERE id = %s", [study])
            await asyncio.sleep(_BUMP_EVERY_S)


async def _measured(pid: int, round_: Callable[[], Awaitable[list[float]]]) -> dict[str, float]:
    used_s = cpu_s(pid)
    taken = await round_()
    used_s = cpu_s(pid) - used_s
    figures = {"polls": len(taken), "p50_ms": quantile(taken, 0.5), "p99_ms": quantile(taken, 0.99)}
    return {**figures, "cpu_ms_per_poll": 1000 * used_s / len(taken)}


async def _run(arguments: argparse.Namespace, url: str, port: int, pid: int) -> dict[str, Any]:
    study = study_id(max(1, arguments.studies // 2))
    dashboards = [Dashboard(port, study) for _ in range(arguments.dashboards)]
    await _until_listening(port)
    for dashboard in dashboards:
        await dashboard.open()
        await dashboard.poll(conditional=False)

    async def polls(*, conditional: bool) -> list[float]:
        return await _poll_all(dashboards, arguments.seconds, arguments.every, conditional=conditional)

    unchanged = await _measured(pid, lambda: polls(conditional=True))
    bumping = asyncio.create_task(_bump(url, study))
    full = await _measured(pid, lambda: polls(conditional=False))
    bumping.cancel()
    return {"unchanged": unchanged, "full_page": full}


async def _until_listening(port: int) -> None:
    deadline = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            await asyncio.open_connection("127.0.0.1", port)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description=__doc__)
    parser.add_argument("--dashboards", type=int, default=200)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between the polls of one dashboard")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each of the two rounds")
    parser.add_argument("--studies", type=int, default=1)
    parser.add_argument("--candidates", type=int, default=1000, help="over all studies")
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with scratch_database() as url:
        fill(url, arguments.studies, arguments.candidates // arguments.studies)
        words = ["uvicorn", "app.main:app", "--port", str(port), "--no-access-log"]
        with process(words, {"DATABASE_URL": url}) as api:
            figures = asyncio.run(_run(arguments, url, port, api.pid))
    print(json.dumps({"arguments": vars(arguments), **figures, **circumstances()}, indent=1))


if __name__ == "__main__":
    main()
