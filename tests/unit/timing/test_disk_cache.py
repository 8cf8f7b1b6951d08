"""The disk cache: whole payloads or none, whatever happens to the files."""

from pathlib import Path

import pytest

from workers.timing import disk_cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.SETTING, str(tmp_path))
    return tmp_path


def only_file(folder: Path) -> Path:
    (file,) = [path for path in folder.rglob("*") if path.is_file()]
    return file


@pytest.mark.usefixtures("folder")
def test_payload_written_is_read_back_by_the_same_identity_only() -> None:
    assert disk_cache.write("kind", "a|b", b"payload")
    assert disk_cache.read("kind", "a|b") == b"payload"
    assert disk_cache.read("kind", "a|c") is None
    assert disk_cache.read("other", "a|b") is None


@pytest.mark.parametrize("keep", [0, 5, 20, 28])
def test_file_cut_short_counts_as_absent(folder: Path, keep: int) -> None:
    disk_cache.write("kind", "id", b"payload")
    file = only_file(folder)
    file.write_bytes(file.read_bytes()[:keep])
    assert disk_cache.read("kind", "id") is None


def test_file_with_one_flipped_bit_counts_as_absent(folder: Path) -> None:
    disk_cache.write("kind", "id", b"payload")
    file = only_file(folder)
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(bytes(raw))
    assert disk_cache.read("kind", "id") is None


def test_damaged_file_is_replaced_by_the_next_write(folder: Path) -> None:
    disk_cache.write("kind", "id", b"old")
    only_file(folder).write_bytes(b"garbage")
    assert disk_cache.write("kind", "id", b"new")
    assert disk_cache.read("kind", "id") == b"new"
    assert only_file(folder).read_bytes() != b"garbage"


def test_cache_switched_off_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk_cache.SETTING, "off")
    assert not disk_cache.write("kind", "id", b"payload")
    assert disk_cache.read("kind", "id") is None


def test_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(disk_cache.SETTING, str(tmp_path / "file"))
    assert not disk_cache.write("kind", "id", b"payload")
    assert disk_cache.read("kind", "id") is None
