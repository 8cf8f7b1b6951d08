"""Our search against the peer's on the same space: is our best at least as good, in the peer's own simulator?

python -m benchmarks.recommend SEARCHES.json URL [--peer COMMAND [--run-peer]] [--only TEXT] --out RESULT.json

Reads a file of the peer's searches with their candidates and wall seconds (whole process), and submits each to the service at
URL: once to warm it up, then `--repeats` times, of which the median counts. With --peer our winner, or members of our front,
are replayed there and judged by its metrics; without it, by ours. With --run-peer the peer searches in this very run too,
and its seconds count instead of the recorded ones. Exits 1 when the peer found something better, or was not beaten by a
factor of 100.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from app.schemas.deployment import Deployment, RoleDeployment
from app.schemas.study import SmartSearchConfig
from benchmarks.fidelity import load_json
from benchmarks.search import machine
from benchmarks.served import served
from workers.fleets import plan_run
from workers.search.hypervolume import hypervolume
from workers.search.score import objectives

_MODES = {"aggregated": "agg", "disaggregated": "disagg"}
_MEMBERS = 8
"""Members of a front that the peer replays: evenly spread, both ends included."""

_FRONT, _FACTOR = 500, 100

_ROLES = {"agg": "aggregated", "prefill": "prefill", "decode": "decode"}


class Found(NamedTuple):
    """A candidate of ours."""

    deployment: Deployment
    objectives: tuple[float, ...]


def config_of(search: Mapping[str, Any], with_disagg: bool) -> SmartSearchConfig:
    """The peer's search as a study: its model, hardware, backends, traffic and budget; our own defaults for batching."""
    asked, engine, wanted = search["config"], search["config"]["engine"], search["config"]["optimization"]
    modes = [_MODES[name] for name in choices(engine["mode"])]
    return SmartSearchConfig.model_validate(
        {
            "search_space": {
                "model_name": engine["model"],
                "hardware_sku": engine["hardware"],
                "gpu_budget": wanted["constraints"]["max_candidate_gpus"],
                "deployment_mode": [mode for mode in modes if with_disagg or mode == "agg"],
                "backend": choices(engine["backend"]),
                "router_mode": ["round_robin"],
                "planner_scaling_policy": ["disabled"],
            },
            "workload": _workload(asked["traffic"]),
            "goal": {"target": wanted["target"]},
        }
    )


def choices(knob: Any) -> list[Any]:
    """The values of a knob, pinned or searched."""
    return list(knob["choices"]) if isinstance(knob, dict) else [knob]


def _workload(traffic: Mapping[str, Any]) -> dict[str, Any]:
    load, stop = traffic["load"], traffic["stop"]
    lengths = {"isl": traffic["source"]["input_tokens"], "osl": traffic["source"]["output_tokens"]}
    if load["type"] == "concurrency":
        cap = load["concurrency"]
        return {**lengths, "concurrency": cap, "num_request_ratio": stop["requests"] / cap}
    fractions = choices(load["fraction"])
    ratio = [min(fractions), max(fractions)] if len(fractions) > 1 else fractions[0]
    return {**lengths, "kv_load_ratio": ratio, "num_request_ratio": stop["requests_per_load_unit"]}


def peer_config(config: SmartSearchConfig, told: Found) -> dict[str, Any]:
    """Our candidate as a prediction of the peer."""
    deployment = told.deployment
    load = dict(plan_run(config.workload, deployment, None).load)
    return {
        "traffic": {
            "source": {
                "type": "synthetic",
                "input_tokens": config.workload.isl,
                "output_tokens": config.workload.osl,
            },
            "load": {"type": "concurrency", "concurrency": int(load["concurrency"] or 1)},
            "stop": {"requests": int(load["num_requests"] or 1)},
        },
        "engine": {
            "mode": {"agg": "aggregated", "disagg": "disaggregated"}[deployment.mode],
            "model": deployment.model_name,
            "hardware": deployment.hardware_sku,
            "backend": deployment.backend,
            "workers": {_ROLES[name]: _peer_worker(deployment, role) for name, role in deployment.roles.items()},
        },
    }


def _peer_worker(deployment: Deployment, role: RoleDeployment) -> dict[str, Any]:
    shape = role.shape
    return {
        "parallelism": {
            "replicas": role.replicas,
            "tensor": shape.tp,
            "pipeline": shape.pp,
            "attention_data": shape.attention_dp,
            "moe_tensor": shape.moe_tp,
            "moe_expert": shape.moe_ep,
        },
        "scheduler": {"max_batched_tokens": role.max_num_batched_tokens, "max_sequences": role.max_num_seqs},
        "kv_cache": {
            "block_size": role.block_size if deployment.backend != "sglang" else 1,
            "prefix_caching": role.enable_prefix_caching,
            "capacity": {"type": "default", "memory_fraction": role.gpu_memory_utilization},
        },
    }


