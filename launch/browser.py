"""The dashboard's tests: a service of their own, and a Chromium that this machine already has."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from launch.folders import REPOSITORY
from launch.install import BROWSER_LOCK, DEV_LOCK, PYTHON, install
from launch.process import LaunchError, run_in_foreground
from launch.stack import services, start_application

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TESTS = "tests/browser"


def find_chromium() -> str:
    """Path of an installed Chromium. Raises: LaunchError that says how to get one."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise LaunchError(
            "the dashboard's tests need Chromium, and none is on PATH "
            "(Debian: apt-get update && apt-get install -y --no-install-recommends chromium)"
        )
    return found


def run_browser_tests(folder: Path, arguments: Sequence[str]) -> int:
    """Run the tests against a running service on temporary data; pytest's exit code. Raises: LaunchError."""
    chromium = find_chromium()
    for lock in (DEV_LOCK, BROWSER_LOCK):
        install(lock)
    with services(folder) as stack:
        env = stack.env | {"SPICA_TEST_URL": start_application(stack), "SPICA_TEST_CHROMIUM": chromium}
        # The ordinary run leaves these tests out by an option, which an ini value given here replaces.
        words = ["-m", "pytest", "-o", "addopts=--strict-markers --strict-config", TESTS, *arguments]
        return run_in_foreground([str(PYTHON), *words], env=env, cwd=REPOSITORY)
