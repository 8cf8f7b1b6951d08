"""Clients of the API for benchmarks: a dashboard that polls, a reader of an event stream. Bare sockets, to cost little."""

import asyncio
import random
import time
from typing import NamedTuple

from benchmarks.scratch import quantile


class Poll(NamedTuple):
    """One answer: its status and how long it took."""

    status: int
    milliseconds: float


class Dashboard:
    """One browser: a connection that is kept, and the entity tag of what it shows."""

    def __init__(self, port: int, study: str) -> None:
        self._port = port
        self._path = f"/studies/{study}/candidates"
        self.tag = ""

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def poll(self, *, conditional: bool) -> Poll:
        """Ask once; an answer beyond 200 and 304 is an error."""
        condition = f"If-None-Match: {self.tag}\r\n" if conditional and self.tag else ""
        started = time.perf_counter()
        self._writer.write(f"GET {self._path} HTTP/1.1\r\nHost: spica\r\n{condition}\r\n".encode())
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        await self._reader.readexactly(int(headers.get("content-length", 0)))
        taken_ms = 1000 * (time.perf_counter() - started)
        self.tag = headers.get("etag", self.tag)
        status = int(lines[0].split()[1])
        if status not in (200, 304):
            raise RuntimeError(f"{self._path} answered {status}")
        return Poll(status, taken_ms)


async def poll_all(
    dashboards: list[Dashboard], every_s: float, until: asyncio.Event, *, conditional: bool
) -> list[Poll]:
    """Every poll of all dashboards, each asking about once per `every_s`, until the event is set."""
    taken: list[Poll] = []

    async def one(dashboard: Dashboard) -> None:
        await asyncio.sleep(random.random() * every_s)
        while not until.is_set():
            taken.append(await dashboard.poll(conditional=conditional))
            await asyncio.sleep(every_s * (0.5 + random.random()))

    await asyncio.gather(*(one(dashboard) for dashboard in dashboards))
    return taken


async def follow(port: int, study: str) -> int:
    """Read a study's event stream to its end; the number of events. Raises: RuntimeError if it breaks off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /studies/{study}/events HTTP/1.1\r\nHost: spica\r\n\r\n".encode())
    num_events, last = 0, b""
    while line := await reader.readline():
        num_events += line.startswith(b"event:")
        last = line if line.startswith(b"data:") else last
        if line == b"0\r\n":
            break
    writer.close()
    if b'"finished_at"' not in last and not any(each in last for each in (b"succeeded", b"failed", b"cancelled")):
        raise RuntimeError("an event stream broke off before the study ended")
    return num_events


def figures(polls: list[Poll]) -> dict[str, dict[str, float]]:
    """Count, median and 99th percentile by status."""
    found = {}
    for status in sorted({poll.status for poll in polls}):
        taken = [poll.milliseconds for poll in polls if poll.status == status]
        found[str(status)] = {"polls": len(taken), "p50_ms": quantile(taken, 0.5), "p99_ms": quantile(taken, 0.99)}
    return found
