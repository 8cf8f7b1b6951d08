"""The knobs beside the parallel shape: batching, routing, scaling and load, each as a list of choices.

Source: search.md, sections 1.1 to 1.3 and 5.3.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from app.schemas.deployment import Backend, Mode, RouterConfig
from app.schemas.goal import Goal
from app.schemas.presets import FPM_SAMPLINGS, LOAD_SENSITIVITIES, SCALING_POLICIES, ScalingPolicy
from app.schemas.search_space import SearchSpace
from app.schemas.study import SmartSearchConfig

ROLES: dict[str, tuple[str, ...]] = {"agg": ("agg",), "disagg": ("prefill", "decode")}

REPLAYS_SCALING = False
"""Whether the simulator replays a scaling planner; while it does not, scaling policies are left out, with a warning."""


@dataclass(frozen=True, slots=True)
class Batching:
    """One role's limits per rank and pass."""

    max_num_batched_tokens: int
    max_num_seqs: int


_T = TypeVar("_T", bound=Hashable)


def distinct(values: Iterable[_T]) -> tuple[_T, ...]:
    """The values without repeats, first occurrences in order."""
    return tuple(dict.fromkeys(values))


def batchings(space: SearchSpace, role: str) -> tuple[Batching, ...]:
    """Every pair of limits of a role; sequences vary fastest."""
    tokens, seqs = getattr(space, f"{role}_max_num_batched_tokens"), getattr(space, f"{role}_max_num_seqs")
    return tuple(Batching(t, s) for t, s in product(distinct(tokens), distinct(seqs)))


def routers(space: SearchSpace) -> tuple[RouterConfig, ...]:
    """Every routing; round robin first, as it has no weights, then the KV router's weights, temperature fastest."""
    options: list[RouterConfig] = []
    if "round_robin" in space.router_mode:
        options.append(RouterConfig())
    if "kv_router" in space.router_mode:
        options += _kv_routers(space)
    return tuple(options)


def _kv_routers(space: SearchSpace) -> list[RouterConfig]:
    offload = space.num_g2_blocks > 0
    host: Sequence[float | None] = distinct(space.host_cache_hit_weight) if offload else (None,)
    disk: Sequence[float | None] = distinct(space.disk_cache_hit_weight) if offload else (None,)
    weights = product(
        distinct(space.overlap_score_credit),
        distinct(space.prefill_load_scale),
        distinct(space.router_temperature),
        host,
        disk,
    )
    return [
        RouterConfig(
            mode="kv_router",
            overlap_score_credit=credit,
            prefill_load_scale=scale,
            temperature=temperature,
            host_cache_hit_weight=host_weight,
            disk_cache_hit_weight=disk_weight,
        )
        for credit, scale, temperature, host_weight, disk_weight in weights
    ]


def policies(space: SearchSpace) -> list[ScalingPolicy]:
    """The scaling policies of the space, presets resolved, repeats removed."""
    resolved = (SCALING_POLICIES[p] if isinstance(p, str) else p for p in space.planner_scaling_policy)
    return list({policy.model_dump_json(): policy for policy in resolved}.values())


def optimization_target(goal: Goal) -> str | None:
    """What a planner would optimize under this goal; None if only static policies make sense."""
    if goal.target in ("goodput", "goodput_per_gpu"):
        sla = goal.sla
        return "sla" if sla is not None and sla.ttft_ms is not None and sla.itl_ms is not None else None
    if goal.target in ("e2e_latency", "ttft"):
        return "latency"
    return "throughput"


def kept_policies(space: SearchSpace, goal: Goal) -> list[ScalingPolicy]:
    """Policies that act under the goal: throughput scaling needs the sla target, any scaling needs a target."""
    target = optimization_target(goal)
    return [
        policy
        for policy in policies(space)
        if not (policy.enable_throughput_scaling and target != "sla")
        and not (policy.enable_load_scaling and target is None)
    ]


def planners(config: SmartSearchConfig) -> tuple[dict[str, Any] | None, ...]:
    """Every planner of the main study; None stands for a static deployment.

    A scaling policy multiplies with the sampling and sensitivity knobs; the load predictor is settled beforehand.
    """
    space = config.search_space
    options: list[dict[str, Any] | None] = []
    for policy in kept_policies(space, config.goal):
        if not (policy.enable_throughput_scaling or policy.enable_load_scaling):
            options.append(None)
            continue
        if not REPLAYS_SCALING:
            continue
        options += [
            {**policy.model_dump(), **fpm, **sensitivity, "optimization_target": optimization_target(config.goal)}
            for fpm, sensitivity in product(
                _resolved(space.planner_fpm_sampling, FPM_SAMPLINGS),
                _resolved(space.planner_load_sensitivity, LOAD_SENSITIVITIES),
            )
        ]
    return tuple(options)


def _resolved(entries: Iterable[Any], presets: dict[str, Any]) -> list[dict[str, Any]]:
    dumped = [(presets[entry] if isinstance(entry, str) else entry).model_dump() for entry in entries]
    return list({repr(sorted(each.items())): each for each in dumped}.values())


def loads(config: SmartSearchConfig) -> tuple[float | None, ...]:
    """The KV loads of the space: one ratio, both ends of a range (refined later), or None without KV load."""
    ratio = config.workload.kv_load_ratio
    if isinstance(ratio, list):
        return tuple(ratio)
    return (ratio,)


def searched_modes(space: SearchSpace) -> tuple[Mode, ...]:
    """Modes in the client's order, once each."""
    modes: list[Mode] = []
    for mode in space.deployment_mode:
        if mode == "agg" and "agg" not in modes:
            modes.append("agg")
        elif mode == "disagg" and "disagg" not in modes:
            modes.append("disagg")
    return tuple(modes)


def backend_name(name: str) -> Backend:
    """A checked backend name as its type."""
    known: dict[str, Backend] = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}
    return known[name]
