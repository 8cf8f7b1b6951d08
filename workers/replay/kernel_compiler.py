"""Compiles one loop of the kernel and what goes with it, by tiny replays: `python -m workers.replay.kernel_compiler LOOP
FOLDER PARENT`, as `kernel_process` starts it.

One process at a time compiles a loop; the others wait, and then find it done.
"""

import ctypes
import fcntl
import os
import signal
import sys
from pathlib import Path

from workers.replay.kernel_process import AGGREGATED, mark

_PR_SET_PDEATHSIG = 1
_NICE_IN_BACKGROUND = 5


def main() -> None:
    """Run the command."""
    loop, folder, parent = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    _die_with_parent(parent)
    if loop != AGGREGATED:
        os.nice(_NICE_IN_BACKGROUND)  # Few ask for it at once; the first study should have the core.
    with (folder / f".{loop}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not mark(folder, loop).exists():
            _compile(loop)
            mark(folder, loop).touch()


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _compile(loop: str) -> None:
    # Imported by who compiles: a process that waits for its turn is a bare interpreter.
    from workers.replay import compiled, reports

    compiled.compile_here()
    if loop == AGGREGATED:
        reports.warm()
    else:
        _replay_disaggregated()


def _replay_disaggregated() -> None:
    import numpy as np

    from workers.replay.fleet import Fleet, Pool
    from workers.replay.loop import replay
    from workers.timing.fixed import FixedTimes
    from workers.traffic.requests import RequestBatch

    times = FixedTimes(1.0, 1.0)
    prefill = Pool("prefill", "vllm", 1, 1, 1, 8, 16, 64, 4, times)
    decode = Pool("decode", "vllm", 1, 1, 1, 8, 16, 64, 4, times)
    one, start = np.ones(1, dtype=np.int64), np.zeros(1)
    for in_flight_cap in (None, 1):  # by events, and by counters
        batch = RequestBatch(start, start, one, one, 0 * one, 0 * one, in_flight_cap)
        replay(Fleet(prefill=prefill, decode=decode), batch)


if __name__ == "__main__":
    main()
