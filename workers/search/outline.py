"""The space in the order in which it deserves attention: groups, their twins, and bounds on what they can reach.

A group is a cell (parallel configuration and backend) with one batching; its options are the routers and planners.
Groups are numbered through all branches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.schemas.deployment import ParallelShape
from app.schemas.plan import TracePlan
from workers.capacity.kv_blocks import blocks_per_rank
from workers.errors import EvaluationError
from workers.search import bounds
from workers.search.bound_load import bound_load, typical_load
from workers.search.bounds import Curve, Load, Times
from workers.search.classes import Classes, classes, without_twins
from workers.search.concurrencies import group_capacities
from workers.search.facts import Facts
from workers.search.knobs import Batching
from workers.search.planners import scales
from workers.search.space import Branch, Space

EVALUATE_ALL = 256
"""A space of so many candidates is evaluated in full, twins and all: the client then sees every one of them."""

TimesOf = Callable[[str, ParallelShape], Times]
"""Backend and shape to step times. Raises: EvaluationError without data."""


@dataclass(frozen=True, slots=True)
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
        return scales(self.branch.planners[option % len(self.branch.planners)])

    def num_options_that(self, *, scale: bool) -> int:
        """Options whose planner scales, or does not."""
        alike = sum(scales(planner) == scale for planner in self.branch.planners)
        return len(self.branch.routers) * alike

    def options(self, group: int) -> list[int]:
        """The options of a group (counted within the branch) that stand for their twins, in order."""
        row = self.classes.routing[0 if self.classes.single[group // len(self.branch.batching)] else 1]
        return [option for option, standing in enumerate(row.tolist()) if option == standing]


@dataclass(frozen=True, slots=True)
class Outline:
    """All branches.

    gains, scaled_gains: float64 [M, G], of static and of scaled options.
    standing: int64 [G], the group that stands for each; gpus: int64 [G].
    order: int64, the groups that stand for themselves, most promising first.
    capacity: int64 [G], requests that fill a group's KV cache on average, under a range of KV loads; else empty.
    """

    space: Space
    branches: tuple[BranchOutline, ...]
    gains: NDArray[np.float64]
    scaled_gains: NDArray[np.float64]
    standing: NDArray[np.int64]
    order: NDArray[np.int64]
    capacity: NDArray[np.int64]

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
        return next(number for number in reversed(range(len(self.branches))) if self.branches[number].first <= group)


def outline(space: Space, facts: Facts, times: TimesOf, trace: TracePlan | None = None) -> Outline:
    """The outline of a space; small spaces are left as they are, without bounds and twins."""
    small = space.size <= EVALUATE_ALL
    targets, load = space.config.goal.objectives, bound_load(space.config, trace)
    branches: list[BranchOutline] = []
    hints: list[NDArray[np.float64]] = []
    first = 0
    for number, branch in enumerate(space.branches):
        kinds = without_twins(branch) if small else classes(space, number, facts)
        groups = len(branch.cells) * len(branch.batching)
        unknown = np.full((len(targets), groups), np.inf)
        hint, scaled = unknown, unknown
        if not small:
            hint, scaled = _gains(space, branch, targets, load or typical_load(space.config), facts, times)
        known = (unknown, unknown) if load is None else (hint, scaled)
        branches.append(BranchOutline(first, branch, kinds, *known))
        hints.append(hint)
        first += groups
    standing = [_standing(each) for each in branches]
    flat = np.concatenate(standing) if standing else np.zeros(0, dtype=np.int64)
    own = np.flatnonzero(flat == np.arange(flat.size))
    order = own[np.argsort(-_promise(_joined(hints, targets)[:, own]), kind="stable")]
    gains = _joined([each.gains for each in branches], targets)
    scaled_gains = _joined([each.scaled_gains for each in branches], targets)
    capacity = [group_capacities(space, branch, facts) for branch in space.branches]
    return Outline(
        space, tuple(branches), gains, scaled_gains, flat, order, np.concatenate([np.zeros(0, np.int64), *capacity])
    )


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


class _Role:
    """Rates of one role's pools: float64 [B, P, L], by backend, role configuration and limits; inf without data."""

    def __init__(self, space: Space, branch: Branch, place: int, role: str, load: Load, facts: Facts) -> None:
        self.limits = tuple(dict.fromkeys(each[place] for each in branch.batching))
        self._space, self._branch, self._role, self._load, self._facts = (
            space.config.search_space,
            branch,
            role,
            load,
            facts,
        )
        size = (len(branch.backends), len(branch.roles), len(self.limits))
        self.rate, self.prompt_ms, self.step_ms = np.full(size, np.inf), np.zeros(size), np.zeros(size)
        # Of the largest fleet that the budget allows, and of a single engine: what a planner can make of a pool.
        self.largest_rate, self.engine_rate = np.full(size, np.inf), np.full(size, np.inf)

    def fill(self, times: TimesOf, wanted: NDArray[np.int64]) -> None:
        """Args: wanted, int64 [W, 2], pairs of backend and role configuration that occur in cells."""
        shapes = [role.shape for role in self._branch.roles]
        ranks = np.array([role.replicas * role.attention_dp for role in self._branch.roles], dtype=np.float64)
        kinds: dict[tuple[int, ParallelShape], list[int]] = {}
        for backend, role in wanted.tolist():
            kinds.setdefault((backend, shapes[role]), []).append(role)
        for (backend, shape), members in kinds.items():
            for at, limits in enumerate(self.limits):
                best = self._curve(times, self._branch.backends[backend], shape, limits)
                if best is not None:
                    self.rate[backend, members, at] = self._rate(ranks[members], best)
                    engines = np.array([self._space.gpu_budget // shape.gpus or 1, 1], dtype=np.float64)
                    largest, single = self._rate(engines * shape.attention_dp, best)
                    self.largest_rate[backend, members, at], self.engine_rate[backend, members, at] = largest, single
                    self.prompt_ms[backend, members, at] = self._load.isl * best.token_ms
                    self.step_ms[backend, members, at] = best.step_ms

    def _rate(self, ranks: NDArray[np.float64], best: Curve) -> NDArray[np.float64]:
        rate = {"agg": bounds.agg_rate, "prefill": bounds.prefill_rate, "decode": bounds.decode_rate}[self._role]
        return np.asarray(np.minimum(rate(ranks, best, self._load), self._load.arrival_rate))

    def _curve(self, times: TimesOf, backend: str, shape: ParallelShape, limits: Batching) -> Curve | None:
        block = getattr(self._space, f"{self._role}_block_size")
        fraction = getattr(self._space, f"{self._role}_gpu_memory_utilization")
        tokens, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        try:
            blocks = blocks_per_rank(self._facts.kv_tokens(backend, shape, tokens, seqs, fraction), block)
            if self._load.lengths is not None and blocks * block < self._load.lengths[1]:
                return None  # It rejects requests, and no bound holds for what it completes.
            most = bounds.most_running(self._load, seqs, blocks, block)
            chunk = max(1, bounds.SGLANG_CHUNK // shape.attention_dp) if backend == "sglang" else tokens
            needs = {"decodes": self._role != "prefill", "prefills": self._role != "decode"}
            return bounds.curve(times(backend, shape), self._load, most, chunk, **needs)
        except EvaluationError:
            return None


def _gains(
    space: Space, branch: Branch, targets: tuple[str, ...], load: Load, facts: Facts, times: TimesOf
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of the static options and of the scaled ones, float64 [M, C * L] each."""
    entries, backend = branch.entries[branch.cells[:, 0]].astype(np.int64), branch.cells[:, 1].astype(np.int64)
    names = ("agg",) if branch.mode == "agg" else ("prefill", "decode")
    roles = [_Role(space, branch, place, name, load, facts) for place, name in enumerate(names)]
    picked = []
    for place, role in enumerate(roles):
        role.fill(times, np.unique(np.column_stack([backend, entries[:, place]]), axis=0))
        at = np.array([role.limits.index(each[place]) for each in branch.batching], dtype=np.int64)
        picked.append((backend[:, None], entries[:, place][:, None], at[None, :]))
    step_ms, prompt_ms = roles[-1].step_ms[picked[-1]], roles[0].prompt_ms[picked[0]]
    steps = (load.handed_over if branch.mode == "disagg" else load.osl - 1) / load.tokens_per_step
    alone_ms, step_ms = (prompt_ms + steps * step_ms).reshape(-1), step_ms.reshape(-1)

    def bounded(rates: list[NDArray[np.float64]], gpus: NDArray[Any]) -> NDArray[np.float64]:
        rate = np.minimum.reduce([each[where] for each, where in zip(rates, picked, strict=True)])
        known = np.broadcast_to(gpus, rate.shape).astype(np.float64).reshape(-1)
        return bounds.gain_bounds(targets, rate.reshape(-1), alone_ms, step_ms, known, load)

    static = bounded([role.rate for role in roles], branch.gpus()[branch.cells[:, 0]][:, None])
    if not any(scales(planner) for planner in branch.planners):
        return static, static
    engine_rates = [role.engine_rate for role in roles]
    gpus = _gpus_per_request(branch, [each[where] for each, where in zip(engine_rates, picked, strict=True)], picked)
    whole, per_gpu = bounded([role.largest_rate for role in roles], gpus), bounded(engine_rates, gpus)
    is_per_gpu = np.array([target.endswith("_per_gpu") for target in targets])
    return static, np.where(is_per_gpu[:, None], per_gpu, whole)


def _gpus_per_request(
    branch: Branch, rates: Sequence[NDArray[np.float64]], picked: Sequence[Any]
) -> NDArray[np.float64]:
    """GPUs that one engine per role keeps busy at the rate of the slower: float64 [C, L].

    A planner can give each role just the engines it needs, so a request takes of each role no more GPU time than an
    engine takes that has all requests to itself.

    Args: rates, of one engine, by role: [C, L]. picked: indices of their role configurations.
    """
    widths = np.array([role.shape.gpus for role in branch.roles], dtype=np.float64)
    slower = np.minimum.reduce(rates)
    total: NDArray[np.float64] = np.zeros(slower.shape)
    for rate, where in zip(rates, picked, strict=True):
        busy = np.divide(slower, rate, out=np.ones_like(slower), where=np.isfinite(rate))
        total += widths[where[1]] * busy
    return total
