"""Polls: who calls, and where a study stands, read for everybody who waits at once.

However many dashboards poll, one query is under way: those who come meanwhile share the next one. A reading begins
after the request came, so nobody gets an answer older than the question.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.auth import Caller, anonymous, claimed_key_id, holder
from app.db.kept import KeptConnection
from app.errors import NotFoundError


class Poll(NamedTuple):
    """A question about a study, with what proves who asks."""

    study_id: UUID
    authorization: str | None
    client_host: str | None


class KeyColumns(NamedTuple):
    """The columns of a valid key's row: app.auth.StoredKey."""

    id: str
    project: str
    scopes: list[str]
    secret_sha256: bytes
    revoked_at: datetime | None = None


class Standing(NamedTuple):
    """Where a study stands. ranked_version: the version that last changed a ranked candidate."""

    project: str
    version: int
    ranked_version: int


class Known(NamedTuple):
    """One reading. studies: by id. keys: rows by id. has_keys: whether any valid key exists."""

    studies: Mapping[UUID, Standing]
    keys: Mapping[str, KeyColumns]
    has_keys: bool


# One statement where one will do: a round trip costs more than either answer.
_STUDIES = """
    SELECT keys.exist, studies.id, studies.project, studies.version, studies.ranked_version
    FROM (SELECT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL) AS exist) AS keys
    LEFT JOIN studies ON studies.id = ANY($1::uuid[])
"""
_KEYS = """
    SELECT id, project, array_to_string(scopes, ','), encode(secret_sha256, 'hex') FROM api_keys
    WHERE id = ANY($1::text[]) AND revoked_at IS NULL
"""


class Readings:
    """Reads what polls need, over a connection of its own; for one reader at a time."""

    def __init__(self) -> None:
        self._connection = KeptConnection()

    async def __call__(self, study_ids: Collection[UUID], key_ids: Collection[str]) -> Known:
        """What there is of the studies and keys named. Raises: psycopg.Error."""
        rows = await self._connection.rows(_STUDIES, f"{{{','.join(map(str, study_ids))}}}")
        keys = await self._connection.rows(_KEYS, f"{{{','.join(key_ids)}}}") if key_ids else []
        studies = dict(_study(*map(_text, row)) for _, *row in rows if row[0] is not None)
        return Known(studies, {key.id: key for key in (_key(*map(_text, row)) for row in keys)}, rows[0][0] == b"t")

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()


def _text(column: bytes | None) -> str:
    return (column or b"").decode()


def _study(study_id: str, project: str, version: str, ranked_version: str) -> tuple[UUID, Standing]:
    return UUID(study_id), Standing(project, int(version), int(ranked_version))


def _key(key_id: str, project: str, scopes: str, secret_sha256: str) -> KeyColumns:
    return KeyColumns(key_id, project, scopes.split(","), bytes.fromhex(secret_sha256))


def answer(poll: Poll, known: Known, scope: str) -> Standing:
    """Where the study stands, for a caller who may see it.

    Raises: UnauthenticatedError, ForbiddenError, NotFoundError.
    """
    caller = _caller(poll, known)
    caller.require(scope)
    standing = known.studies.get(poll.study_id)
    if standing is None or not (caller.sees_all_projects or standing.project == caller.project):
        raise NotFoundError("There is no such study.")
    return standing


def _caller(poll: Poll, known: Known) -> Caller:
    if poll.authorization is None:
        return anonymous(poll.client_host, has_keys=known.has_keys)
    return holder(poll.authorization, known.keys.get(claimed_key_id(poll.authorization) or ""))


class _Asked(NamedTuple):
    """What one of those who wait wants to know, and where the reading goes."""

    study_ids: Collection[UUID]
    key_id: str | None
    future: "asyncio.Future[Known]"


class Polls:
    """Answers polls in one event loop, with one reading at a time."""

    def __init__(self, read: Callable[[Collection[UUID], Collection[str]], Awaitable[Known]]) -> None:
        self._read = read
        self._waiting: list[_Asked] = []
        self._reader: asyncio.Task[None] | None = None

    async def standing(self, poll: Poll, scope: str = "read") -> Standing:
        """Where the study stands. Raises: see `answer`; the database's errors."""
        key_id = claimed_key_id(poll.authorization) if poll.authorization is not None else None
        return answer(poll, await self._known({poll.study_id}, key_id), scope)

    async def versions(self, study_ids: Collection[UUID]) -> dict[UUID, int]:
        """The version of each study that exists, for a caller already known to see them. Raises: psycopg.Error."""
        known = await self._known(study_ids, None)
        return {each: known.studies[each].version for each in study_ids if each in known.studies}

    async def _known(self, study_ids: Collection[UUID], key_id: str | None) -> Known:
        future: asyncio.Future[Known] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(study_ids, key_id, future))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_all())
        return await future

    async def _read_all(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            await self._settle(asked)

    async def _settle(self, asked: Sequence["_Asked"]) -> None:
        study_ids = {study_id for each in asked for study_id in each.study_ids}
        key_ids = {each.key_id for each in asked if each.key_id is not None}
        futures = [each.future for each in asked]
        try:
            known = await self._read(study_ids, key_ids)
        except Exception as error:
            # Whatever it is, it is the answer of every request that waits for it.
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future in futures:
            if not future.done():
                future.set_result(known)
