"""Does `auto` find what brute force finds, and how long does either take?

python -m benchmarks.search [--only TEXT] [--no-brute-force] --out RESULT.json

Four spaces: dense and MoE, 8 and 32 GPUs, scalar and Pareto, one mode and both. Exits 1 when an answer differs.
"""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from app.schemas.study import SmartSearchConfig
from benchmarks.studies import Study, brute_force, candidates, run
from workers.replay.reports import warm
from workers.search.pareto import front_of
from workers.search.score import ranked

DENSE, MOE = "Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-30B-A3B-FP8"
CLOSED = {"isl": 1024, "osl": 128, "concurrency": 256, "num_request_ratio": 10.0}
OPEN = {"isl": 1024, "osl": 128, "request_rate": 40.0, "num_request_ratio": 16.0}


def _space(model: str, gpus: int, **more: Any) -> dict[str, Any]:
    return {
        "model_name": model,
        "hardware_sku": "h200_sxm",
        "gpu_budget": gpus,
        "deployment_mode": ["agg"],
        "router_mode": ["round_robin"],
        "planner_scaling_policy": ["disabled"],
        **more,
    }


SPACES: dict[str, dict[str, Any]] = {
    "dense-8-agg-throughput": {
        "search_space": _space(DENSE, 8, backend=["vllm", "sglang", "trtllm"]),
        "workload": CLOSED,
        "goal": {"target": "throughput"},
    },
    "moe-8-agg-pareto": {
        "search_space": _space(MOE, 8, backend=["vllm", "trtllm"]),
        "workload": CLOSED,
        "goal": {"target": "pareto"},
    },
    "dense-32-agg-latency": {
        "search_space": _space(DENSE, 32),
        "workload": OPEN,
        "goal": {"target": "e2e_latency"},
    },
    "dense-8-both-per-gpu": {
        "search_space": _space(DENSE, 8, deployment_mode=["agg", "disagg"]),
        "workload": CLOSED,
        "goal": {"target": "throughput_per_gpu"},
    },
}


def answer(config: SmartSearchConfig, study: Study) -> Any:
    """What the study found: the winner, or the values of the front (twins of its members are one point)."""
    found = candidates(study)
    if config.goal.is_pareto:
        return sorted({member.values for member in front_of(config.goal.objectives, found)})
    return ranked(found)[0].canonical if found else None


def measure(name: str, document: dict[str, Any], with_brute_force: bool) -> dict[str, Any]:
    """One space: both answers, counts and seconds, twice for `auto` (the second time with known step times)."""
    config = SmartSearchConfig.model_validate(document)
    first, ours = run(config), run(config)
    coverage = ours.coverage
    assert coverage is not None
    result: dict[str, Any] = {
        "space": name,
        "total": coverage.total,
        "evaluated": coverage.evaluated,
        "exhaustive": coverage.exhaustive,
        "auto_s": round(ours.seconds, 3),
        "auto_cold_s": round(first.seconds, 3),
        "answer": answer(config, ours),
    }
    if with_brute_force:
        theirs = brute_force(config)
        result |= {"brute_force_s": round(theirs.seconds, 3), "agrees": answer(config, theirs) == result["answer"]}
    return result


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    load = os.getloadavg()[0]
    return {"cpus": os.cpu_count(), "load": load, "python": platform.python_version(), "commit": commit.stdout.strip()}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 when every answer agrees."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--only", default="", help="spaces whose name contains this text")
    parser.add_argument("--no-brute-force", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    warm()
    results = []
    for name, document in SPACES.items():
        if options.only in name:
            results.append(measure(name, document, not options.no_brute_force))
            print({key: value for key, value in results[-1].items() if key != "answer"}, flush=True)
    options.out.write_bytes(orjson.dumps({"machine": machine(), "spaces": results}, option=orjson.OPT_INDENT_2))
    return int(any(not result.get("agrees", True) for result in results))


if __name__ == "__main__":
    sys.exit(main())
