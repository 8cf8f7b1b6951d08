"""Children end with their parent, also when it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.folders import REPOSITORY
from launch.process import Child, LaunchError, Program

PARENT = """
import sys, time
from pathlib import Path
from launch.process import Child, Program
folder = Path(sys.argv[1])
child = Child(Program("sleeper", ["sleep", "600"], {"PATH": "/usr/bin:/bin"}, folder, folder / "log"))
print(child.popen.pid, flush=True)
time.sleep(600)
"""


def program(folder: Path, *argv: str, stop_within_s: float = 5.0) -> Program:
    return Program("tried", argv, dict(os.environ), folder, folder / "log", stop_within_s=stop_within_s)


def is_running(pid: int) -> bool:
    """False for a process that is gone or waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pid: int) -> bool:
    for _ in range(200):
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


def test_child_of_a_killed_parent_is_gone(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    assert wait_gone(pid)


def test_child_that_ignores_its_stop_signal_is_killed(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    child = Child(program(tmp_path, sys.executable, "-c", deaf, stop_within_s=0.2))
    child.wait_until(lambda _pid: "deaf" in (tmp_path / "log").read_text(), within_s=30)
    child.ask_to_stop()
    child.wait_stopped()
    assert child.popen.returncode == -signal.SIGKILL


def test_child_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    child = Child(program(tmp_path, sys.executable, "-c", "import sys; sys.exit('port is taken')"))
    with pytest.raises(LaunchError, match=r"(?s)tried ended with exit code 1.*port is taken"):
        child.wait_until(lambda _pid: False, within_s=30)
