"""The space in the order in which it deserves attention: groups, their twins, and bounds on what they can reach.

A group is a cell (parallel configuration and backend) with one batching; its options are the routers and planners.
Groups are numbered through all branches.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.schemas.plan import TracePlan
from workers.search.bound_load import bound_load, typical_load
from workers.search.classes import Classes, classes, without_twins
from workers.search.concurrencies import group_capacities
from workers.search.facts import Facts
from workers.search.group_rates import GroupRates, TimesOf, look_alikes, promising_loads
from workers.search.loads import first_ratios
from workers.search.planners import scales
from workers.search.space import Branch, Space

EVALUATE_ALL = 256
"""A space of so many candidates is evaluated in full, twins and all: the client then sees every one of them."""


@dataclass(frozen=True)
class BranchOutline:
    """One branch. first: number of its first group. gains: float64 [M, C * L], upper bounds, larger is better;
    scaled_gains: the same for the options whose planner scales."""

    first: int
    branch: Branch
    classes: Classes
    gains: NDArray[np.float64]
    scaled_gains: NDArray[np.float64]

    @property
    def num_options(self) -> int:
        """Routers times planners."""
        return len(self.branch.routers) * len(self.branch.planners)

    @property
    def num_groups(self) -> int:
        """Cells times batchings."""
        return len(self.branch.cells) * len(self.branch.batching)

    def is_scaled(self, option: int) -> bool:
        """Whether the planner of an option scales."""
        return self._scales[option % len(self._scales)]

    def num_options_that(self, *, scale: bool) -> int:
        """Options whose planner scales, or does not."""
        return len(self.branch.routers) * self._scales.count(scale)

    def options(self, group: int) -> list[int]:
        """The options of a group (counted within the branch) that stand for their twins, in order."""
        return self._options[0 if self.classes.single[group // len(self.branch.batching)] else 1]

    @cached_property
    def _options(self) -> list[list[int]]:
        rows = self.classes.routing.tolist()
        return [[option for option, standing in enumerate(row) if option == standing] for row in rows]

    @cached_property
    def _scales(self) -> list[bool]:
        return [scales(planner) for planner in self.branch.planners]


@dataclass(frozen=True)
class Outline:
    """All branches.

    gains, scaled_gains: float64 [M, G], of static and of scaled options.
    standing: int64 [G], the group that stands for each; gpus: int64 [G].
    order: int64, the groups that stand for themselves, most promising first.
    capacity: int64 [G], requests that fill a group's KV cache on average, under a range of KV loads; else empty.
    expected: float64 [M, G, S], what to expect at the first S loads of a range, larger is better; empty without a range,
        and in a small space.
    promising: int64 [K], see `promising_loads`; empty as `expected`.
    """

    space: Space
    branches: tuple[BranchOutline, ...]
    gains: NDArray[np.float64]
    scaled_gains: NDArray[np.float64]
    standing: NDArray[np.int64]
    order: NDArray[np.int64]
    capacity: NDArray[np.int64]
    expected: NDArray[np.float64]
    promising: NDArray[np.int64]

    @property
    def is_bounded(self) -> bool:
        """Whether early results can spare later replays."""
        return bool(np.isfinite(self.gains).any())

    def gains_of(self, *, scaled: bool) -> NDArray[np.float64]:
        """Upper bounds of the groups' options whose planner scales, or of the others: float64 [M, G]."""
        return self.scaled_gains if scaled else self.gains

    def twins(self, group: int, option: int) -> tuple[int, int]:
        """The option of a group that stands for this one, and for how many it stands."""
        own = self.branches[self.branch_of(group)]
        row = own.classes.routing[0 if own.classes.single[(group - own.first) // len(own.branch.batching)] else 1]
        first = int(row[option])
        return first, int((row == first).sum())

    def branch_of(self, group: int) -> int:
        """Number of the branch that a group belongs to."""
        return bisect_right(self._firsts, group) - 1

    @cached_property
    def _firsts(self) -> list[int]:
        return [own.first for own in self.branches]


def outline(space: Space, facts: Facts, times: TimesOf, trace: TracePlan | None = None) -> Outline:
    """The outline of a space; small spaces are left as they are, without bounds and twins."""
    small = space.size <= EVALUATE_ALL
    targets, load = space.config.goal.objectives, bound_load(space.config, trace)
    capacity = [group_capacities(space, branch, facts) for branch in space.branches]
    branches: list[BranchOutline] = []
    rated: list[_Rated] = []
    first = 0
    for number, branch in enumerate(space.branches):
        if small:
            rated.append(_Rated.unknown(branch, len(targets)))
        else:
            rates = GroupRates(space, branch, load or typical_load(space.config), facts, times)
            rated.append(_Rated.of(space, branch, rates, capacity[number]))
        kinds = without_twins(branch) if small else classes(space, number, facts)
        nothing = np.full_like(rated[-1].static, np.inf)
        bounds = (nothing, nothing) if load is None else (rated[-1].static, rated[-1].scaled)
        branches.append(BranchOutline(first, branch, kinds, *bounds))
        first += branches[-1].num_groups
    standing = [_standing(each) for each in branches]
    flat = np.concatenate(standing) if standing else np.zeros(0, dtype=np.int64)
    own = np.flatnonzero(flat == np.arange(flat.size))
    alike = [one.first + each.kind for one, each in zip(branches, rated, strict=True)]
    order = own[np.argsort(-_promise(_joined([each.static for each in rated], targets)[:, own]), kind="stable")]
    expected = _joined([each.expected for each in rated], targets)
    return Outline(
        space,
        tuple(branches),
        gains=_joined([each.gains for each in branches], targets),
        scaled_gains=_joined([each.scaled_gains for each in branches], targets),
        standing=flat,
        order=order,
        capacity=np.concatenate([np.zeros(0, np.int64), *capacity]),
        expected=expected,
        promising=promising_loads(expected, np.concatenate(alike), order)
        if expected.ndim == 3
        else np.zeros(0, np.int64),
    )


class _Rated(NamedTuple):
    """What is known of a branch's groups before any replay: bounds (with a load that only orders them, if there is none
    to prove anything with), and under a range of KV loads what to expect. Shapes as in Outline."""

    static: NDArray[np.float64]
    scaled: NDArray[np.float64]
    expected: NDArray[np.float64]
    kind: NDArray[np.int64]

    @classmethod
    def of(cls, space: Space, branch: Branch, rates: GroupRates, capacity: NDArray[np.int64]) -> "_Rated":
        targets, limits = space.config.goal.objectives, space.config.workload.kv_load_range
        bounds = rates.bounds(targets)
        if limits is None:
            return cls(*bounds, np.zeros((len(targets), 0)), np.zeros(0, np.int64))
        in_flight = np.maximum(np.floor(np.outer(capacity, first_ratios(*limits))), 1.0)
        return cls(*bounds, rates.steady(targets, in_flight), look_alikes(branch))

    @classmethod
    def unknown(cls, branch: Branch, num_targets: int) -> "_Rated":
        nothing = np.full((num_targets, len(branch.cells) * len(branch.batching)), np.inf)
        return cls(nothing, nothing, np.zeros((num_targets, 0)), np.zeros(0, np.int64))


def _joined(parts: list[NDArray[np.float64]], targets: tuple[str, ...]) -> NDArray[np.float64]:
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(targets), 0))


def _standing(each: BranchOutline) -> NDArray[np.int64]:
    """The group that stands for each of a branch's groups, numbered through all branches."""
    cells, batchings = len(each.branch.cells), len(each.branch.batching)
    groups = each.first + np.arange(cells, dtype=np.int64)[:, None] * batchings + each.classes.batching
    return np.asarray(groups.reshape(-1), dtype=np.int64)


def _promise(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """One number per group: its bounds, scaled to their ranges and added; groups without bounds come last."""
    total = np.zeros(gains.shape[1])
    for row in gains:
        finite = row[np.isfinite(row)]
        low, span = (float(finite.min()), float(np.ptp(finite))) if finite.size else (0.0, 0.0)
        total += np.where(np.isfinite(row), (row - low) / (span or 1.0), -np.inf)
    return total
