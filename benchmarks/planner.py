"""Does scaling pay? The best static and the best scaled deployments of one trace, and what a replay of each costs.

python -m benchmarks.planner TRACE.jsonl[.gz] [--gpus 32] [--ttft-ms 2000] [--itl-ms 50] [--target goodput_per_gpu]

Aggregated vLLM engines of every width, round robin, one batching; every policy that the goal can use. In this process,
without database or broker. Each line: objective, GPUs at first and on average, what it is.
"""

import argparse
import gzip
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.schemas.deployment import Deployment
from app.schemas.status import TrialStatus
from app.schemas.study import SmartSearchConfig
from tests.unit.traces.contents import stored
from workers.evaluate import evaluate_many
from workers.search.forecasts import chosen_predictors, predictor_fields
from workers.search.planners import scales
from workers.search.study_space import study_space
from workers.traffic.workload import TraceFile
from workers.verdict import Verdict

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Found:
    """One evaluated deployment."""

    deployment: Deployment
    verdict: Verdict

    @property
    def is_scaled(self) -> bool:
        """Whether a planner scales it."""
        return scales(self.deployment.planner)

    def line(self) -> str:
        """What is shown of it."""
        metrics, role = self.verdict.metrics, self.deployment.agg
        assert role is not None
        planner = self.deployment.planner or {}
        loops = [name for name in ("throughput", "load") if planner.get(f"enable_{name}_scaling")]
        seconds = [f"{name} {planner[f'{name}_adjustment_interval_seconds']} s" for name in loops]
        what = f"tp {role.shape.tp} x {role.replicas}, {' and '.join(seconds) or 'static'}"
        average = metrics.get("avg_gpu") or float(self.deployment.used_gpus)
        events = metrics.get("num_scale_events") or 0
        return f"{self.verdict.score or 0:12.4f} {self.deployment.used_gpus:4} {average:8.3f} {events:6.0f}  {what}"


def configuration(arguments: argparse.Namespace) -> SmartSearchConfig:
    """The study: everything pinned but width, replicas and policy."""
    space = {
        "model_name": "Qwen/Qwen3-32B-FP8",
        "hardware_sku": "h200_sxm",
        "gpu_budget": arguments.gpus,
        "deployment_mode": ["agg"],
        "backend": ["vllm"],
        "agg_max_num_batched_tokens": [8192],
        "agg_max_num_seqs": [256],
        "router_mode": ["round_robin"],
        "planner_fpm_sampling": ["default"],
        "planner_load_sensitivity": ["default"],
        "load_predictor_candidates": ["constant_last", "kalman_default_raw", "kalman_reactive_raw"],
        "startup_time": arguments.startup_s,
    }
    goal = {"target": arguments.target, "sla": {"ttft_ms": arguments.ttft_ms, "itl_ms": arguments.itl_ms}}
    document = {"search_space": space, "workload": {"trace_path": "trace"}, "goal": goal}
    return SmartSearchConfig.model_validate(document)


def evaluated(config: SmartSearchConfig, trace: TraceFile) -> list[Found]:
    """Every candidate."""
    space = study_space(config, predictor_fields(chosen_predictors(config, trace)))
    deployments = [
        space.deployment(number, index) for number, branch in enumerate(space.branches) for index in range(branch.size)
    ]
    found = []
    for deployment, verdict in zip(deployments, evaluate_many(config, deployments, trace, lambda: False), strict=True):
        found.append(Found(deployment, verdict))
        if verdict.status != TrialStatus.FEASIBLE:
            print(f"{verdict.status}: {verdict.reason}", flush=True)
    return found


def show(title: str, found: Sequence[Found]) -> None:
    """The best of a kind, and the cost of a replay."""
    ranked = sorted(found, key=lambda each: (-(each.verdict.score or 0.0), each.deployment.used_gpus))
    print(f"\n{title}: {len(found)} candidates\n   objective GPUs   avg_gpu events")
    for each in ranked[:SHOWN]:
        print(each.line())
    times = sorted(each.verdict.wall_s for each in found)
    requests = found[0].verdict.metrics["num_requests"] or 1
    print(
        f"median replay {times[len(times) // 2] * 1e3:.1f} ms, {times[len(times) // 2] / requests * 1e6:.2f} us a request"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--gpus", type=int, default=32)
    parser.add_argument("--ttft-ms", type=float, default=2000.0)
    parser.add_argument("--itl-ms", type=float, default=50.0)
    parser.add_argument("--startup-s", type=float, default=0.0)
    parser.add_argument("--target", default="goodput_per_gpu")
    options = parser.parse_args(arguments)
    content = options.trace.read_bytes()
    text = gzip.decompress(content) if options.trace.suffix == ".gz" else content
    with tempfile.TemporaryDirectory() as folder:
        trace: Any = stored(Path(folder), text)
        started = time.perf_counter()
        found = [each for each in evaluated(configuration(options), trace) if each.verdict.score is not None]
    show("static", [each for each in found if not each.is_scaled])
    show("scaled", [each for each in found if each.is_scaled])
    print(f"\n{time.perf_counter() - started:.1f} s in all")


if __name__ == "__main__":
    main()
