"""No replay on measured step times beats its bound: three backends, both modes, both loops, static and scaled."""

import random
from typing import Any

import pytest

from app.schemas.study import SmartSearchConfig, canonical_json
from tests.reference.elastic import replay_elastic
from tests.reference.plain_replay import replay
from workers.fleets import plan_run
from workers.replay.metrics import report
from workers.scaling import new_planner
from workers.search.score import objectives, signed
from workers.search.search import prepared
from workers.search.standing import TRUST

OBJECTIVES = ["throughput_per_gpu", "throughput_per_user", "e2e_latency", "ttft"]
CLOSED = {"isl": 1024, "osl": 40, "concurrency": 24, "num_request_ratio": 3}
EVERY_SECOND = {
    "enable_throughput_scaling": False,
    "enable_load_scaling": True,
    "throughput_adjustment_interval_seconds": 180,
    "load_adjustment_interval_seconds": 1,
}
OPEN = {"isl": 1024, "osl": 40, "request_rate": 12, "num_request_ratio": 5}


@pytest.mark.parametrize(
    ("mode", "backends", "load"),
    [
        ("agg", ["vllm", "trtllm", "sglang"], CLOSED),
        ("disagg", ["vllm", "sglang"], CLOSED),
        ("agg", ["vllm"], OPEN),
    ],
    ids=["agg", "disagg", "open"],
)
def test_no_measured_replay_beats_its_bound(mode: str, backends: list[str], load: dict[str, Any]) -> None:
    config = SmartSearchConfig.model_validate(
        {
            "search_space": {
                "model_name": "Qwen/Qwen3-32B-FP8",
                "hardware_sku": "h200_sxm",
                "gpu_budget": 16,
                "backend": backends,
                "deployment_mode": [mode],
                "router_mode": ["round_robin"],
                "planner_scaling_policy": ["disabled", EVERY_SECOND],
                "planner_fpm_sampling": ["default"],
                "planner_load_sensitivity": ["default"],
            },
            "workload": load,
            "goal": {"target": "pareto", "pareto_objectives": OBJECTIVES},
        }
    )
    outline = prepared(canonical_json(config)).outline
    (own,), rng = outline.branches, random.Random(3)
    for _ in range(8):
        group, option = rng.randrange(own.num_groups), rng.randrange(own.num_options)
        deployment = outline.space.deployment(0, group * own.num_options + option)
        run = plan_run(config.workload, deployment, None)
        if run.planner is None:
            outcomes = replay(run.fleet, run.batch)
        else:
            outcomes = replay_elastic(run.fleet, run.batch, new_planner(run.planner, run.fleet)).outcomes
        metrics = report(outcomes, run.batch, run.fleet)
        values = [value for value in objectives(config.goal, metrics, deployment.used_gpus) if value is not None]
        for name, value, bound in zip(
            OBJECTIVES, values, outline.gains_of(scaled=run.planner is not None)[:, group], strict=True
        ):
            assert signed(name, value) <= bound + TRUST * abs(bound)
