"""Processes that compile the kernel's two loops into a folder, so that who needs one waits, loads it and stays small.

Compiling takes hundreds of megabytes that a process never gives back, and half a minute to minutes of one core for each loop.
"""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

_log = logging.getLogger(__name__)

AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"
WITHIN_S = 1800.0
"""The longest wait for a loop: for a slow machine, and behind another process that compiles the same."""

COMPILER = ("-m", "workers.replay.kernel_compiler")
_ROOT = Path(__file__).parents[2]
_begun: dict[str, "subprocess.Popen[bytes]"] = {}


def mark(folder: Path, loop: str) -> Path:
    """The file that says that a loop was compiled into a folder."""
    return folder / f"{loop}.compiled"


def have_compiled(folder: Path, loop: str, within_s: float = WITHIN_S) -> bool:
    """Wait until a loop is in a folder, compiled by a process of its own unless it is there; whether it is.

    Who lacks one loop most likely lacks the other: on two cores that is begun as well, and nobody waits for it here. Of
    several processes that compile one loop, the first does it, and the others find it done.
    """
    if mark(folder, loop).exists():
        return True
    began = time.monotonic()
    _log.warning("compiling the replay kernel (%s) into %s: once per machine and version", loop, folder)
    try:
        for each in (AGGREGATED, DISAGGREGATED):
            if each == loop or (len(os.sched_getaffinity(0)) > 1 and not mark(folder, each).exists()):
                _begin(folder, each)
        code = _begun[loop].wait(within_s)
    except OSError as error:
        _log.warning("no process to compile with: %s", error)
        return False
    except subprocess.TimeoutExpired:
        _begun[loop].kill()
        code = _begun[loop].wait()
    _log.warning("compiling (%s) ended with exit code %d after %.0f s", loop, code, time.monotonic() - began)
    return code == 0


def _begin(folder: Path, loop: str) -> None:
    """Start the process unless this one has; it ends when this process does."""
    if loop in _begun and _begun[loop].poll() is None:
        return
    words = [sys.executable, *COMPILER, loop, str(folder), str(os.getpid())]
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    _begun[loop] = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
