"""Does scaling pay? Every static and every scaled deployment of one trace, and what a replay of each costs.

python -m benchmarks.planner [TRACE.jsonl[.gz]] [--gpus 32] [--ttft-ms 2000] [--itl-ms 50] [--out RESULT.json]

Aggregated vLLM engines of every width, round robin, one batching; every policy that the goal can use. Without a trace, the
conversation trace. In this process, without database or broker. Prints the best of each policy, then the verdict.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.schemas.deployment import Deployment
from app.schemas.presets import SCALING_POLICIES
from app.schemas.study import SmartSearchConfig
from benchmarks.scratch import circumstances
from benchmarks.stored_trace import stored_trace
from tests.golden import files
from workers.evaluate import evaluate_many
from workers.replay.reports import warm
from workers.search.forecasts import chosen_predictors, predictor_fields
from workers.search.study_space import study_space
from workers.traffic.stored_rows import stored_rows
from workers.traffic.workload import TraceFile
from workers.verdict import Verdict

STATIC = "disabled"
WINDOW_S = 180


@dataclass(frozen=True, slots=True)
class Found:
    """One evaluated deployment. score: 0 where there is none, see the verdict's reason."""

    deployment: Deployment
    verdict: Verdict

    @property
    def score(self) -> float:
        """Objective; more is better."""
        return self.verdict.score or 0.0

    def document(self) -> dict[str, Any]:
        """What is shown of it."""
        metrics, role = self.verdict.metrics, self.deployment.agg
        assert role is not None
        return {
            "tp": role.shape.tp,
            "engines_at_first": role.replicas,
            "score": self.score,
            "gpus_on_average": metrics.get("avg_gpu") or float(self.deployment.used_gpus),
            "changes": int(metrics.get("num_scale_events") or 0),
            "good_share": (metrics.get("goodput_completed_requests") or 0.0) / (metrics.get("num_requests") or 1),
        }


def configuration(arguments: argparse.Namespace, policy: str) -> SmartSearchConfig:
    """The study of one policy: everything pinned but width and replicas."""
    space = {
        "model_name": "Qwen/Qwen3-32B-FP8",
        "hardware_sku": "h200_sxm",
        "gpu_budget": arguments.gpus,
        "deployment_mode": ["agg"],
        "backend": ["vllm"],
        "agg_max_num_batched_tokens": [8192],
        "agg_max_num_seqs": [256],
        "router_mode": ["round_robin"],
        "planner_scaling_policy": [policy],
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
    verdicts = evaluate_many(config, deployments, trace, lambda: False)
    return [Found(*pair) for pair in zip(deployments, verdicts, strict=True)]


def course(trace: TraceFile) -> dict[str, float]:
    """How much a planner could follow: requests in windows of `WINDOW_S`, the last and incomplete one left out."""
    arrival_ms = stored_rows(trace.sha256, trace.path).timestamp_ms
    count = np.bincount((arrival_ms // (1000 * WINDOW_S)).astype(int))[:-1]
    found = {"window_s": WINDOW_S, "least": int(count.min()), "mean": float(count.mean()), "most": int(count.max())}
    print(
        f"requests in {WINDOW_S} s: at least {found['least']}, {found['mean']:.1f} on average, at most {found['most']}"
    )
    return found


def policies(arguments: argparse.Namespace, trace: TraceFile) -> Iterator[dict[str, Any]]:
    """One policy after the other: its best candidate of each width, best first, and what a replay costs."""
    for policy in SCALING_POLICIES:
        found = evaluated(configuration(arguments, policy), trace)
        requests = max(int(each.verdict.metrics.get("num_requests") or 0) for each in found)
        times_s = [each.verdict.wall_s for each in found]
        best_of_width: dict[int, dict[str, Any]] = {}
        for each in sorted((each.document() for each in found), key=lambda row: -float(row["score"])):
            best_of_width.setdefault(each["tp"], each)
        row = {
            "policy": policy,
            "candidates": len(found),
            "without_score": sum(each.verdict.score is None for each in found),
            "best_of_width": list(best_of_width.values()),
            "us_a_request": 1e6 * statistics.median(times_s) / requests,
            "seconds": sum(times_s),
        }
        print(shown(row), flush=True)
        yield row


def shown(row: dict[str, Any]) -> str:
    """A policy in one line for itself, and one for each width."""
    head = f"{row['policy']}: {row['candidates']} candidates, {row['seconds']:.1f} s, {row['us_a_request']:.2f} us a request"
    return "\n".join([head, *(f"  {width(each)}" for each in row["best_of_width"])])


def width(best: dict[str, Any]) -> str:
    """The best candidate of one width."""
    return (
        f"{best['score']:9.3f}  tp {best['tp']:2} x {best['engines_at_first']:2}, {best['gpus_on_average']:6.2f} GPUs on "
        f"average, {best['changes']:4} changes, {best['good_share']:6.1%} of the requests good"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, nargs="?", default=files.TRACES / "mooncake_conversation.jsonl.gz")
    parser.add_argument("--gpus", type=int, default=32)
    parser.add_argument("--ttft-ms", type=float, default=2000.0)
    parser.add_argument("--itl-ms", type=float, default=50.0)
    parser.add_argument("--startup-s", type=float, default=0.0)
    parser.add_argument("--target", default="goodput_per_gpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    warm()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trace = stored_trace(options.trace, Path(folder))
        windows = course(trace)
        rows = list(policies(options, trace))
    best = {row["policy"]: row["best_of_width"][0] for row in rows}
    static = best.pop(STATIC)["score"]
    policy = max(best, key=lambda name: float(best[name]["score"]))
    ratio = best[policy]["score"] / static
    print(f"best static {static:.3f}, best scaled {best[policy]['score']:.3f} ({policy}): {ratio:.3f} of it")
    print(f"{time.perf_counter() - started:.1f} s in all")
    if options.out is not None:
        document = {"circumstances": circumstances(), "windows": windows, "policies": rows, "scaled_over_static": ratio}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
