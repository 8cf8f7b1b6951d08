"""Migrations lead up, down and up again, on a database with rows, and end where the tables say."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from app.db.tables import SCHEMA_REVISION, Base
from launch.stack import newest_schema
from tests.conftest import REPOSITORY, migrate, new_database
from tests.thin import Desk, submit

pytestmark = pytest.mark.services


@pytest.fixture
def scratch_url(template_database: str) -> Iterator[str]:
    """A database of this test's own."""
    yield from new_database(template_database)


def test_newest_migration_is_the_one_the_code_expects() -> None:
    head = ScriptDirectory.from_config(Config(toml_file=REPOSITORY / "pyproject.toml")).get_current_head()
    assert (head, newest_schema()) == (SCHEMA_REVISION, SCHEMA_REVISION)


def test_migrated_database_has_exactly_the_tables_of_the_code(scratch_url: str) -> None:
    engine = create_engine(scratch_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_down_and_up_again_on_a_filled_database(desk: Desk, database: str) -> None:
    desk.run(submit(trials=5))
    migrate(database, "base", down=True)
    migrate(database)
    migrate(database)
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM studies")) == 0
    engine.dispose()


def test_replay_seconds_of_earlier_studies_are_counted_when_migrating(desk: Desk, database: str) -> None:
    desk.run(submit(trials=5))
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        before = connection.scalar(text("SELECT sum(replay_s) FROM studies"))
    migrate(database, "0005", down=True)
    migrate(database)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT sum(replay_s) FROM studies")) == pytest.approx(before)
    engine.dispose()


def test_migrations_import_neither_package() -> None:
    for migration in Path(REPOSITORY, "migrations", "versions").glob("*.py"):
        source = migration.read_text()
        assert "from app" not in source
        assert "from workers" not in source
