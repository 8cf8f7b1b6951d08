"""What a trial costs, by kind of traffic and mode, beside what a plan says of it.

python -m benchmarks.trial_cost [--only TEXT]

Evaluates `--trials` candidates of each study twice in this process, from all over its space; the second time, with known
step times and a compiled kernel, counts. Prints JSON: milliseconds a trial, microseconds a request, and the estimate.
"""

import argparse
import json
from typing import Any

from app.schemas.study import SmartSearchConfig
from benchmarks.scratch import circumstances
from benchmarks.search import DENSE, MOE
from benchmarks.studies import space_of
from workers.evaluate import evaluate_many
from workers.plan import plan
from workers.verdict import Verdict

_LENGTHS = {"isl": 1024, "osl": 128}
_PREFIXES = {"shared_prefix_ratio": 0.5, "num_prefix_groups": 8}
_TURNS = {"turns_per_session": 4, "inter_turn_delay_ms": 1000.0}

LOADS: dict[str, dict[str, Any]] = {
    "closed": {**_LENGTHS, "concurrency": 256, "num_request_ratio": 10},
    "closed-long": {"isl": 4000, "osl": 1000, "concurrency": 64, "num_request_ratio": 10},
    "closed-many": {**_LENGTHS, "concurrency": 1000, "num_request_ratio": 20},
    "kv-load": {**_LENGTHS, "kv_load_ratio": 0.5, "num_request_ratio": 3},
    "constant": {**_LENGTHS, "request_rate": 20, "num_request_ratio": 100},
    "poisson": {**_LENGTHS, "request_rate": 20, "num_request_ratio": 100, "arrival": "poisson"},
    "prefixes": {**_LENGTHS, **_PREFIXES, "concurrency": 256, "num_request_ratio": 10},
    "turns": {**_LENGTHS, **_TURNS, "concurrency": 64, "num_request_ratio": 10},
}

SPACES: dict[str, dict[str, Any]] = {
    "agg": {},
    "disagg": {"deployment_mode": ["disagg"]},
    "agg-routed": {"router_mode": ["kv_router"], "router_temperature": [0.0]},
    "disagg-routed": {"deployment_mode": ["disagg"], "router_mode": ["kv_router"], "router_temperature": [0.0]},
    "agg-scaled": {"planner_scaling_policy": ["load_180_5"]},
    "moe-agg": {"model_name": MOE},
}


def study(space: str, load: str) -> SmartSearchConfig:
    """A study over one kind of deployments under one load."""
    common = {
        "model_name": DENSE,
        "hardware_sku": "h200_sxm",
        "gpu_budget": 8,
        "deployment_mode": ["agg"],
        "backend": ["vllm", "sglang"],
        "router_mode": ["round_robin"],
        "planner_scaling_policy": ["disabled"],
    }
    return SmartSearchConfig.model_validate({"search_space": {**common, **SPACES[space]}, "workload": LOADS[load]})


def replayed(config: SmartSearchConfig, num_trials: int) -> list[Verdict]:
    """Verdicts of trials from all over the space."""
    space = space_of(config).outline.space
    branch = space.branches[0]
    indices = range(0, branch.size, max(1, branch.size // num_trials))
    deployments = [space.deployment(0, index) for index in indices][:num_trials]
    list(evaluate_many(config, deployments, None, lambda: False))
    return [verdict for verdict in evaluate_many(config, deployments, None, lambda: False) if verdict.metrics]


def measure(space: str, load: str, num_trials: int) -> dict[str, Any]:
    """Measured and estimated cost of a trial."""
    config = study(space, load)
    verdicts, known = replayed(config, num_trials), plan(config)
    wall_s = sum(verdict.wall_s for verdict in verdicts)
    requests = sum(float(verdict.load["num_requests"] or 0) for verdict in verdicts)
    planned_s = known.estimated_seconds / known.budget.expected_trials
    return {
        "study": f"{space} {load}",
        "trial_ms": round(1000 * wall_s / len(verdicts), 3),
        "requests": round(requests / len(verdicts)),
        "request_us": round(1e6 * wall_s / requests, 3),
        "estimated_trial_ms": round(1000 * planned_s, 3),
        "estimated_ratio": round(planned_s * len(verdicts) / wall_s, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trial_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="studies whose name contains this text")
    parser.add_argument("--trials", type=int, default=24)
    options = parser.parse_args()
    names = [(space, load) for space in SPACES for load in LOADS if options.only in f"{space} {load}"]
    rows = [measure(*name, options.trials) for name in names]
    print(json.dumps({"circumstances": circumstances(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
