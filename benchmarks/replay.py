"""Replay speed beside the peer's, in turn in one run: `python -m benchmarks.replay [--peer PATH | --alone] [--out FILE]`.

Ours: milliseconds of `replay_many` with every metric in a warm process, median of many calls. The peer's: the time it
reports for its own simulation, without process start and loading of tables, median of `--runs`. Without `--peer` the
peer is installed into `.cache/peer`. Prints a line per load; `--out` writes them as JSON with machine and commit.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.loads import Load, loads, of_size
from benchmarks.peer import installed, predict_ms
from benchmarks.scratch import circumstances
from workers.cases import read_case
from workers.replay.loop import replay_many
from workers.replay.reports import warm

_CALLS_S, _MOST_CALLS = 2.0, 50
_SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)


def main() -> int:
    """Measure every load and print the table."""
    arguments = _arguments()
    started = time.perf_counter()
    warm()
    start = {
        "warm_s": time.perf_counter() - started,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(f"kernel ready after {start['warm_s']:.2f} s, {start['rss_mb']:.0f} MB")
    peer = None if arguments.alone else arguments.peer or installed()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [load for load in loads(Path(folder)) if arguments.only in load.name]
        rows = [row for load in chosen for row in _measure(load, peer, arguments.runs)]
    sizes = [row for size in _SIZES if not arguments.only for row in _measure(of_size(size), None, 1)]
    if arguments.out is not None:
        result = {"circumstances": circumstances(), "start": start, "rows": rows, "sizes": sizes}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _measure(load: Load, peer: Path | None, runs: int) -> Iterator[dict[str, Any]]:
    """One load, a row for each number of threads: ours and the peer's in turn, `runs` times."""
    cases = [read_case({"id": load.name, "config": config, "stack": load.stack}, Path("/")) for config in load.configs]
    jobs = [(case.fleet, case.batch) for case in cases]
    first_ms = _wall_ms(lambda: replay_many(jobs))
    peer_ms: list[float] = []
    ours_ms: dict[int, list[float]] = {threads: [] for threads in load.threads}
    for _ in range(runs):
        for threads, taken in ours_ms.items():
            taken += _repeated(partial(replay_many, jobs, threads=threads), _CALLS_S / runs)
        if peer is not None and load.goal is not None:
            peer_ms.append(sum(predict_ms(peer, config) for config in load.configs))
    for threads, taken in ours_ms.items():
        row: dict[str, Any] = {
            "load": load.name if threads == 1 else f"{load.name}, {threads} threads",
            "requests": sum(case.batch.num_requests for case in cases),
            "ours_ms": statistics.median(taken),
            "ours_best_ms": min(taken),
            "first_call_ms": first_ms,
            "goal": load.goal if threads == load.threads[-1] else None,
        }
        if peer_ms:
            row |= {"peer_ms": statistics.median(peer_ms), "ratio": statistics.median(peer_ms) / row["ours_ms"]}
        print(_line(row), flush=True)
        yield row


def _repeated(call: Callable[[], object], seconds: float) -> list[float]:
    """Wall times of calls for about as long, at least one."""
    taken = [_wall_ms(call)]
    while sum(taken) < 1000.0 * seconds and len(taken) < _MOST_CALLS:
        taken.append(_wall_ms(call))
    return taken


def _wall_ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _line(row: dict[str, Any]) -> str:
    each_us = 1000.0 * row["ours_ms"] / row["requests"]
    line = f"{row['load']:48} ours {row['ours_ms']:10.3f} ms ({each_us:6.3f} us a request)"
    if "ratio" in row:
        line += f"   peer {row['peer_ms']:10.1f} ms   {row['ratio']:8.0f} x"
    if row["goal"] is not None:
        line += f"   goal {row['goal']:.0f}"
    return line


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, help="the peer's command, if it is installed already")
    parser.add_argument("--alone", action="store_true", help="measure only ours")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