def replayed_by_peer(peer: str, document: Mapping[str, Any]) -> dict[str, float]:
    """The peer's metrics of a prediction. Raises: CalledProcessError with its message."""
    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder, "case.yaml"), Path(folder, "out")
        asked.write_text(json.dumps(document))  # JSON is YAML.
        command = [peer, "predict", "--config", str(asked), "--output-dir", str(out)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        report = load_json(next(out.rglob("prediction.json")))
    return dict(report.get("summary") or report)


def searched_by_peer(peer: str, document: Mapping[str, Any]) -> float:
    """Seconds of the peer's own search, whole process. Raises: CalledProcessError with its message."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "case.yaml")
        asked.write_text(json.dumps(document))
        command = [peer, "recommend", "--config", str(asked), "--output-dir", f"{folder}/out", "--format", "json"]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, text=True)
        return time.perf_counter() - began


def leaders(client: httpx.Client, study: Mapping[str, Any]) -> list[Found]:
    """The winner, or the members of the front, as the service shows them."""
    is_pareto = study["config"]["goal"]["target"] == "pareto"
    path = f"/studies/{study['id']}/candidates"
    items = client.get(path, params={"limit": _FRONT if is_pareto else 1}).raise_for_status().json()["items"]
    return [Found(Deployment.model_validate(each["deployment"]), tuple(each["objectives"].values())) for each in items]


def judged(config: SmartSearchConfig, told: Found, peer: str | None) -> tuple[float, ...]:
    """The objectives of our candidate, by the peer's replay if there is a peer and it does not fail."""
    if peer is None:
        return told.objectives
    try:
        metrics = replayed_by_peer(peer, peer_config(config, told))
    except subprocess.CalledProcessError as error:
        print(f"the peer failed with exit code {error.returncode}; our own metrics stand in: {error.stderr[-200:]}")
        return told.objectives
    values = objectives(config.goal, metrics, told.deployment.used_gpus)
    return tuple(value or 0.0 for value in values)


def value_of(points: list[tuple[float, ...]]) -> float:
    """One number to compare: the objective itself, or the area below a front of two."""
    if len(points[0]) == 1:
        return max(point[0] for point in points)
    return hypervolume([(point[0], point[1]) for point in points], (0.0, 0.0))


def measure(
    client: httpx.Client,
    search: Mapping[str, Any],
    peer: str | None,
    with_disagg: bool,
    repeats: int,
    within_s: float = math.inf,
) -> dict[str, Any]:
    """One search: both values and wall seconds. `ours` is None, and the seconds are a lower bound, where ours did not end."""
    config = config_of(search, with_disagg)
    document = config.model_dump(mode="json")
    warmed, seconds = served(client, document, within_s)
    if warmed["status"] != "succeeded":
        return _unfinished(search, warmed, seconds)
    ended = sorted((served(client, document, within_s) for _ in range(repeats)), key=lambda each: each[1])
    study, seconds = ended[repeats // 2]
    if study["status"] != "succeeded":
        return _unfinished(search, study, seconds)
    ours = leaders(client, study)
    step = max(1, -(-(len(ours) - 1) // (_MEMBERS - 1)))
    picked = ours if len(ours) <= _MEMBERS else [*ours[:-1:step], ours[-1]]
    found = {each["candidate_id"]: each for each in search["candidates"]}
    names = search["pareto_ids"] or search["ranked_ids"][:1]
    theirs = [tuple((found[name]["objectives"] or {"score": found[name]["score"]}).values()) for name in names]
    points = [judged(config, each, peer) for each in picked]
    return {
        "search": search["id"],
        "judge": "peer" if peer else "ours",
        "ours": value_of(points),
        "theirs": value_of(theirs),
        "seconds": round(seconds, 3),
        "worst_seconds": round(ended[-1][1], 3),
        "peer_seconds": round(search["peer_process_s"], 3),
        "speedup": round(search["peer_process_s"] / seconds, 1),
        "evaluated": study["progress"]["done"],
        "exhaustive": study["coverage"]["exhaustive"],
        "points": points,
        "at_least_as_good": value_of(points) >= value_of(theirs) * (1 - 1e-9),
    }


def _unfinished(search: Mapping[str, Any], study: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """A search of ours that was cancelled at its limit."""
    return {
        "search": search["id"],
        "ours": None,
        "status": study["status"],
        "seconds": round(seconds, 3),
        "peer_seconds": round(search["peer_process_s"], 3),
        "speedup": round(search["peer_process_s"] / seconds, 1),
        "evaluated": study["progress"]["done"],
        "at_least_as_good": False,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 when the peer found nothing better."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recommend", description=__doc__)
    parser.add_argument("searches", type=Path)
    parser.add_argument("url", help="a running service")
    parser.add_argument("--peer", help="the peer's command; without it our own metrics judge")
    parser.add_argument("--run-peer", action="store_true", help="time the peer's own search in this run")
    parser.add_argument("--only", default="", help="searches whose id contains this text")
    parser.add_argument("--modes", choices=("agg", "both"), default="both")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which a study is cancelled")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    results = []
    with httpx.Client(base_url=options.url, timeout=120) as client:
        for search in load_json(options.searches)["searches"]:
            if options.only in search["id"]:
                if options.peer and options.run_peer:
                    search |= {"peer_process_s": searched_by_peer(options.peer, search["config"])}
                both = options.modes == "both"
                results.append(measure(client, search, options.peer, both, options.repeats, options.within))
                print({key: value for key, value in results[-1].items() if key != "points"}, flush=True)
    options.out.write_bytes(orjson.dumps({"machine": machine(), "searches": results}, option=orjson.OPT_INDENT_2))
    return int(not all(each["at_least_as_good"] and each["speedup"] >= _FACTOR for each in results))


if __name__ == "__main__":
    sys.exit(main())
