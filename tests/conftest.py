"""Real services for the tests that need them: one migrated template, one database per module, tables emptied per test.

Where Postgres and Redis are comes from DATABASE_URL and REDIS_URL, which `python3 run.py test` sets. Tests never touch
the databases these name: they make their own beside them, and use a Redis database number of their own.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import make_url, text

REPOSITORY = Path(__file__).parent.parent
PYTHON = sys.executable

# Test processes that run side by side have two Redis databases each: the second is for services under test.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_REDIS_DATABASE = 2 + 2 * _PROCESS
SERVICE_REDIS_DATABASE = _REDIS_DATABASE + 1

_server = os.environ.get("DATABASE_URL", "")
if os.environ.get("REDIS_URL"):
    os.environ["REDIS_URL"] = os.environ["REDIS_URL"].partition("?")[0].rsplit("/", 1)[0] + f"/{_REDIS_DATABASE}"


def _url(name: str) -> str:
    return make_url(_server).set(database=name, drivername="postgresql").render_as_string(hide_password=False)


def _admin(statement: str) -> None:
    with psycopg.connect(_url(str(make_url(_server).database)), autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


def migrate(url: str, revision: str = "head", *, down: bool = False) -> None:
    """Bring a database up or down to a revision."""
    config = Config(toml_file=REPOSITORY / "pyproject.toml", attributes={"url": url})
    (command.downgrade if down else command.upgrade)(config, revision)


def new_database(template: str) -> Iterator[str]:
    """URL of a fresh copy of a template database, dropped in the end."""
    name = f"spica_test_{uuid4().hex[:12]}"
    _admin(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield _url(name)
    _admin(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def template_database() -> Iterator[str]:
    """Name of a database with the newest schema and no rows."""
    if not _server or not os.environ.get("REDIS_URL"):
        pytest.fail("DATABASE_URL and REDIS_URL are not set; run `python3 run.py test`", pytrace=False)
    name = f"spica_template_{uuid4().hex[:12]}"
    _admin(f"CREATE DATABASE {name}")
    migrate(_url(name))
    yield name
    _admin(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def database(template_database: str) -> Iterator[str]:
    """This module's own database, which the application's engine is connected to."""
    from app.config import settings
    from app.db.engine import engine

    for url in new_database(template_database):
        os.environ["DATABASE_URL"] = url
        settings.cache_clear()
        engine.cache_clear()
        yield url
        engine().dispose()
        engine.cache_clear()
        settings.cache_clear()
        os.environ["DATABASE_URL"] = _server


@pytest.fixture
def empty_tables(database: str) -> None:
    """No rows and no messages."""
    from app.db.engine import patiently, transaction
    from app.queue import redis_client

    def truncate() -> None:
        with transaction() as db:
            db.execute(text("TRUNCATE studies, traces, api_keys CASCADE"))

    # The rescuer of a running API may read just now and be chosen as the other side of a deadlock.
    patiently(truncate)
    redis_client().flushdb()


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, object], None]]:
    """Change one setting for one test: setting("max_trials", 25)."""
    from app.config import settings

    def change(name: str, value: object) -> None:
        monkeypatch.setenv(f"SPICA_{name.upper()}", str(value))
        settings.cache_clear()

    yield change
    monkeypatch.undo()
    settings.cache_clear()
