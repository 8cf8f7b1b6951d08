"""The audit finds vulnerable locked packages from a dump of OSV, and admits what it does not know."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from launch import audit


def _advisory(number: int, name: str = "Left.Pad", **changes: Any) -> dict[str, Any]:
    """One advisory in OSV's form, for versions from 1.0 below 2.0."""
    events = [{"introduced": "1.0"}, {"fixed": "2.0"}]
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    about = {"id": f"GHSA-{number}", "aliases": [f"CVE-{number}"], "summary": "pads to the right"}
    return {**about, "modified": f"2026-11-0{number}T00:00:00Z", "affected": [affected], **changes}


def _project(folder: Path, *advisories: dict[str, Any], lock: str = "left-pad==1.5\nright-pad==3.0\n") -> Path:
    """A project with one lock, and a dump; the dump's path."""
    (folder / "requirements.lock").write_text(lock)
    dump = folder / "all.zip"
    with zipfile.ZipFile(dump, "w") as archive:
        for number, advisory in enumerate(advisories):
            archive.writestr(f"{number}.json", json.dumps(advisory))
    return dump


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit looks at a folder of this test."""
    monkeypatch.setattr(audit, "REPOSITORY", tmp_path)
    monkeypatch.setattr(audit, "ADVISORIES", tmp_path / "advisories.json")


def test_vulnerable_package_is_named_with_lock_and_advisory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = _project(tmp_path, _advisory(1), _advisory(2, name="unlocked"))
    assert audit.main(["--from", str(dump)]) == 1
    assert capsys.readouterr().out == "requirements.lock: left-pad 1.5: GHSA-1, CVE-1: pads to the right\n"


def test_later_runs_need_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = _project(tmp_path, _advisory(1), lock="left-pad==2.0\n")
    assert audit.main(["--from", str(dump)]) == 0
    dump.unlink()
    assert audit.main([]) == 0
    assert "1 locked packages, no known vulnerability as of 2026-11-01" in capsys.readouterr().out
    (tmp_path / "requirements-dev.lock").write_text("left-pad==1.9.9\n")
    assert audit.main([]) == 1
    assert "requirements-dev.lock: left-pad 1.9.9: GHSA-1" in capsys.readouterr().out


def test_package_that_the_file_does_not_know_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--from", str(_project(tmp_path, _advisory(2, name="other")))]) == 0
    (tmp_path / "requirements.lock").write_text("left-pad==1.5\nnewcomer==1.0\n")
    assert audit.main([]) == 1
    assert "newcomer is not in advisories.json" in capsys.readouterr().out


def test_without_a_file_nothing_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _project(tmp_path)
    assert audit.main([]) == 1
    assert "not audited" in capsys.readouterr().out


def test_accepted_advisory_stays_accepted_when_the_file_is_made_anew(tmp_path: Path) -> None:
    dump = _project(tmp_path, _advisory(1))
    assert audit.main(["--from", str(dump)]) == 1
    known = json.loads(audit.ADVISORIES.read_text())
    audit.ADVISORIES.write_text(json.dumps({**known, "accepted": {"GHSA-1": "we never pad"}}))
    assert audit.main([]) == 0
    assert audit.main(["--from", str(dump)]) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"withdrawn": "2026-11-02T00:00:00Z"},
        {"affected": [{"package": {"ecosystem": "npm", "name": "left-pad"}, "versions": ["1.5"]}]},
        {"affected": [{"package": {"ecosystem": "PyPI", "name": "left-pad"}, "versions": ["1.4"]}]},
    ],
)
def test_advisory_that_does_not_concern_the_lock_is_no_fault(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert audit.main(["--from", str(_project(tmp_path, _advisory(1, **changes)))]) == 0


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("0.9", False),
        ("1.0rc1", False),
        ("1.0", True),
        ("1.10", True),
        ("2.0", False),
        ("2.1", False),
        ("3.5", True),
        ("4.0", True),
        ("4.0.1", False),
    ],
)
def test_ranges_are_read_as_versions_not_as_text(version: str, affected: bool) -> None:
    events = [{"introduced": "1.0"}, {"fixed": "2.0"}, {"introduced": "3.5"}, {"last_affected": "4.0"}]
    assert audit.is_affected(version, {"ranges": [{"type": "ECOSYSTEM", "events": events}]}) is affected


def test_range_from_the_beginning_holds_the_first_version() -> None:
    events = [{"introduced": "0"}]
    assert audit.is_affected("0.0.1.dev1", {"ranges": [{"type": "ECOSYSTEM", "events": events}]})


@pytest.mark.parametrize("content", [b"", b"no zip"])
def test_dump_that_is_none_is_refused_and_keeps_the_file(tmp_path: Path, content: bytes) -> None:
    assert audit.main(["--from", str(_project(tmp_path, _advisory(1), lock="left-pad==2.0\n"))]) == 0
    kept = audit.ADVISORIES.read_bytes()
    (tmp_path / "bad.zip").write_bytes(content)
    assert audit.main(["--from", str(tmp_path / "bad.zip")]) == 1
    assert audit.ADVISORIES.read_bytes() == kept


def test_folder_without_advisories_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _project(tmp_path)
    (tmp_path / "empty").mkdir()
    assert audit.main(["--from", str(tmp_path / "empty")]) == 1
    assert "holds no advisory" in capsys.readouterr().out


def test_every_lock_of_this_project_can_be_read() -> None:
    locks = audit.locked(Path(__file__).resolve().parents[2])
    assert {"requirements.lock", "requirements-dev.lock"} <= set(locks)
    assert all(pins for pins in locks.values())
