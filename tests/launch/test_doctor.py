"""The doctor names what is missing, and its exit code tells whether the service could run."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch import doctor
from launch.folders import open_data_folder


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which something else listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_findings_that_are_needed_decide_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, odd = doctor.Finding("disk", True, "enough"), doctor.Finding("chromium", False, "none", is_needed=False)
    monkeypatch.setattr(doctor, "CHECKS", (lambda: fine, lambda: odd))
    assert doctor.examine() == 0
    assert "note chromium" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "CHECKS", (lambda: fine, lambda: fine._replace(name="memory", is_fine=False)))
    assert doctor.examine() == 1
    assert capsys.readouterr().out.endswith("not ready: memory\n")


def test_wanted_port_that_is_taken_is_bad(taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "answers", lambda _url: False)
    monkeypatch.setenv("PORT", str(taken_port))
    assert doctor.port() == doctor.Finding("port", False, f"{taken_port} is taken by another program")


def test_port_of_the_running_service_is_fine(taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "answers", lambda _url: True)
    monkeypatch.setenv("PORT", str(taken_port))
    assert doctor.port().is_fine


def test_port_that_is_no_number_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "http")
    assert not doctor.port().is_fine


def test_data_folder_in_use_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "data_folder", lambda: tmp_path)
    with open_data_folder(tmp_path):
        assert str(tmp_path) in doctor.data().words
        assert not doctor.data().is_fine
    assert doctor.data().is_fine


def test_servers_that_do_not_answer_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    finding = doctor.servers()
    assert not finding.is_fine
    assert "DATABASE_URL" in finding.words
    assert "REDIS_URL" in finding.words
