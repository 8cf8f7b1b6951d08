"""Locks and extras are installed where they belong, with uv or with pip alone."""

import argparse
import subprocess
from pathlib import Path

import pytest

import run
from launch import install
from launch.folders import REPOSITORY

EXTRA_WORDS = "run.py setup --extra "


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every (lock, environment) that would have been installed."""
    calls: list[tuple[str, str]] = []

    def note(lock: Path, venv: Path = install.VENV) -> None:
        calls.append((lock.name, venv.name))

    monkeypatch.setattr(install, "install", note)
    monkeypatch.setattr(run, "install", note)
    return calls


def test_setup_with_extras_installs_the_service_and_then_each_where_it_belongs(
    installed: list[tuple[str, str]],
) -> None:
    assert run.setup(argparse.Namespace(dev=False, extra=["otel", "vizier"])) == 0
    assert installed == [
        ("requirements.lock", ".venv"),
        ("requirements-otel.lock", ".venv"),
        ("requirements-vizier.lock", ".venv-vizier"),
    ]


@pytest.mark.parametrize("name", install.EXTRAS)
def test_every_extra_has_a_lock_and_is_told_to_users(name: str) -> None:
    assert (REPOSITORY / f"requirements-{name}.lock").exists()
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md")]
    assert any(f"{EXTRA_WORDS}{name}" in page.read_text() for page in pages)


def test_pip_installs_an_extra_where_uv_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv is refused by its hash, say; the same lock then goes in by pip, into the environment that was meant."""
    commands: list[list[str]] = []

    def record(words: list[str], **_options: object) -> "subprocess.CompletedProcess[str]":
        commands.append(words)
        return subprocess.CompletedProcess(words, int(str(install.INSTALLER_LOCK) in words), "refused")

    monkeypatch.setattr(install, "run", record)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    install.install_now(REPOSITORY / "requirements-otel.lock", tmp_path)
    assert commands[-1][-1].endswith("requirements-otel.lock")
    assert str(tmp_path / "bin" / "python") in commands[-1]
    assert install.is_installed(REPOSITORY / "requirements-otel.lock", tmp_path)
