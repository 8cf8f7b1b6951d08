"""The database connection pool, transactions, and patience with a database that is away.

One synchronous psycopg engine per process, shared in kind by API and workers. A forked process must call
`forget_connections` before its first query: two processes on one socket corrupt each other's protocol.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import orjson
import psycopg
import structlog
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from app.config import settings

log = structlog.get_logger()
T = TypeVar("T")
CONNECT: dict[str, Any] = {
    "connect_timeout": 3,
    "application_name": "spica",
    "options": "-c statement_timeout=60000",
    # A server that vanished without a word is noticed after some seconds, not after the system's two hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    # Likewise one that vanished with a question on its way: probes are sent on idle connections only.
    "tcp_user_timeout": 11_000,
}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


@lru_cache(maxsize=1)
def engine() -> Engine:
    """The engine of this process; connects on first use, checks a pooled connection before handing it out."""
    url = make_url(settings().database_url).set(drivername="postgresql+psycopg")
    return create_engine(
        url,
        pool_size=settings().database_pool,
        max_overflow=settings().database_pool,
        pool_timeout=5,
        pool_pre_ping=True,
        json_serializer=_dumps,
        json_deserializer=orjson.loads,
        connect_args=CONNECT,
    )


def forget_connections() -> None:
    """Drop inherited connections without closing them: their sockets belong to the parent process."""
    engine().dispose(close=False)


@contextmanager
def transaction() -> Iterator[Session]:
    """A session whose work is committed at the end of the block, or rolled back if the block raises."""
    with Session(engine(), expire_on_commit=False) as db, db.begin():
        yield db


@contextmanager
def snapshot() -> Iterator[Session]:
    """A session that only reads, all of it from one moment: a study and its rows fit together."""
    frozen = engine().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    with Session(frozen, expire_on_commit=False) as db, db.begin():
        yield db


@contextmanager
def reading() -> Iterator[Session]:
    """A session for a single statement that reads: one statement sees one moment without a transaction around it.

    For what dashboards ask all the time: beginning and ending a transaction takes as long as the statement.
    """
    with Session(engine().execution_options(isolation_level="AUTOCOMMIT"), expire_on_commit=False) as db:
        yield db


def is_away(error: Exception) -> bool:
    """Whether the error means that the database cannot work right now, as opposed to a refused statement.

    A database that only reads is one whose other half takes over, or one that a provider stopped before its disk is full.
    """
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(_cause(error), psycopg.errors.ReadOnlySqlTransaction):
        return True
    return isinstance(error, OperationalError | psycopg.OperationalError) or type(error).__name__ == "TimeoutError"


def is_full(error: Exception) -> bool:
    """Whether the database refused because its disk is full."""
    return isinstance(_cause(error), psycopg.errors.DiskFull)


def cause_of(error: Exception) -> str:
    """What kind of error it is, in a word for the log: Postgres's or the driver's own, such as ConnectionTimeout."""
    return type(_cause(error)).__name__


def _cause(error: Exception) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) else error


def patiently(work: Callable[[], T], patience_s: float | None = None) -> T:
    """Run a whole transaction, again and again while the database is away.

    `work` must be safe to repeat: a connection that breaks during COMMIT leaves it unknown whether the commit happened.
    Raises: the last error once `patience_s` has passed.
    """
    deadline = time.monotonic() + (settings().database_patience_s if patience_s is None else patience_s)
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except Exception as error:
            if not is_away(error) or time.monotonic() + pause_s > deadline:
                raise
            log.warning("database_full" if is_full(error) else "database_away", error=cause_of(error), pause_s=pause_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
