"""What could keep the service from running here, looked at before it fails: `run.py doctor`."""

import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple

from launch.browser import NAMES
from launch.folders import REPOSITORY, data_folder, open_data_folder
from launch.install import PYTHON, RUNTIME_LOCK, is_installed
from launch.process import LaunchError, run
from launch.servers import external_env
from launch.stack import DEFAULT_PORT, answers, api_port

DISK_BYTES = 3 << 30
MEMORY_BYTES = 2 << 30


class Finding(NamedTuple):
    """One thing looked at. `is_needed`: the service cannot run while it is not fine."""

    name: str
    is_fine: bool
    words: str
    is_needed: bool = True


def machine() -> Finding:
    """Linux on x86-64."""
    return Finding("machine", platform.machine() == "x86_64" and sys.platform == "linux", platform.platform())


def python() -> Finding:
    """Python 3.11 or newer."""
    is_fine = sys.version_info >= (3, 11)
    return Finding("python", is_fine, f"{platform.python_version()}{'' if is_fine else ': 3.11 or newer is needed'}")


def packages() -> Finding:
    """The locked packages are in .venv, or pip is there to fetch them."""
    if is_installed(RUNTIME_LOCK):
        return Finding("packages", True, "as the lock says")
    has_pip = importlib.util.find_spec("pip") is not None
    words = "not installed yet; the next command does it" if has_pip else "no pip (Debian: apt-get install python3-pip)"
    return Finding("packages", has_pip, words)


def disk() -> Finding:
    """Room for the installation and a database."""
    free = shutil.disk_usage(REPOSITORY).free
    return Finding("disk", free >= DISK_BYTES, f"{free >> 30} GiB free, {DISK_BYTES >> 30} GiB wanted")


def memory() -> Finding:
    """Memory for a worker per core."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("memory", total >= MEMORY_BYTES, f"{total >> 30} GiB, {MEMORY_BYTES >> 30} GiB wanted")


def data() -> Finding:
    """The data folder can be used, and no other run holds it."""
    try:
        folder = data_folder()
        above = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(above, os.W_OK):
            return Finding("data folder", False, f"{above} cannot be written; set DATA_DIR")
        if (folder / "lock").exists():
            open_data_folder(folder).close()
    except LaunchError as fault:
        return Finding("data folder", False, str(fault), is_needed=False)
    return Finding("data folder", True, str(folder))


def port() -> Finding:
    """The port of the API is free, or the service itself has it."""
    try:
        wanted = int(os.environ["PORT"]) if os.environ.get("PORT") else DEFAULT_PORT
        api_port()
    except (LaunchError, ValueError) as fault:
        return Finding("port", False, str(fault))
    with socket.socket() as probe:
        is_free = probe.connect_ex(("127.0.0.1", wanted)) != 0
    if is_free:
        return Finding("port", True, f"{wanted} is free")
    if answers(f"http://127.0.0.1:{wanted}/readyz"):
        return Finding("port", True, f"a service on {wanted} is ready")
    words = f"{wanted} is taken by another program" + ("" if os.environ.get("PORT") else "; another one will be used")
    return Finding("port", not os.environ.get("PORT"), words)


def servers() -> Finding:
    """DATABASE_URL and REDIS_URL, if both are set, name servers that answer."""
    given = external_env(os.environ)
    if len(given) < 2:
        return Finding("servers", True, f"private ones, except {', '.join(given)}" if given else "private ones")
    if not PYTHON.exists():
        return Finding("servers", True, "given, and not tried before the packages are installed", is_needed=False)
    asked = run([str(PYTHON), "-m", "launch.probe"], env={**os.environ}, cwd=REPOSITORY)
    return Finding("servers", asked.returncode == 0, asked.stdout.strip())


def chromium() -> Finding:
    """Only the dashboard's tests need one."""
    found = next((name for name in NAMES if shutil.which(name)), None)
    return Finding("chromium", found is not None, found or "none; only test-browser needs one", is_needed=False)


CHECKS: tuple[Callable[[], Finding], ...] = (machine, python, packages, disk, memory, data, port, servers, chromium)


def examine() -> int:
    """Print every finding; 1 if something that is needed is not fine."""
    findings = [check() for check in CHECKS]
    for finding in findings:
        mark = "ok  " if finding.is_fine else "BAD " if finding.is_needed else "note"
        print(f"{mark} {finding.name:<12} {finding.words}")
    bad = [finding.name for finding in findings if finding.is_needed and not finding.is_fine]
    print(f"not ready: {', '.join(bad)}" if bad else "ready: python3 run.py demo")
    return 1 if bad else 0
