"""Speed of replays with a planner in the loop: `python -m benchmarks.elastic [--trace FILE] [--runs N] [--out FILE]`.

The conversation trace on the engines of the reference trial, one at first, at most 32 GPUs, load scaling every 5 s, for two
targets; beside it a static replay on the mean number of engines. CPU milliseconds, every metric included: median of the runs.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.loads import on_trace
from benchmarks.scratch import circumstances
from tests.golden import files
from workers.cases import ReferenceCase, read_case
from workers.planner.settings import PlannerSettings, Target
from workers.replay.elastic import replay_elastic
from workers.replay.elastic_outcome import ElasticOutcome
from workers.replay.fleet import Fleet
from workers.replay.loop import replay_many
from workers.scaling import new_planner

TARGETS: tuple[Target, ...] = ("throughput", "latency")


def main() -> int:
    """Measure and print one line per target."""
    arguments = _arguments()
    ready = _case(arguments.trace)
    rows = [_measured(ready, target, arguments.runs) for target in TARGETS]
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"circumstances": circumstances(), "rows": rows}, indent=1) + "\n")
    return 0


def _measured(ready: ReferenceCase, target: Target, runs: int) -> dict[str, Any]:
    """One target: the elastic replay and its static twin."""
    settings = PlannerSettings(optimization_target=target, max_gpu_budget=32)
    outcome = _elastic(ready, settings)
    elastic_ms = _cpu_ms(partial(_elastic, ready, settings), runs)
    pool = ready.fleet.agg
    assert pool is not None
    engines = max(1, round(outcome.worker_s("agg") * 1000.0 / outcome.end_ms))
    static = Fleet(agg=replace(pool, replicas=engines))
    replay_many([(static, ready.batch)])
    static_ms = _cpu_ms(partial(replay_many, [(static, ready.batch)]), runs)
    row = {
        "target": target,
        "requests": ready.batch.num_requests,
        "ticks": outcome.num_ticks,
        "changes": len(outcome.events),
        "gpu_seconds": sum(outcome.gpu_seconds().values()),
        "elastic_ms": statistics.median(elastic_ms),
        "elastic_best_ms": min(elastic_ms),
        "static_engines": engines,
        "static_ms": statistics.median(static_ms),
    }
    print(_line(row), flush=True)
    return row


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['target']:11} {row['elastic_ms']:8.1f} ms ({row['elastic_best_ms']:.1f}), "
        f"{row['elastic_ms'] * 1e3 / row['requests']:6.2f} us per request, {row['ticks']} ticks, {row['changes']} changes, "
        f"{row['gpu_seconds']:.0f} GPU-s; static on {row['static_engines']}: {row['static_ms']:8.1f} ms"
    )


def _elastic(ready: ReferenceCase, settings: PlannerSettings) -> ElasticOutcome:
    outcome = replay_elastic(ready.fleet, ready.batch, new_planner(settings, ready.fleet))
    outcome.report()
    return outcome


def _case(trace: Path | None) -> ReferenceCase:
    """The trace on one engine of the reference trial."""
    with tempfile.TemporaryDirectory() as folder:
        path = trace or Path(folder) / "trace.jsonl"
        if trace is None:
            path.write_bytes(files.trace("mooncake_conversation.jsonl"))
        return read_case({"id": "trace", "config": on_trace(path, 1)}, Path("/"))


def _cpu_ms(call: Callable[[], object], runs: int) -> list[float]:
    found = []
    for _ in range(runs):
        started = time.process_time()
        call()
        found.append((time.process_time() - started) * 1e3)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic", description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, help="another Mooncake trace")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
