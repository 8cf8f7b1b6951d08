"""Speed of replays with a planner in the loop: `python -m benchmarks.elastic [--trace FILE] [--runs N]`.

The conversation trace on the engines of the reference trial, one at first, at most 32 GPUs, load scaling every 5 s, for two
targets; beside it a static replay on the mean number of engines. CPU milliseconds, median of the runs, best in brackets.
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
    for target in TARGETS:
        settings = PlannerSettings(optimization_target=target, max_gpu_budget=32)
        outcome = _elastic(ready, settings)
        elastic_ms = _cpu_ms(lambda settings=settings: _elastic(ready, settings), arguments.runs)  # type: ignore[misc]
        pool = ready.fleet.agg
        assert pool is not None
        engines = max(1, round(outcome.worker_s("agg") * 1000.0 / outcome.end_ms))
        static = Fleet(agg=replace(pool, replicas=engines))
        static_ms = _cpu_ms(lambda static=static: replay_many([(static, ready.batch)]), arguments.runs)  # type: ignore[misc]
        middle, requests = statistics.median(elastic_ms), ready.batch.num_requests
        print(
            f"{target:11} {middle:8.1f} ms ({min(elastic_ms):.1f}), {middle * 1e3 / requests:6.2f} us per request, "
            f"{outcome.num_ticks} ticks, {len(outcome.events)} changes, {sum(outcome.gpu_seconds().values()):.0f} GPU-s; "
            f"static on {engines}: {statistics.median(static_ms):8.1f} ms ({min(static_ms):.1f})",
            flush=True,
        )
    return 0


def _elastic(ready: ReferenceCase, settings: PlannerSettings) -> ElasticOutcome:
    outcome = replay_elastic(ready.fleet, ready.batch, new_planner(settings, ready.fleet))
    outcome.report()
    return outcome


def _case(trace: Path | None) -> ReferenceCase:
    """The trace on one engine of the reference trial."""
    config = json.loads(json.dumps(files.cases("reference-trial")[0]["config"]))
    with tempfile.TemporaryDirectory() as folder:
        path = trace or Path(folder) / "trace.jsonl"
        if trace is None:
            packed = files.TRACES / "mooncake_conversation.jsonl.gz"
            path.write_bytes(gzip.decompress(packed.read_bytes()))
        config["traffic"] = {
            "source": {"type": "trace", "paths": [str(path.resolve())], "format": "mooncake"},
            "load": {"type": "trace_timestamps"},
        }
        config["engine"]["workers"]["aggregated"]["parallelism"]["replicas"] = 1
        return read_case({"id": "trace", "config": config}, Path("/"))


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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
