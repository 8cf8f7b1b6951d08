"""The canonical form of a candidate: a flat dict with only what applies, and its one-line JSON; what ranking needs of it.

Source: search.md, section 4.1.
"""

import json
from collections.abc import Sequence
from typing import Any

from app.schemas.deployment import Deployment, RoleDeployment
from workers.search.planners import scales
from workers.search.score import Scored
from workers.search.shapes import strategy

_ENGINE_FIELDS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "gpu_memory_utilization",
    "enable_prefix_caching",
)


def flat_candidate(deployment: Deployment) -> dict[str, Any]:
    """Mode, backend, pinned scalars, shapes, engine knobs, router knobs under the KV router, planner fields if any."""
    flat: dict[str, Any] = {
        "deployment_mode": deployment.mode,
        "backend": deployment.backend,
        "model_name": deployment.model_name,
        "hardware_sku": deployment.hardware_sku,
        "used_gpus": deployment.used_gpus,
        "router_mode": deployment.router.mode,
    }
    optional = {
        "aic_nextn": deployment.aic_nextn,
        "context_length": deployment.context_length,
        "kv_load_ratio": deployment.kv_load_ratio,
    }
    flat |= {name: value for name, value in optional.items() if value is not None}
    for name, role in deployment.roles.items():
        flat |= _role(name, role, prefix="" if name == "agg" else f"{name}_")
    flat |= _router(deployment)
    planner = deployment.planner or {}
    flat |= {name: planner.get(name, False) for name in ("enable_throughput_scaling", "enable_load_scaling")}
    return flat | planner


def canonical_json(deployment: Deployment) -> str:
    """The flat candidate with sorted keys and no blanks; equal candidates give equal text, and text settles the last ties."""
    return json.dumps(flat_candidate(deployment), sort_keys=True, separators=(",", ":"))


def moving_parts(deployment: Deployment) -> int:
    """What an operator has to run beside engines behind a round-robin balancer: a second pool, a KV router, a planner."""
    return (deployment.mode == "disagg") + (deployment.router.mode == "kv_router") + scales(deployment.planner)


def scored(
    deployment: Deployment, score: float, values: Sequence[float], rejected: int = 0, tie: tuple[float, ...] = ()
) -> Scored:
    """A result as ranking sees it. Args: as the fields of Scored."""
    parts = moving_parts(deployment)
    return Scored(canonical_json(deployment), deployment.used_gpus, score, tuple(values), rejected, tie, parts)


def _role(name: str, role: RoleDeployment, prefix: str) -> dict[str, Any]:
    shape = role.shape
    parallel = {
        "tp": shape.tp,
        "pp": shape.pp,
        "attention_dp": shape.attention_dp,
        "moe_tp": shape.moe_tp,
        "moe_ep": shape.moe_ep,
        "strategy": strategy(shape),
        "replicas": role.replicas,
    }
    if prefix:
        parallel["used_gpus"] = role.gpus
    engine = {f"{name}_{field}": getattr(role, field) for field in _ENGINE_FIELDS}
    return {f"{prefix}{field}": value for field, value in parallel.items()} | engine


def _router(deployment: Deployment) -> dict[str, Any]:
    router = deployment.router
    if router.mode == "round_robin":
        return {}
    weights = {
        "overlap_score_credit": router.overlap_score_credit,
        "prefill_load_scale": router.prefill_load_scale,
        "router_temperature": router.temperature,
        "host_cache_hit_weight": router.host_cache_hit_weight,
        "disk_cache_hit_weight": router.disk_cache_hit_weight,
    }
    return {name: value for name, value in weights.items() if value is not None}
