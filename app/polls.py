"""Polls: who calls, and which version a study has, read for everybody who waits at once.

However many dashboards poll, one query is under way: those who come meanwhile share the next one. A reading begins
after the request came, so nobody gets an answer older than the question.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from starlette.concurrency import run_in_threadpool

from app.auth import Caller, anonymous, claimed_key_id, holder
from app.db.engine import KeptConnection
from app.errors import NotFoundError


class Poll(NamedTuple):
    """A question about a study, with what proves who asks."""

    study_id: UUID
    authorization: str | None
    client_host: str | None


class KeyColumns(NamedTuple):
    """The columns of a key's row: app.auth.StoredKey."""

    id: str
    project: str
    scopes: list[str]
    secret_sha256: bytes
    revoked_at: datetime | None


class Known(NamedTuple):
    """One reading. studies: project and version by id. keys: rows by id. has_keys: whether any valid key exists."""

    studies: Mapping[UUID, tuple[str, int]]
    keys: Mapping[str, KeyColumns]
    has_keys: bool


_STUDIES = "SELECT id, project, version FROM studies WHERE id = ANY(%s)"
_KEYS = "SELECT id, project, scopes, secret_sha256, revoked_at FROM api_keys WHERE id = ANY(%s)"
_HAS_KEYS = "SELECT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL)"


class Readings:
    """Reads what polls need, over a connection of its own; for one thread at a time."""

    def __init__(self) -> None:
        self._connection = KeptConnection()

    def __call__(self, study_ids: Collection[UUID], key_ids: Collection[str]) -> Known:
        """What there is of the studies and keys named."""
        return self._connection.read(lambda connection: _read(connection, study_ids, key_ids))

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()


def _read(connection: "psycopg.Connection[Any]", study_ids: Collection[UUID], key_ids: Collection[str]) -> Known:
    rows = connection.execute(_STUDIES, [list(study_ids)])
    studies = {study_id: (project, version) for study_id, project, version in rows}
    keys = {}
    if key_ids:
        keys = {row[0]: KeyColumns(*row) for row in connection.execute(_KEYS, [list(key_ids)])}
    found = connection.execute(_HAS_KEYS).fetchone()
    return Known(studies, keys, bool(found and found[0]))


def answer(poll: Poll, known: Known, scope: str) -> int:
    """The study's version, for a caller who may see it.

    Raises: UnauthenticatedError, ForbiddenError, NotFoundError.
    """
    caller = _caller(poll, known)
    caller.require(scope)
    project, version = known.studies.get(poll.study_id, (None, 0))
    if project is None or not (caller.sees_all_projects or project == caller.project):
        raise NotFoundError("There is no such study.")
    return version


def _caller(poll: Poll, known: Known) -> Caller:
    if poll.authorization is None:
        return anonymous(poll.client_host, has_keys=known.has_keys)
    return holder(poll.authorization, known.keys.get(claimed_key_id(poll.authorization) or ""))


class Polls:
    """Answers polls in one event loop, with one reading at a time."""

    def __init__(self, read: Callable[[Collection[UUID], Collection[str]], Known]) -> None:
        self._read = read
        self._waiting: list[tuple[Poll, asyncio.Future[Known]]] = []
        self._reader: asyncio.Task[None] | None = None

    async def version(self, poll: Poll, scope: str = "read") -> int:
        """The study's version. Raises: see `answer`; the database's errors."""
        future: asyncio.Future[Known] = asyncio.get_running_loop().create_future()
        self._waiting.append((poll, future))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_all())
        return answer(poll, await future, scope)

    async def _read_all(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            await self._settle(asked)

    async def _settle(self, asked: Sequence[tuple[Poll, "asyncio.Future[Known]"]]) -> None:
        study_ids = {poll.study_id for poll, _ in asked}
        claimed = (claimed_key_id(poll.authorization) for poll, _ in asked if poll.authorization is not None)
        key_ids = {key_id for key_id in claimed if key_id is not None}
        futures = [future for _, future in asked]
        try:
            known = await run_in_threadpool(self._read, study_ids, key_ids)
        except Exception as error:
            # Whatever it is, it is the answer of every request that waits for it.
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future in futures:
            if not future.done():
                future.set_result(known)
