"""The knobs beside the parallel shape: batching, routing and load, each as a list of choices (scaling: `planners`).

Source: search.md, sections 1.1 and 1.2.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from app.schemas.deployment import Backend, Mode, RouterConfig
from app.schemas.search_space import SearchSpace
from app.schemas.study import SmartSearchConfig

ROLES: dict[str, tuple[str, ...]] = {"agg": ("agg",), "disagg": ("prefill", "decode")}


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
