"""Pinned menus: the client's own shapes in place of the enumerated ones.

Source: search.md, section 2.4.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.errors import FieldFault, InvalidRequestError
from app.schemas.deployment import Backend, ParallelShape
from app.schemas.parallel import PinnedPair, PinnedRole
from app.schemas.search_space import SearchSpace
from workers.search.facts import Facts
from workers.search.knobs import distinct
from workers.search.shapes import RoleConfig, backend_can_run, shape_is_consistent


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


def pinned_shapes(space: SearchSpace, facts: Facts, backends: Sequence[Backend]) -> list[ParallelShape]:
    """The shapes of a pinned menu; empty without one.

    Raises: InvalidRequestError naming every entry that no backend can run or no budget holds.
    """
    faults = []
    for index, pin in enumerate(space.parallel_configs):
        roles = _pin_roles(pin)
        gpus = sum(role.gpus for role in roles)
        at, value = f"/search_space/parallel_configs/{index}", pin.model_dump(mode="json")
        if gpus > space.gpu_budget or gpus < (space.min_gpu_budget or 1):
            fault = f"takes {gpus} GPUs, the budget is {space.min_gpu_budget or 1} to {space.gpu_budget}"
            faults.append(FieldFault(at, value, fault, "change replicas or the shape, or the budget"))
        elif not any(_is_legal(backend, roles, facts) for backend in backends):
            fault = f"is a shape that none of {', '.join(backends)} can run with this model"
            remedy = "tp * attention_dp must equal moe_tp * moe_ep for a MoE model; a dense model has tp (and pp) only"
            faults.append(FieldFault(at, value, fault, remedy))
    if faults:
        raise InvalidRequestError(faults)
    return list(distinct(role.shape for pin in space.parallel_configs for role in _pin_roles(pin)))


def _is_legal(backend: Backend, roles: Sequence[RoleConfig], facts: Facts) -> bool:
    return all(backend_can_run(backend, role.shape) and shape_is_consistent(role.shape, facts.is_moe) for role in roles)
