"""The dashboard's tests say what is missing before they install or start anything."""

from pathlib import Path

import pytest

from launch import browser
from launch.process import LaunchError


def test_missing_chromium_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "install", lambda lock: pytest.fail(f"installed {lock}"))
    with pytest.raises(LaunchError, match="apt-get install -y --no-install-recommends chromium"):
        browser.run_browser_tests(tmp_path, [])


def test_chromium_of_another_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "google-chrome"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser.find_chromium() == str(program)
