"""The virtual environments: made once, filled from a hash-pinned lock, skipped while the lock is unchanged."""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from launch.folders import REPOSITORY
from launch.process import LaunchError, run

VENV = REPOSITORY / ".venv"
PYTHON = VENV / "bin" / "python"
RUNTIME_LOCK = REPOSITORY / "requirements.lock"
DEV_LOCK = REPOSITORY / "requirements-dev.lock"
BROWSER_LOCK = REPOSITORY / "requirements-browser.lock"
INSTALLER_LOCK = REPOSITORY / "requirements-uv.lock"
EXTRAS = {
    "aiconfigurator": VENV,
    "otel": VENV,
    "predictors": VENV,
    "vizier": REPOSITORY / ".venv-vizier",
}
"""Optional extras, and the environment that each goes into; vizier's pins do not agree with ours (ADR 8)."""


def install_extra(name: str) -> None:
    """Install an optional extra from its own lock. Raises: LaunchError, see install."""
    install(REPOSITORY / f"requirements-{name}.lock", EXTRAS[name])


def install(lock: Path, venv: Path = VENV) -> None:
    """Make an environment hold what `lock` names; nothing to do when a stamp says that it does.

    Raises: LaunchError when neither uv nor pip could install it.
    """
    (REPOSITORY / ".cache").mkdir(exist_ok=True)
    with (REPOSITORY / ".cache" / "install.lock").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # two commands on a fresh clone: the second waits, then finds it done
        if not is_installed(lock, venv) and not (lock == RUNTIME_LOCK and is_installed(DEV_LOCK)):
            install_now(lock, venv)


def install_now(lock: Path, venv: Path) -> None:
    """Install whatever was there before. Raises: LaunchError, see install."""
    begun = time.monotonic()
    make_venv(venv)
    print(f"installing {lock.name} into {venv.name} ...", flush=True)
    tool = "uv" if install_with_uv(lock, venv) else "pip"
    if tool == "pip":
        install_with_pip(lock, venv)
    stamp(lock, venv).write_text(digest(lock))
    print(f"installed with {tool} in {time.monotonic() - begun:.1f} s", flush=True)


def digest(lock: Path) -> str:
    """What decides whether an installation is still the right one: every lock's content and the interpreter."""
    content = b"".join(path.read_bytes() for path in (RUNTIME_LOCK, lock))
    return hashlib.sha256(content).hexdigest()


def python_of(venv: Path) -> Path:
    """The interpreter of an environment."""
    return venv / "bin" / "python"


def stamp(lock: Path, venv: Path = VENV) -> Path:
    """The file that remembers the digest a finished installation had."""
    return venv / f"{lock.name}.installed"


def is_installed(lock: Path, venv: Path = VENV) -> bool:
    """True when `lock`, as it is now, was installed to the end, and its interpreter still runs."""
    remembered = stamp(lock, venv)
    return python_of(venv).exists() and remembered.exists() and remembered.read_text() == digest(lock)


def make_venv(venv: Path) -> None:
    """An empty environment on CPython 3.11, the version the lock was resolved for; newer ones as a second choice."""
    if python_of(venv).exists():
        return
    shutil.rmtree(venv, ignore_errors=True)
    base = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11") or sys.executable
    made = run([base, "-m", "venv", "--without-pip", str(venv)])
    if made.returncode != 0:
        raise LaunchError(f"{base} -m venv failed (Debian: apt-get install python3-venv):\n{made.stdout}")


def pip_command(venv: Path) -> list[str]:
    """The host's pip aimed at an environment, which spares a second pip; else the one that ensurepip can put there."""
    python = str(python_of(venv))
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--python", python]
    ensured = run([python, "-m", "ensurepip"])
    if ensured.returncode != 0:
        raise LaunchError(f"no pip here (Debian: apt-get install python3-pip):\n{ensured.stdout}")
    return [python, "-m", "pip"]


def install_with_uv(lock: Path, venv: Path) -> bool:
    """True when uv, itself fetched by pip, installed the lock; False (and a note) when pip has to do it."""
    uv = venv / "bin" / "uv"
    if not uv.exists():
        fetched = run([*pip_command(venv), "install", "-q", "--no-deps", "--require-hashes", "-r", str(INSTALLER_LOCK)])
        if fetched.returncode != 0:
            print(f"uv could not be fetched, pip alone then: {last_line(fetched)}", flush=True)
            return False
    target = ["--python", str(python_of(venv))]
    done = run(
        [str(uv), "pip", "install", "-q", *target, "--no-deps", "--require-hashes", "-r", str(lock)],
        env=os.environ | {"UV_LINK_MODE": "copy"},
    )
    if done.returncode != 0:
        print(f"uv could not install the lock, pip will: {last_line(done)}", flush=True)
    return done.returncode == 0


def install_with_pip(lock: Path, venv: Path) -> None:
    """The same lock with pip. Raises: LaunchError with pip's own words."""
    done = run([*pip_command(venv), "install", "-q", "--no-deps", "--require-hashes", "-r", str(lock)])
    if done.returncode != 0:
        raise LaunchError(f"pip could not install {lock.name}:\n{done.stdout}")


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The line of an output most likely to say why."""
    return (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1].strip()


def site_packages() -> Path:
    """The folder in .venv that packages are installed into."""
    return next((VENV / "lib").glob("python3*/site-packages"))
