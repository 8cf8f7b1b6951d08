"""Keys are made in the database of the service that is up."""

import socket
from pathlib import Path

import pytest

from launch import keys
from launch.process import LaunchError
from launch.servers import running_postgres


@pytest.fixture
def data_of_a_run(tmp_path: Path) -> Path:
    (tmp_path / "postgres" / "data").mkdir(parents=True)
    return tmp_path


def write_pid_file(folder: Path, port: int) -> None:
    (folder / "postgres" / "data" / "postmaster.pid").write_text(f"1\n/data\n0\n{port}\n\n127.0.0.1\n0\nready\n")


def test_database_of_a_running_service_is_found_by_its_folder(data_of_a_run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        write_pid_file(data_of_a_run, port)
        assert running_postgres(data_of_a_run) == f"postgresql://app@127.0.0.1:{port}/postgres"


def test_no_service_is_said_so_also_where_a_killed_one_left_its_file(data_of_a_run: Path) -> None:
    with pytest.raises(LaunchError, match="no service runs"):
        running_postgres(data_of_a_run)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        write_pid_file(data_of_a_run, listening.getsockname()[1])
    with pytest.raises(LaunchError, match="no service runs"):
        running_postgres(data_of_a_run)


def test_given_database_goes_before_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], str]] = []

    def note(words: list[str], env: dict[str, str], cwd: Path) -> int:
        seen.append((words[1:], env["DATABASE_URL"]))
        return 0

    monkeypatch.setattr(keys, "run_in_foreground", note)
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/spica")
    assert keys.manage_keys(tmp_path, ["list"]) == 0
    assert seen == [(["-m", "app.keys", "list"], "postgresql://elsewhere/spica")]
