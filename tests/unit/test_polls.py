"""Polls share readings, never get an answer older than the question, and see only what they may."""

import asyncio
from collections.abc import Collection
from hashlib import sha256
from uuid import UUID

import pytest

from app.errors import NotFoundError, UnauthenticatedError
from app.polls import KeyColumns, Known, Poll, Polls, Standing

OURS, THEIRS = UUID(int=1), UUID(int=2)
KEY = KeyColumns("abc", "ours", ["read"], sha256(b"secret").digest(), None)
HEADER = "Bearer spica_abc_secret"


class Database:
    """Two studies of two projects; counts how often it is read."""

    def __init__(self) -> None:
        self.version = 1
        self.num_readings = 0

    async def read(self, study_ids: Collection[UUID], key_ids: Collection[str]) -> Known:
        """One reading."""
        self.num_readings += 1
        projects = {OURS: Standing("ours", self.version, 1), THEIRS: Standing("theirs", self.version, 1)}
        keys = {"abc": KEY} if "abc" in key_ids else {}
        return Known({each: projects[each] for each in study_ids if each in projects}, keys, True)


def test_polls_that_wait_share_readings() -> None:
    database = Database()

    async def many() -> list[Standing]:
        polls = Polls(database.read)
        return await asyncio.gather(*(polls.standing(Poll(OURS, HEADER, None)) for _ in range(100)))

    assert asyncio.run(many()) == [Standing("ours", 1, 1)] * 100
    assert database.num_readings == 1


def test_poll_never_gets_a_reading_that_began_before_it() -> None:
    database = Database()

    async def one_after_the_other() -> list[int]:
        polls, seen = Polls(database.read), []
        for _ in range(3):
            seen.append((await polls.standing(Poll(OURS, HEADER, None))).version)
            database.version += 1
        return seen

    assert asyncio.run(one_after_the_other()) == [1, 2, 3]


@pytest.mark.parametrize("study_id", [THEIRS, UUID(int=3)])
def test_study_of_another_project_and_none_look_the_same(study_id: UUID) -> None:
    with pytest.raises(NotFoundError, match=r"^There is no such study\.$"):
        asyncio.run(Polls(Database().read).standing(Poll(study_id, HEADER, None)))


@pytest.mark.parametrize("header", [None, "Bearer spica_abc_wrong", "Bearer spica_x_secret", "nonsense"])
def test_poll_without_a_valid_key_is_refused(header: str | None) -> None:
    with pytest.raises(UnauthenticatedError):
        asyncio.run(Polls(Database().read).standing(Poll(OURS, header, "127.0.0.1")))


def test_error_of_a_reading_reaches_everybody_who_waits_and_later_polls_work() -> None:
    database = Database()
    away = True

    async def read(study_ids: Collection[UUID], key_ids: Collection[str]) -> Known:
        if away:
            raise ConnectionError
        return await database.read(study_ids, key_ids)

    async def both() -> int:
        nonlocal away
        polls = Polls(read)
        asked = [polls.standing(Poll(OURS, HEADER, None)) for _ in range(3)]
        failed = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in failed] == [ConnectionError] * 3
        away = False
        return (await polls.standing(Poll(OURS, HEADER, None))).version

    assert asyncio.run(both()) == 1
