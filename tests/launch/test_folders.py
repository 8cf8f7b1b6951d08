"""Data folders are locked, abandoned ones are cleared, and closed folders are recognized."""

from pathlib import Path

import pytest

from launch import folders
from launch.process import LaunchError


def test_data_folder_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with folders.open_data_folder(tmp_path), pytest.raises(LaunchError, match=str(tmp_path)):
        folders.open_data_folder(tmp_path)


def test_data_folder_is_free_again_once_released(tmp_path: Path) -> None:
    folders.open_data_folder(tmp_path).close()
    folders.open_data_folder(tmp_path).close()


def test_new_run_folder_removes_the_one_of_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(folders, "reachable_by_nobody", lambda _path: True)
    killed, alive, unlocked = (tmp_path / f"{folders.RUN_PREFIX}{name}" for name in ("killed", "alive", "unlocked"))
    folders.open_data_folder(killed).close()
    unlocked.mkdir()
    with folders.open_data_folder(alive):
        fresh = folders.new_run_folder()
        left = set(tmp_path.iterdir())
    assert left == {alive, unlocked, fresh}


def test_reachable_by_nobody_stops_at_a_closed_parent(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "inside").mkdir(parents=True)
    closed.chmod(0o700)
    assert not folders.reachable_by_nobody(closed / "inside" / "not-made-yet")


def test_reachable_by_nobody_accepts_folders_open_to_all() -> None:
    assert folders.reachable_by_nobody(Path("/tmp"))
