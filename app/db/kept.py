"""A connection of an event loop for statements that read, and run hundreds of times a second.

Pool, session and the way to a thread and back cost ten times what such a statement does, a cursor of the driver three
times. So statements are prepared once and asked over libpq itself, and the event loop watches the socket throughout.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from sqlalchemy import make_url

from app.config import settings
from app.db.engine import CONNECT

_GOOD = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)

_PATIENCE_S = 15.0
"""After which a question counts as lost. Whoever polls waits for the same connection, so none may be waited for for ever."""

TextRow = list[bytes | None]
"""Columns as the database writes them, None for NULL."""


class KeptConnection:
    """Asks one question at a time; opened by the first, opened anew when it has broken."""

    def __init__(self) -> None:
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._socket = -1
        self._prepared: dict[str, bytes] = {}
        self._answer: asyncio.Future[PGresult] | None = None
        self._result: PGresult | None = None

    async def rows(self, sql: str, parameter: str) -> list[TextRow]:
        """What the statement gives for `$1`; asked once more if the connection has gone stale. Raises: psycopg.Error."""
        was_open = self._connection is not None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                try:
                    return await self._rows(sql, parameter)
                except psycopg.OperationalError:
                    self.close()
                    if not was_open:
                        raise
                return await self._rows(sql, parameter)
        except TimeoutError:
            raise psycopg.OperationalError(f"the database did not answer within {_PATIENCE_S:.0f} s") from None

    def close(self) -> None:
        """Close the connection, if there is one; the next question opens another."""
        if self._connection is not None:
            # By the number kept: a connection that broke has forgotten it.
            asyncio.get_running_loop().remove_reader(self._socket)
            self._connection.pgconn.finish()
            self._connection = None

    async def _rows(self, sql: str, parameter: str) -> list[TextRow]:
        pgconn = (self._connection or await self._opened()).pgconn
        if sql not in self._prepared:
            name = str(len(self._prepared)).encode()
            await self._asked(pgconn, lambda: pgconn.send_prepare(name, sql.encode()))
            self._prepared[sql] = name
        name, values = self._prepared[sql], [parameter.encode()]
        found = await self._asked(pgconn, lambda: pgconn.send_query_prepared(name, values))
        return [[found.get_value(row, column) for column in range(found.nfields)] for row in range(found.ntuples)]

    async def _opened(self) -> "psycopg.AsyncConnection[Any]":
        url = make_url(settings().database_url).set(drivername="postgresql").render_as_string(hide_password=False)
        connection = await psycopg.AsyncConnection[Any].connect(url, autocommit=True, **CONNECT)
        self._connection, self._socket, self._prepared = connection, connection.pgconn.socket, {}
        asyncio.get_running_loop().add_reader(self._socket, self._arrived, connection.pgconn)
        return connection

    async def _asked(self, pgconn: PGconn, send: Callable[[], None]) -> PGresult:
        self._answer = answer = asyncio.get_running_loop().create_future()
        try:
            send()
            if pgconn.flush():
                raise psycopg.OperationalError("the server does not take the question")
            result: PGresult = await answer
        except asyncio.CancelledError:
            self.close()  # the answer would be taken for that of the next question
            raise
        if result.status not in _GOOD:
            raise error_from_result(result)
        return result

    def _arrived(self, pgconn: PGconn) -> None:
        """Bytes have come: a part of an answer, its end, or the end of the connection."""
        try:
            pgconn.consume_input()
            if not self._has_ended(pgconn):
                # A connection that was reset behind these bytes may not be announced again (uvloop does not).
                pgconn.consume_input()
                if not self._has_ended(pgconn):
                    return
        except psycopg.OperationalError as error:
            self.close()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(error)
            return
        if self._answer is not None and self._result is not None and not self._answer.done():
            self._answer.set_result(self._result)
        self._result = None

    def _has_ended(self, pgconn: PGconn) -> bool:
        """Take what there is of the answer; whether that was all of it."""
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                return True
            self._result = result
        return False
