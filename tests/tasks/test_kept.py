"""The connection for polls outlives whatever happens to it, and never takes one answer for another."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from app.db.kept import KeptConnection, TextRow
from tests.thin import execute

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("empty_tables")]
_ECHO = "SELECT $1::text"
_SLEEP = "SELECT $1::text, pg_sleep(5)"
_KILL_IT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND query = :query
"""


def _asked(story: Callable[[KeptConnection], Awaitable[list[TextRow]]]) -> list[TextRow]:
    async def told() -> list[TextRow]:
        connection = KeptConnection()
        try:
            return await story(connection)
        finally:
            connection.close()

    return asyncio.run(told())


def test_rows_come_as_text_with_none_for_null() -> None:
    rows = _asked(lambda kept: kept.rows("SELECT n, nullif(n, 2), $1 FROM generate_series(1, 2) AS n", "é"))
    assert rows == [[b"1", b"1", "é".encode()], [b"2", None, "é".encode()]]


def test_connection_killed_between_two_questions_is_made_anew() -> None:
    async def story(kept: KeptConnection) -> list[TextRow]:
        await kept.rows(_ECHO, "before")
        await asyncio.to_thread(execute, _KILL_IT, query=_ECHO)
        await asyncio.sleep(0.05)
        return await kept.rows(_ECHO, "after")

    assert _asked(story) == [[b"after"]]


def test_connection_killed_during_a_question_is_asked_again() -> None:
    async def story(kept: KeptConnection) -> list[TextRow]:
        await kept.rows(_ECHO, "open")
        asking = asyncio.create_task(kept.rows("SELECT $1::text, pg_sleep(0.5)", "again"))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(execute, _KILL_IT, query="SELECT $1::text, pg_sleep(0.5)")
        return [row[:1] for row in await asking]

    assert _asked(story) == [[b"again"]]


def test_answer_to_a_question_given_up_is_not_taken_for_the_next_one() -> None:
    async def story(kept: KeptConnection) -> list[TextRow]:
        await kept.rows(_ECHO, "open")
        asking = asyncio.create_task(kept.rows(_SLEEP, "late"))
        await asyncio.sleep(0.05)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        return await kept.rows(_ECHO, "next")

    assert _asked(story) == [[b"next"]]


def test_statement_that_is_refused_leaves_the_connection_usable() -> None:
    async def story(kept: KeptConnection) -> list[TextRow]:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            await kept.rows("SELECT $1::uuid", "no uuid")
        return await kept.rows("SELECT $1::uuid", "01900000-0000-7000-8000-000000000000")

    assert _asked(story) == [[b"01900000-0000-7000-8000-000000000000"]]


def test_database_that_is_not_there_is_an_operational_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.config import settings

    gone = settings().model_copy(update={"database_url": "postgresql://app@127.0.0.1:1/none"})
    monkeypatch.setattr("app.db.kept.settings", lambda: gone)
    with pytest.raises(psycopg.OperationalError):
        _asked(lambda kept: kept.rows(_ECHO, "x"))
