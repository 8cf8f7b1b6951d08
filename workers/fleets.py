"""A deployment to what the replay needs: its fleet, its load shape and its requests.

Source: traffic spec; search spec, section 4.1; replay-engine spec, section 12 (configuration mapping).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.catalog import snapshot
from app.schemas.deployment import Deployment, RoleDeployment, RouterConfig
from app.schemas.status import ReasonCode
from app.schemas.workload import MAX_REQUESTS, Workload
from workers.capacity.roles import (
    RoleCapacity,
    load_capacity_concurrency,
    load_capacity_tokens,
    role_capacities,
)
from workers.errors import InfeasibleError
from workers.planner.settings import PlannerSettings
from workers.replay.fleet import Fleet, KvRouter, Pool, RoleName
from workers.search.planners import acting
from workers.timing.aic import aic_times, engine_identity
from workers.traffic.load_shape import LoadShape, load_shape
from workers.traffic.requests import RequestBatch
from workers.traffic.workload import TraceFile, workload_batch

DRAFT_ACCEPTANCE = (0.85, 0.3, 0.0, 0.0, 0.0)
"""Conditional acceptance per draft token where the configuration states none: Dynamo's default for `aic_nextn`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One replay to be done: engines, requests, and the load figures a candidate records.

    planner: acting settings of the planner that scales the engines; None for a static deployment.
    """

    fleet: Fleet
    batch: RequestBatch
    load: Mapping[str, float | None]
    planner: PlannerSettings | None = None


def plan_run(workload: Workload, deployment: Deployment, trace: TraceFile | None, router_seed: int = 42) -> Run:
    """Everything known before the replay of one deployment; `router_seed` decides between equal costs of a KV router.

    Raises: InfeasibleError when a role leaves no KV budget or a KV load does not fit one request; UnsupportedError
    without performance data; ValueError if a trace workload comes without trace.
    """
    capacities = role_capacities(deployment)
    ratio = _kv_load_ratio(workload, deployment)
    fitting = None
    if ratio is not None:
        assert workload.isl is not None
        assert workload.osl is not None
        fitting = load_capacity_concurrency(capacities, workload.isl, workload.osl)
    shape = load_shape(workload, ratio, fitting)
    _check_count(workload, shape)
    first = deployment.agg or deployment.prefill
    assert first is not None
    batch = workload_batch(workload, shape, first.block_size, trace)
    load = _load(shape, ratio, fitting, capacities, batch)
    return Run(fleet(deployment, capacities, router_seed), batch, load, acting(deployment.planner))


def fleet(deployment: Deployment, capacities: Mapping[str, RoleCapacity], router_seed: int = 42) -> Fleet:
    """The engines of a deployment. Raises: UnsupportedError without performance data."""
    pools = {name: _pool(deployment, name, role, capacities[name]) for name, role in deployment.roles.items()}
    return Fleet(
        agg=pools.get("agg"),
        prefill=pools.get("prefill"),
        decode=pools.get("decode"),
        router=_router(deployment.router, router_seed),
    )


def context_limit(deployment: Deployment) -> int | None:
    """Longest sequence an engine accepts; only vLLM falls back to what the model declares."""
    if deployment.context_length is not None or deployment.backend != "vllm":
        return deployment.context_length
    return snapshot.MODELS[deployment.model_name].max_context_tokens


def _kv_load_ratio(workload: Workload, deployment: Deployment) -> float | None:
    """The trial's own ratio, else the workload's scalar one; None for every other load shape."""
    if deployment.kv_load_ratio is not None:
        return deployment.kv_load_ratio
    ratio = workload.kv_load_ratio
    if isinstance(ratio, list):
        raise ValueError("a searched kv_load_ratio must be drawn before a deployment is evaluated")
    return ratio


def _check_count(workload: Workload, shape: LoadShape) -> None:
    count = (shape.request_count or 0) * workload.turns_per_session
    if count > MAX_REQUESTS:
        detail = f"this load means {count} requests in one replay; at most {MAX_REQUESTS} are replayed"
        numbers = {"num_requests": count, "max_requests": MAX_REQUESTS}
        raise InfeasibleError(ReasonCode.EXCEEDED_RUNTIME, detail, numbers)


def _load(
    shape: LoadShape,
    ratio: float | None,
    fitting: int | None,
    capacities: Mapping[str, RoleCapacity],
    batch: RequestBatch,
) -> dict[str, float | None]:
    load: dict[str, float | None] = {
        "concurrency": shape.in_flight_cap,
        "num_requests": batch.num_requests,
        **{f"{role}_kv_capacity_tokens": capacity.capacity_tokens for role, capacity in capacities.items()},
    }
    if ratio is not None:
        load["kv_load_ratio"] = ratio
        load["kv_load_concurrency_capacity"] = fitting
        load["kv_load_capacity_tokens"] = load_capacity_tokens(capacities)
    return load


def _pool(deployment: Deployment, name: str, role: RoleDeployment, capacity: RoleCapacity) -> Pool:
    nextn = deployment.aic_nextn or 0
    identity = engine_identity(
        deployment.model_name, deployment.hardware_sku, deployment.backend, role.shape, deployment.aic_nextn
    )
    role_name: RoleName = name  # type: ignore[assignment]
    return Pool(
        role=role_name,
        backend=deployment.backend,
        replicas=role.replicas,
        attention_dp=role.shape.attention_dp,
        gpus_per_replica=role.shape.gpus,
        num_blocks=capacity.num_blocks,
        block_size=role.block_size,
        max_num_batched_tokens=role.max_num_batched_tokens,
        max_num_seqs=role.max_num_seqs,
        step_times=aic_times(identity),
        prefix_caching=role.enable_prefix_caching,
        context_length=context_limit(deployment),
        acceptance=DRAFT_ACCEPTANCE[:nextn],
    )


def _router(router: RouterConfig, seed: int) -> KvRouter | None:
    """Weights of host and disk caches have no effect: those caches stay empty in a replay."""
    if router.mode == "round_robin":
        return None
    weights = {
        "overlap_score_credit": router.overlap_score_credit,
        "prefill_load_scale": router.prefill_load_scale,
        "temperature": router.temperature,
    }
    given: dict[str, Any] = {name: value for name, value in weights.items() if value is not None}
    return KvRouter(seed=seed, **given)
