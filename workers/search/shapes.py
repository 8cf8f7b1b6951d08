"""Parallel shapes of one engine replica, replicas, and disaggregated pairs within a GPU budget.

Source: search.md, sections 2.1 to 2.3; probes S01 to S04.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.schemas.deployment import ParallelShape

ENGINE_GPUS = (1, 2, 4, 8, 16)
"""GPUs one engine replica may take."""

MAX_PAIRS = 4_000_000
"""Disaggregated pairs that a pool may hold; more would not fit in memory as index arrays."""


@dataclass(frozen=True, slots=True, order=True)
class RoleConfig:
    """A shape and how many replicas of it; ordered by (tp, pp, attention_dp, moe_tp, moe_ep, replicas)."""

    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    replicas: int

    @classmethod
    def of(cls, shape: ParallelShape, replicas: int) -> "RoleConfig":
        """The configuration of a shape."""
        return cls(shape.tp, shape.pp, shape.attention_dp, shape.moe_tp, shape.moe_ep, replicas)

    @property
    def shape(self) -> ParallelShape:
        """The shape of one replica."""
        return ParallelShape(
            tp=self.tp, pp=self.pp, attention_dp=self.attention_dp, moe_tp=self.moe_tp, moe_ep=self.moe_ep
        )

    @property
    def engine_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.attention_dp

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.engine_gpus * self.replicas


def engine_shapes(is_moe: bool, gpus: int) -> list[ParallelShape]:
    """Shapes of one replica on exactly `gpus` GPUs, in enumeration order (tp, attention_dp, moe_tp, moe_ep)."""
    if not is_moe or gpus == 1:
        return [ParallelShape(tp=gpus)]
    return [
        ParallelShape(tp=1, attention_dp=gpus, moe_ep=gpus),
        ParallelShape(tp=1, attention_dp=gpus, moe_tp=gpus),
        ParallelShape(tp=gpus, moe_ep=gpus),
        ParallelShape(tp=gpus, moe_tp=gpus),
    ]


def all_shapes(is_moe: bool, gpu_budget: int) -> list[ParallelShape]:
    """Every shape that fits the budget, narrowest first."""
    return [shape for gpus in ENGINE_GPUS if gpus <= gpu_budget for shape in engine_shapes(is_moe, gpus)]


def strategy(shape: ParallelShape) -> str:
    """The name of the pattern: attention by TP or DP, experts by TP or EP."""
    attention = "d" if shape.attention_dp > 1 else ""
    if shape.moe_ep > 1:
        return f"{attention or 't'}ep"
    return f"{attention}tp"


def role_configs(shapes: Iterable[ParallelShape], gpu_budget: int) -> list[RoleConfig]:
    """Every shape with every number of replicas within the budget; replicas vary fastest."""
    return [RoleConfig.of(shape, replicas) for shape in shapes for replicas in range(1, gpu_budget // shape.gpus + 1)]


def agg_pool(shapes: Iterable[ParallelShape], gpu_budget: int, min_gpus: int = 1) -> list[RoleConfig]:
    """Aggregated configurations with min_gpus <= GPUs <= gpu_budget."""
    return [config for config in role_configs(shapes, gpu_budget) if config.gpus >= min_gpus]


def disagg_pairs(roles: Sequence[RoleConfig], gpu_budget: int, min_gpus: int = 1) -> NDArray[np.int32]:
    """Ordered pairs with min_gpus <= total GPUs <= gpu_budget: int32 [P, 2], indices into `roles`, prefill first.

    Raises: MemoryError if there are more than MAX_PAIRS.
    """
    gpus = np.array([config.gpus for config in roles], dtype=np.int64)
    ascending = np.sort(gpus)
    fits = np.searchsorted(ascending, gpu_budget - gpus, side="right")
    below = np.searchsorted(ascending, np.maximum(min_gpus - gpus, 0), side="left")
    count = int(np.maximum(fits - below, 0).sum())
    if count > MAX_PAIRS:
        raise MemoryError(f"{count} disaggregated pairs, more than {MAX_PAIRS}")
    pairs = np.empty((count, 2), dtype=np.int32)
    filled = 0
    for prefill, width in enumerate(gpus.tolist()):
        total = gpus + width
        decodes = np.flatnonzero((total <= gpu_budget) & (total >= min_gpus))
        pairs[filled : filled + decodes.size, 0] = prefill
        pairs[filled : filled + decodes.size, 1] = decodes
        filled += decodes.size
    return pairs
