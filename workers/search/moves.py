"""Spaces too large to go through: after a while best first by bound, `auto` moves on from what leads, step by step.

A step changes one thing of a leader: one batching limit, one weight of the router or the planner, the backend, or the
replicas or the shape of one role. Whose neighbours have all been tried is a local optimum, and the search ends there.
"""

from collections.abc import Iterator
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from app.schemas.sweep import MAX_TRIALS
from workers.search.outline import BranchOutline
from workers.search.shapes import RoleConfig
from workers.search.space import Branch
from workers.search.standing import Arm, Standing

BEST_FIRST = 4096
"""Trials in the order of the bounds before moves begin."""

MOST_ARMS = MAX_TRIALS
"""A search is by moves while more candidates than this may still win."""

LEADERS, FRONT_LEADERS = 16, 64
"""Leaders whose neighbours are tried: of a scalar goal, and of a front."""

_LOADS_OF_A_RANGE = 3


def is_large(standing: Standing) -> bool:
    """Whether enough was tried best first, and what may still win is more than a study may try."""
    return len(standing.asked) >= BEST_FIRST and num_alive(standing) > MOST_ARMS


def moves(standing: Standing, branch: int | None, seed: int) -> Iterator[Arm]:
    """Neighbours of the leaders that were not tried yet, best leader first, those of one leader in seeded order."""
    found: set[Arm] = set(standing.asked)
    for leader in _leaders(standing):
        own = standing.outline.branches[standing.outline.branch_of(leader[0])]
        if branch is not None and own is not standing.outline.branches[branch]:
            continue
        near = sorted({_standing(standing, arm) for arm in _neighbours(own, leader)} - found)
        near = [arm for arm in near if _may_win(standing, arm)]
        found.update(near)
        rng = np.random.Generator(np.random.PCG64([seed, *leader]))
        yield from (near[at] for at in rng.permutation(len(near)).tolist())


def num_alive(standing: Standing) -> int:
    """Arms that stand for themselves and may still win, asked ones too; each counts as often as a range has first loads."""
    known, total = standing.outline, 0
    for scaled in (False, True):
        alive = known.order[standing.alive(known.order, scaled=scaled)]
        for own in known.branches:
            mine = alive[(alive >= own.first) & (alive < own.first + own.num_groups)] - own.first
            single = own.classes.single[mine // len(own.branch.batching)]
            for row, num in enumerate((int(single.sum()), int((~single).sum()))):
                kept = {int(option) for option in own.classes.routing[row] if own.is_scaled(int(option)) == scaled}
                total += num * len(kept)
    is_range = known.space.config.workload.kv_load_range is not None
    return total * (_LOADS_OF_A_RANGE if is_range else 1)


def _leaders(standing: Standing) -> list[Arm]:
    numbers = {told.number: arm for arm, asked in standing.asked.items() for told in asked}
    if standing.goal.is_pareto:
        # Spread over the whole front.
        spread = standing.leading[:: max(1, -(-len(standing.leading) // FRONT_LEADERS))]
        return list(dict.fromkeys(numbers[place] for place in spread if place in numbers))
    scored = [
        (told.rejected, -told.score, told.number)
        for asked in standing.asked.values()
        for told in asked
        if told.score is not None
    ]
    return [numbers[number] for _, _, number in nsmallest(LEADERS, scored)]


def _standing(standing: Standing, arm: Arm) -> Arm:
    """The twin that stands for an arm."""
    group = int(standing.outline.standing[arm[0]])
    return group, standing.outline.twins(group, arm[1])[0]


def _may_win(standing: Standing, arm: Arm) -> bool:
    group = np.array([arm[0]], dtype=np.int64)
    return arm[0] not in standing.hopeless and bool(standing.alive(group, scaled=standing.is_scaled(arm))[0])


def _neighbours(own: BranchOutline, arm: Arm) -> Iterator[Arm]:
    group, option = arm[0] - own.first, arm[1]
    cell, batching = divmod(group, len(own.branch.batching))
    for other in _near_batchings(own.branch, batching):
        yield own.first + cell * len(own.branch.batching) + other, option
    for other in _near_cells(own.branch, cell):
        yield own.first + other * len(own.branch.batching) + batching, option
    for other in _near_options(own.branch, option):
        yield arm[0], other


def _near_batchings(branch: Branch, at: int) -> list[int]:
    """Batchings that differ in one limit of one role."""
    flat = [
        tuple(limit for each in batching for limit in (each.max_num_batched_tokens, each.max_num_seqs))
        for batching in branch.batching
    ]
    return [index for index, other in enumerate(flat) if _num_changes(flat[at], other) == 1]


def _near_cells(branch: Branch, at: int) -> list[int]:
    """The same configuration on another backend, or one role changed a little on the same one."""
    entry, backend = (int(value) for value in branch.cells[at])
    roles = branch.entries[branch.cells[:, 0]]
    same = roles == branch.entries[entry]
    near = np.zeros(len(branch.cells), dtype=np.bool_)
    for place, role in enumerate(branch.entries[entry].tolist()):
        others = np.delete(same, place, axis=1).all(axis=1)
        near |= others & _near_roles(branch, role)[roles[:, place]]
    kept = (near & (branch.cells[:, 1] == backend)) | (same.all(axis=1) & (branch.cells[:, 1] != backend))
    return np.flatnonzero(kept).tolist()


def _near_roles(branch: Branch, at: int) -> NDArray[np.bool_]:
    """One replica more or fewer of the same shape, or as many GPUs in another shape: bool [roles]."""
    here = branch.roles[at]
    return np.array([_is_near(here, other) for other in branch.roles], dtype=np.bool_)


def _is_near(one: RoleConfig, other: RoleConfig) -> bool:
    if one.shape == other.shape:
        return abs(one.replicas - other.replicas) == 1
    return one.gpus == other.gpus or (one.replicas == other.replicas and one.engine_gpus != other.engine_gpus)


def _near_options(branch: Branch, at: int) -> list[int]:
    """Another planner, or a router that differs in one field; the KV router's nearest weights for a round robin."""
    router, planner = divmod(at, len(branch.planners))
    here = branch.routers[router].model_dump()
    found = [router * len(branch.planners) + other for other in range(len(branch.planners)) if other != planner]
    for index, other in enumerate(branch.routers):
        changes = sum(value != here[name] for name, value in other.model_dump().items())
        if index != router and (changes == 1 or other.mode != here["mode"]):
            found.append(index * len(branch.planners) + planner)
    return found


def _num_changes(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))
