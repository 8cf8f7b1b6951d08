"""A range of KV loads under a Pareto goal: which loads of which arms to try next.

1. *Coarse.* In a small space every arm at both ends and the middle of the range. Elsewhere those groups and loads first
   that are expected on the front, then what is expected right behind it, and so on, until the later half of these
   trials has moved the front by no more than `SETTLED` of its hypervolume.
2. *Fine.* Loads beside those on the front, level by level, where the middle between its neighbours would add anything
   worth a replay; a level that has moved the front by no more than `SETTLED` is the last.
3. *Options.* Other routers and planners for what is on the front, at its own loads; ends as 1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from workers.search.history import Told
from workers.search.hypervolume import SETTLED, Reach, has_settled
from workers.search.loads import FIRST_LEVEL, MAX_LEVEL, beside, first_ratios, level_of, ratio_at, step_of
from workers.search.pareto import Points, descending_on_front, gains
from workers.search.standing import Arm, Standing, light
from workers.traffic.load_shape import kv_load_concurrency

Pick = tuple[Arm, float | None]

FEWEST = 64
"""Trials before a front may be said to stand still."""

_WORTH = SETTLED / 20
"""Least share of the hypervolume that a finer load is expected to add; what replays say is more, as fronts bulge."""

_UNKNOWN = SETTLED / 10
"""What a load adds that has no neighbour on one side."""


class NewLoads:
    """Hands out ratios that mean a concurrency their arm has not been asked with, each concurrency once."""

    def __init__(self, standing: Standing) -> None:
        self._standing, self._known = standing, dict[Arm, set[int]]()

    def of(self, arm: Arm, ratios: Iterable[float]) -> Iterator[Pick]:
        """Those of the ratios that are new."""
        known = self._known.setdefault(arm, self._standing.concurrencies(arm))
        capacity = int(self._standing.outline.capacity[arm[0]])
        for ratio in ratios:
            concurrency = kv_load_concurrency(ratio, capacity)
            if concurrency not in known:
                known.add(concurrency)
                yield arm, ratio


def coarse(standing: Standing, branch: int | None, first_option: Callable[[int], int]) -> Iterator[Pick]:
    """Ends and middles of the range, most promising first. Args: first_option, of a group."""
    known, ratios, new = standing.outline, first_ratios(*_limits(standing)), NewLoads(standing)
    asked = ((arm, told) for arm, tried in standing.asked.items() if arm[1] == first_option(arm[0]) for told in tried)
    if _stands_still(standing, [told for _, told in asked if _level(standing, told) <= FIRST_LEVEL]):
        return
    rows = known.promising
    if branch is not None:
        own = known.branches[branch]
        rows = rows[(rows // len(ratios) >= own.first) & (rows // len(ratios) < own.first + own.num_groups)]
    for row in _in_layers(known.expected.reshape(len(known.expected), -1)[:, rows].T):
        group, place = divmod(int(rows[row]), len(ratios))
        arm = (group, first_option(group))
        alive = standing.alive(np.array([group]), scaled=standing.is_scaled(arm))[0]
        if alive and group not in standing.hopeless:
            yield from new.of(arm, [ratios[place]])


def options(standing: Standing, branch: int | None, others: Callable[[int], Sequence[int]]) -> Iterator[Pick]:
    """Other options for the loads on the front. Args: others, of a group, its options behind the first."""
    leads = [each for each in _leading(standing) if branch is None or standing.outline.branch_of(each.arm[0]) == branch]
    of = {each.arm[0]: others(each.arm[0]) for each in leads}
    tried = [told for (group, option), known in standing.asked.items() for told in known if option in of.get(group, ())]
    if _stands_still(standing, tried):
        return
    new = NewLoads(standing)
    for place in range(max((len(each) for each in of.values()), default=0)):
        for each in leads:
            for option in of[each.arm[0]][place : place + 1]:
                yield from new.of((each.arm[0], option), [each.ratio])


def fine(standing: Standing, branch: int | None) -> Iterator[Pick]:
    """The next level of loads beside the front, most to gain first, unless the last level moved it too little."""
    asked = [told for known in standing.asked.values() for told in known if told.objectives and not told.rejected]
    if not asked:
        return
    known, levels = _points(standing, asked), np.array([_level(standing, told) for told in asked])
    for level in range(FIRST_LEVEL + 1, MAX_LEVEL + 1):
        if level > FIRST_LEVEL + 1 and has_settled(known[levels <= level - 2], known[levels < level]):
            return
        found = _worthwhile(_beside_front(standing, branch, level), known)
        yield from found
        if found:
            return


class _Lead(NamedTuple):
    """A trial on the front."""

    arm: Arm
    ratio: float


class _Finer(NamedTuple):
    """A load between two others of its arm. guess: the gains in their middle, [M]; None with only one neighbour."""

    pick: Pick
    guess: Points | None


def _leading(standing: Standing) -> list[_Lead]:
    """The front, both ends first, then ever more of what lies between."""
    placed = {told.number: (arm, told) for arm, asked in standing.asked.items() for told in asked}
    along = [placed[number] for number in standing.leading if number in placed]
    return [_Lead(along[at][0], along[at][1].deployment.kv_load_ratio or 0.0) for at in _spread(len(along))]


def _beside_front(standing: Standing, branch: int | None, level: int) -> Iterator[_Finer]:
    leads, limits, new = set(standing.leading), _limits(standing), NewLoads(standing)
    for arm, told in sorted(standing.asked.items()):
        if branch is not None and standing.outline.branch_of(arm[0]) != branch:
            continue
        at = {step_of(*limits, each.deployment.kv_load_ratio or 0.0): each for each in told}
        for step in beside([step for step, each in at.items() if each.number in leads], at, level):
            ends = [
                max((each for each in at if each < step), default=None),
                min((each for each in at if each > step), default=None),
            ]
            known = [_points(standing, [at[each]]) for each in ends if each is not None]
            guess = np.vstack(known).mean(axis=0) if sum(map(len, known)) == 2 else None
            for pick in new.of(arm, [ratio_at(*limits, step, MAX_LEVEL)]):
                yield _Finer(pick, guess)


def _worthwhile(found: Iterable[_Finer], known: Points) -> list[Pick]:
    """Those that would add something to what is known and to each other; none if that is too little in all."""
    reach, kept, total, rest = Reach(known), list[Pick](), 0.0, list[tuple[float, Points, Pick]]()
    for pick, guess in found:
        if guess is None:
            kept.append(pick)
            total += _UNKNOWN
        else:
            rest.append((reach.share_of(guess), guess, pick))
    for old, guess, pick in sorted(rest, key=lambda each: -each[0]):
        if old >= _WORTH and (share := reach.share_of(guess)) >= _WORTH:
            reach.add(guess)
            kept.append(pick)
            total += share
    return kept if total > SETTLED else []


def _stands_still(standing: Standing, told: Sequence[Told]) -> bool:
    """Whether the later half of these trials, in order, has hardly moved the front of all of them."""
    if len(told) < FEWEST:
        return False
    ordered = sorted(told, key=lambda each: each.number)
    return has_settled(_points(standing, ordered[: len(ordered) // 2]), _points(standing, ordered))


def _points(standing: Standing, told: Sequence[Told]) -> Points:
    """Gains of the trials that reject nothing: float64 [N, M]."""
    objectives = standing.goal.objectives
    rows = [gains(objectives, light(each))[:-1] for each in told if each.objectives and not each.rejected]
    return np.array(rows, dtype=np.float64).reshape(-1, len(objectives))


def _in_layers(points: Points) -> Iterator[int]:
    """Rows of points front by front, each spread over its length. Args: points, [N, M], in descending order."""
    left = np.arange(len(points))
    while left.size:
        kept = descending_on_front(points[left])
        layer = left[kept].tolist()
        yield from (layer[at] for at in _spread(len(layer)))
        left = left[~kept]


def _spread(size: int) -> list[int]:
    """0..size-1: both ends, then ever more of what lies between."""
    order, gaps = [at for at in dict.fromkeys((0, size - 1)) if at >= 0], [(0, size - 1)]
    for low, high in gaps:
        middle = (low + high) // 2
        if low < middle < high:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order


def _level(standing: Standing, told: Told) -> int:
    return level_of(step_of(*_limits(standing), told.deployment.kv_load_ratio or 0.0))


def _limits(standing: Standing) -> tuple[float, float]:
    limits = standing.outline.space.config.workload.kv_load_range
    assert limits is not None
    return limits
