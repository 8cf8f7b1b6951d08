"""The client's present deployment as a candidate."""

from app.schemas.baseline import Baseline, BaselineRole
from app.schemas.deployment import Deployment, Mode, RoleDeployment
from app.schemas.search_space import SearchSpace
from app.schemas.study import SmartSearchConfig
from workers.search.knobs import backend_name


def baseline_deployment(config: SmartSearchConfig) -> Deployment | None:
    """The deployment that a configuration names as its baseline; under a range of KV loads, at its upper end."""
    baseline, space, load = config.baseline, config.search_space, config.workload
    if baseline is None:
        return None
    mode: Mode = "agg" if baseline.agg is not None else "disagg"
    return Deployment(
        mode=mode,
        backend=backend_name(baseline.backend),
        model_name=space.model_name,
        hardware_sku=space.hardware_sku,
        router=baseline.router.config(),
        aic_nextn=space.aic_nextn,
        context_length=space.context_length,
        kv_load_ratio=load.kv_load_range[1] if load.kv_load_range else _scalar(load.kv_load_ratio),
        **{name: _pool(space, name, role) for name, role in _roles(baseline).items()},
    )


def _scalar(ratio: float | list[float] | None) -> float | None:
    return ratio if isinstance(ratio, float) else None


def _roles(baseline: Baseline) -> dict[str, BaselineRole]:
    roles = {"agg": baseline.agg, "prefill": baseline.prefill, "decode": baseline.decode}
    return {name: role for name, role in roles.items() if role is not None}


def _pool(space: SearchSpace, name: str, role: BaselineRole) -> RoleDeployment:
    return RoleDeployment(
        shape=role.shape,
        replicas=role.replicas,
        max_num_batched_tokens=role.max_num_batched_tokens,
        max_num_seqs=role.max_num_seqs,
        block_size=getattr(space, f"{name}_block_size"),
        gpu_memory_utilization=getattr(space, f"{name}_gpu_memory_utilization"),
        enable_prefix_caching=name != "decode" and getattr(space, f"{name}_enable_prefix_caching"),
    )
