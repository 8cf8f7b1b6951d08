"""What a history says about a space: who has been asked, who leads, and what needs no replay any more."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.schemas.goal import Goal
from app.schemas.status import ReasonCode, TrialStatus
from workers.search.concurrencies import concurrencies
from workers.search.history import Told
from workers.search.locate import Locator, Place
from workers.search.outline import Outline
from workers.search.pareto import Points, front_key, gains, on_front
from workers.search.score import Scored, signed

TRUST = 1e-9
"""Relative rounding that a replay may exceed its bound by without disproving it."""

Arm = tuple[int, int]
"""Group and option."""

_OF_THE_GROUP = frozenset(
    {
        ReasonCode.NO_KV_BUDGET,
        ReasonCode.KV_CAPACITY_BELOW_ONE_REQUEST,
        ReasonCode.NO_PERF_DATA,
        ReasonCode.BACKEND_CANNOT_RUN_SHAPE,
    }
)
SETTLED = frozenset({TrialStatus.FEASIBLE, TrialStatus.INFEASIBLE, TrialStatus.UNSUPPORTED})
"""Verdicts that another replay would repeat."""


@dataclass(slots=True)
class Standing:
    """The history in the space's own numbers.

    asked:    trials per arm, whatever became of them. settled: arms with a verdict.
    hopeless: groups whose capacity or data rule out every option.
    leading:  of a Pareto goal, the trials on the front, along it. leader: the best of a scalar goal.
    complete: gains of the trials on the front that reject nothing: float64 [F, M].
    trusted:  False once a replay beat its bound; then nothing is bounded out.
    """

    outline: Outline
    goal: Goal
    asked: dict[Arm, list[Told]] = field(default_factory=dict)
    settled: set[Arm] = field(default_factory=set)
    hopeless: set[int] = field(default_factory=set)
    leading: tuple[int, ...] = ()
    complete: Points = field(default_factory=lambda: np.zeros((0, 0)))
    leader: Scored | None = None
    trusted: bool = True

    @classmethod
    def of(cls, outline: Outline, locator: Locator, history: Sequence[Told]) -> "Standing":
        """Reads a history once."""
        goal = outline.space.config.goal
        standing = cls(outline, goal)
        for told, place in zip(history, locator.places(history), strict=True):
            standing._hear(told, place)
        if goal.is_pareto:
            standing._set_front([told for told in history if told.status == TrialStatus.FEASIBLE])
        return standing

    def _set_front(self, feasible: Sequence[Told]) -> None:
        if not feasible:
            return
        objectives, scored = self.goal.objectives, [light(told) for told in feasible]
        points = np.array([gains(objectives, each) for each in scored])
        kept = on_front(points)
        members = sorted((scored[at] for at in np.flatnonzero(kept)), key=lambda each: front_key(objectives, each))
        self.leading = tuple(int(each.canonical) for each in members)
        self.complete = points[kept & (points[:, -1] == 0)][:, :-1]

    def _hear(self, told: Told, place: Place | None) -> None:
        arm = None if place is None else self._arm(*place)
        if arm is not None:
            self.asked.setdefault(arm, []).append(told)
            if told.status in SETTLED:
                self.settled.add(arm)
            # Neither capacity nor data depend on the router.
            if told.reason in _OF_THE_GROUP:
                self.hopeless.add(arm[0])
        if told.status == TrialStatus.FEASIBLE:
            self._lead(told, arm)

    def _arm(self, branch: int, index: int) -> Arm:
        own = self.outline.branches[branch]
        group, option = divmod(index, own.num_options)
        return own.first + group, option

    def _lead(self, told: Told, arm: Arm | None) -> None:
        candidate = light(told)
        if self.leader is None or (candidate.rejected, -candidate.score) < (self.leader.rejected, -self.leader.score):
            self.leader = candidate
        # Bounds are for whoever completes all; of the others none ranks before a complete one.
        if arm is not None and told.objectives and not told.rejected:
            known = self.outline.gains_of(scaled=self.is_scaled(arm))[:, arm[0]]
            named = zip(self.goal.objectives, told.objectives, known.tolist(), strict=True)
            self.trusted &= all(signed(name, value) <= bound + TRUST * abs(bound) for name, value, bound in named)

    def is_scaled(self, arm: Arm) -> bool:
        """Whether the planner of an arm scales."""
        return self.outline.branches[self.outline.branch_of(arm[0])].is_scaled(arm[1])

    def has_asked_all(self, branch: int) -> bool:
        """Whether every candidate of a branch has been asked; never under a range of KV loads."""
        own = self.outline.branches[branch]
        asked = sum(own.first <= group < own.first + own.num_groups for group, _ in self.asked)
        is_finite = self.outline.space.config.workload.kv_load_range is None
        return is_finite and asked == own.num_groups * own.num_options

    def concurrencies(self, arm: Arm) -> set[int]:
        """Under a range of KV loads, the concurrencies that an arm has been asked with."""
        ratios = (each.deployment.kv_load_ratio or 0.0 for each in self.asked.get(arm, ()))
        return concurrencies(ratios, int(self.outline.capacity[arm[0]]))

    def alive(self, groups: NDArray[np.int64], *, scaled: bool = False) -> NDArray[np.bool_]:
        """Which groups may still hold something that ranks first, or belongs on the front: bool [len(groups)].

        scaled: asks about the options whose planner scales instead of the others.

        A group is out if its bound lies strictly below what is there: below the leader's score, or dominated by a
        member of the front. Whoever rejects requests rules nothing out: a complete candidate ranks before it.
        """
        alive = np.ones(groups.size, dtype=np.bool_)
        if not self.trusted:
            return alive
        bounds = self.outline.gains_of(scaled=scaled)[:, groups]
        raised = bounds + TRUST * np.abs(bounds) + TRUST
        if self.goal.is_pareto:
            return ~_dominated(raised, self.complete) if len(self.complete) else alive
        if self.leader is not None and self.leader.rejected == 0:
            alive = raised[0] >= self.leader.score
        return alive


def light(told: Told) -> Scored:
    """A result named by its trial number: enough to know who leads, and much cheaper than its canonical JSON."""
    score = told.score if told.score is not None else 0.0
    return Scored(str(told.number), told.deployment.used_gpus, score, told.objectives, told.rejected)


def _dominated(raised: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which columns some point reaches in every row; being raised, a bound reached is a bound exceeded."""
    if len(raised) != 2:
        reached = (points[:, :, None] >= raised[None]).all(axis=1)
        return np.asarray(reached.any(axis=0))
    order = np.argsort(-points[:, 0], kind="stable")
    best_second = np.maximum.accumulate(points[order, 1])
    count = np.searchsorted(-points[order, 0], -raised[0], side="right")
    return np.asarray((count > 0) & (best_second[np.maximum(count - 1, 0)] >= raised[1]))
