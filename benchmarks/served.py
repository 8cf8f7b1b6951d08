"""From POST to succeeded: studies on a running service, timed from outside.

python -m benchmarks.served URL [--repeats 5] [--only TEXT] --out RESULT.json

Each study is submitted once to warm the service up (step times, compiled kernels), then `--repeats` times.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson

from benchmarks.search import DENSE, machine

ENDED = frozenset({"succeeded", "failed", "cancelled"})
_WAIT_S = 60

EXAMPLES = Path(__file__).parent.parent / "openapi" / "examples"

_BOTH_32 = {
    "model_name": DENSE,
    "hardware_sku": "h200_sxm",
    "gpu_budget": 32,
    "deployment_mode": ["agg", "disagg"],
    "backend": ["vllm"],
    "router_mode": ["round_robin"],
    "planner_scaling_policy": ["disabled"],
}
_LOAD_32 = {"isl": 1024, "osl": 128, "concurrency": 256, "num_request_ratio": 10}

STUDIES: dict[str, dict[str, Any]] = {
    "agg-8-three-backends": json.loads((EXAMPLES / "three-backends.json").read_text()),
    "both-32-per-gpu": {"search_space": _BOTH_32, "workload": _LOAD_32, "goal": {"target": "throughput_per_gpu"}},
    "both-32-throughput": {"search_space": _BOTH_32, "workload": _LOAD_32, "goal": {"target": "throughput"}},
    "both-32-latency": {"search_space": _BOTH_32, "workload": _LOAD_32, "goal": {"target": "e2e_latency"}},
    "both-32-pareto": {"search_space": _BOTH_32, "workload": _LOAD_32, "goal": {"target": "pareto"}},
}


def served(client: httpx.Client, config: Mapping[str, Any], within_s: float = math.inf) -> tuple[dict[str, Any], float]:
    """A study at its end, and the seconds from before its submission to the answer that shows the end.

    One that is not done within `within_s` is cancelled. Raises: httpx.HTTPStatusError for a refusal.
    """
    began = time.perf_counter()
    answer = client.post("/studies", json=config, params={"wait": min(_WAIT_S, within_s)}).raise_for_status()
    study: dict[str, Any] = answer.json()
    while study["status"] not in ENDED:
        left_s = within_s - (time.perf_counter() - began)
        if left_s <= 0.0:
            client.post(f"/studies/{study['id']}/cancel").raise_for_status()
        wait_s = min(_WAIT_S, max(1.0, left_s))
        study = client.get(f"/studies/{study['id']}", params={"wait": wait_s}).raise_for_status().json()
    return study, time.perf_counter() - began


def measure(client: httpx.Client, name: str, repeats: int) -> dict[str, Any]:
    """One study, `repeats` times on the warm service."""
    served(client, STUDIES[name])
    ended = [served(client, STUDIES[name]) for _ in range(repeats)]
    seconds = sorted(took for _, took in ended)
    study = ended[-1][0]
    return {
        "study": name,
        "status": study["status"],
        "evaluated": study["progress"]["done"],
        "coverage": study["coverage"],
        "best_s": round(seconds[0], 3),
        "median_s": round(seconds[len(seconds) // 2], 3),
        "worst_s": round(seconds[-1], 3),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.served", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="studies whose name contains this text")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    results = []
    with httpx.Client(base_url=options.url, timeout=_WAIT_S + 30) as client:
        for name in STUDIES:
            if options.only in name:
                results.append(measure(client, name, options.repeats))
                print(results[-1], flush=True)
    options.out.write_bytes(orjson.dumps({"machine": machine(), "studies": results}, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
