"""The connection for polls outlives whatever happens to it, and never takes one answer for another."""

import asyncio
import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
import uvloop
from sqlalchemy import make_url

from app.config import settings
from app.db.kept import KeptConnection, TextRow
from tests.thin import execute

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("empty_tables")]
_ECHO = "SELECT $1::text"
_SLEEP = "SELECT $1::text, pg_sleep(5)"
_KILL_IT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND query = :query
"""


Run = Callable[[Any], list[TextRow]]


def _asked(story: Callable[[KeptConnection], Awaitable[list[TextRow]]], run: Run = uvloop.run) -> list[TextRow]:
    """What a story gives in the event loop of the service, or in another one."""

    async def told() -> list[TextRow]:
        connection = KeptConnection()
        try:
            return await story(connection)
        finally:
            connection.close()

    return run(told())


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
    gone = settings().model_copy(update={"database_url": "postgresql://app@127.0.0.1:1/none"})
    monkeypatch.setattr("app.db.kept.settings", lambda: gone)
    with pytest.raises(psycopg.OperationalError):
        _asked(lambda kept: kept.rows(_ECHO, "x"))


class Wire:
    """What lies between a client and the database; it can be cut, or lose everything from some moment on."""

    def __init__(self) -> None:
        self._url = make_url(settings().database_url)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.cut_after: int | None = None
        """Bytes of the next answer that come through before the connection is reset."""
        self.is_lossy = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The database's URL, by way of this wire."""
        return self._url.set(port=self._listening.getsockname()[1]).render_as_string(hide_password=False)

    def close(self) -> None:
        """Close every socket."""
        for end in (self._listening, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection((self._url.host, self._url.port))
                self._ends += [client, server]
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return self._part(client, server)
                    if self.is_lossy:
                        continue
                    if source is server and self.cut_after is not None:
                        client.sendall(data[: self.cut_after])
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        self.cut_after = None
                        return self._part(client, server)
                    (client if source is server else server).sendall(data)

    def _part(self, *ends: socket.socket) -> None:
        for end in ends:
            end.close()


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """A wire that the kept connection goes through."""
    wire = Wire()
    known = settings().model_copy(update={"database_url": wire.url})
    monkeypatch.setattr("app.db.kept.settings", lambda: known)
    yield wire
    wire.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("num_bytes", [0, 1, 50, 500])
def test_connection_reset_in_the_middle_of_an_answer_is_asked_again(wire: Wire, run: Run, num_bytes: int) -> None:
    long = "x" * 1000

    async def story(kept: KeptConnection) -> list[TextRow]:
        await kept.rows(_ECHO, "open")
        wire.cut_after = num_bytes
        asking = asyncio.create_task(kept.rows(_ECHO, long))
        await asyncio.sleep(0)
        time.sleep(0.2)  # the loop is busy elsewhere while bytes and reset arrive, and sees both at once
        return await asking

    assert _asked(story, run) == [[long.encode()]]


def test_question_lost_on_the_way_is_given_up_and_the_next_one_is_answered(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.db.kept._PATIENCE_S", 0.2)

    async def story(kept: KeptConnection) -> list[TextRow]:
        await kept.rows(_ECHO, "open")
        wire.is_lossy = True
        with pytest.raises(psycopg.OperationalError):
            await kept.rows(_ECHO, "lost")
        wire.is_lossy = False
        return await kept.rows(_ECHO, "next")

    assert _asked(story) == [[b"next"]]
