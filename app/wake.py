"""Waiting for a study to change: one Redis subscription per API process, however many clients wait.

Announcements are a courtesy: if none comes (Redis is away, a message was lost), one query a second over all studies
that somebody waits for finds the new versions.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.config import VERSIONS_CHANNEL, settings

log = structlog.get_logger()
_READ_EVERY_S = 1.0
_RECONNECT_AFTER_S = 1.0

ReadVersions = Callable[[Collection[UUID]], Awaitable[dict[UUID, int]]]


class Waker:
    """Wakes waiters when their study passes a version. Lives in one event loop.

    read_versions: the current version of each existing study among the ids.
    """

    def __init__(self, read_versions: ReadVersions) -> None:
        self._read_versions = read_versions
        self._waiters: dict[UUID, set[tuple[int, asyncio.Event]]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def num_waiting(self) -> int:
        """Clients that wait right now."""
        return sum(len(waiters) for waiters in self._waiters.values())

    def start(self) -> None:
        """Begin to listen and to read."""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._read_now_and_then())]

    async def stop(self) -> None:
        """Stop, and let every waiter go."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for waiters in list(self._waiters.values()):
            for _, event in waiters:
                event.set()

    async def wait_for(self, study_id: UUID, version: int, seconds: float) -> None:
        """Return once the study's version is above `version`, the study is gone, or the seconds have passed."""
        waiter = (version, asyncio.Event())
        self._waiters.setdefault(study_id, set()).add(waiter)
        try:
            # The study may have moved between the caller's reading and our registration.
            await self._read([study_id])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiter[1].wait(), seconds)
        finally:
            waiters = self._waiters.get(study_id, set())
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(study_id, None)

    def _notice(self, study_id: UUID, version: int) -> None:
        for seen, event in self._waiters.get(study_id, ()):
            if version > seen:
                event.set()

    async def _read(self, study_ids: Collection[UUID]) -> None:
        versions = await self._read_versions(study_ids)
        for study_id in study_ids:
            self._notice(study_id, versions.get(study_id, 2**63))

    async def _read_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_READ_EVERY_S)
            if self._waiters:
                try:
                    await self._read(list(self._waiters))
                except Exception as error:
                    # The database is away; those who wait go on waiting and learn it when they read themselves.
                    log.info("versions_not_read", error=type(error).__name__)

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError) as error:
                log.info("announcements_not_heard", error=type(error).__name__)
            await asyncio.sleep(_RECONNECT_AFTER_S)

    async def _listen_once(self) -> None:
        async with Redis.from_url(settings().redis_url, health_check_interval=10) as client, client.pubsub() as pubsub:
            await pubsub.subscribe(VERSIONS_CHANNEL)
            async for message in pubsub.listen():
                if message["type"] == "message":
                    study_id, _, version = message["data"].decode().partition(" ")
                    self._notice(UUID(study_id), int(version))
