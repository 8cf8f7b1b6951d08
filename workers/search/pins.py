"""Pinned menus: the client's own shapes in place of the enumerated ones.

Source: search.md, section 2.4.
"""

import numpy as np
from numpy.typing import NDArray

from app.schemas.deployment import ParallelShape
from app.schemas.parallel import PinnedPair, PinnedRole
from app.schemas.search_space import SearchSpace
from workers.search.knobs import distinct
from workers.search.shapes import RoleConfig


def _pin_roles(pin: PinnedRole | PinnedPair) -> tuple[RoleConfig, ...]:
    parts = (pin,) if isinstance(pin, PinnedRole) else (pin.prefill, pin.decode)
    return tuple(RoleConfig.of(part.shape, part.replicas) for part in parts)


def pinned_entries(space: SearchSpace, shapes: set[ParallelShape]) -> tuple[tuple[RoleConfig, ...], NDArray[np.int32]]:
    """Role configurations and entries of the menu whose shapes are all in `shapes`; repeats count once."""
    lowest = space.min_gpu_budget or 1
    kept = [
        roles
        for roles in distinct(_pin_roles(pin) for pin in space.parallel_configs)
        if lowest <= sum(role.gpus for role in roles) <= space.gpu_budget
        and all(role.shape in shapes for role in roles)
    ]
    flat = distinct(role for roles in kept for role in roles)
    places = {role: index for index, role in enumerate(flat)}
    width = 1 if not kept else len(kept[0])
    entries = np.array([[places[role] for role in roles] for roles in kept], dtype=np.int32).reshape(-1, width)
    return flat, entries


def pinned_shapes(space: SearchSpace) -> list[ParallelShape]:
    """The shapes of a pinned menu; empty without one."""
    return list(distinct(role.shape for pin in space.parallel_configs for role in _pin_roles(pin)))
