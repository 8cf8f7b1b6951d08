"""A range of KV loads as a finite, fixed sequence of ratios, refined where the front is.

Ratios are low + (high - low) * j / 2^level: both ends and the middle first, then the middles between a member of the
front and its neighbours, level by level, until a level moves the front by less than `SETTLED` of its hypervolume, or
until `MAX_LEVEL`.
"""

from collections.abc import Iterable, Sequence

import numpy as np

FIRST_LEVEL = 1
MAX_LEVEL = 8
SETTLED = 0.005


def first_ratios(low: float, high: float) -> list[float]:
    """Both ends and the middle."""
    return [low, high, ratio_at(low, high, 1, 1)]


def ratio_at(low: float, high: float, step: int, level: int) -> float:
    """The ratio number `step` of 2^level."""
    return low + (high - low) * (step / (1 << level))


def step_of(low: float, high: float, ratio: float) -> int:
    """Number of the ratio among the 2^MAX_LEVEL finest ones."""
    return round((ratio - low) / (high - low) * (1 << MAX_LEVEL))


def level_of(step: int) -> int:
    """The coarsest level that has this step of the finest ones."""
    level = MAX_LEVEL
    while level > 0 and step % 2 == 0:
        step, level = step // 2, level - 1
    return level


def between(asked: Iterable[int], leading: Iterable[int], level: int) -> list[int]:
    """Steps halfway between a leading step and its asked neighbours that belong to `level`, ascending."""
    known = sorted(set(asked))
    found = set()
    for step in leading:
        at = known.index(step)
        for neighbour in (*known[max(0, at - 1) : at], *known[at + 1 : at + 2]):
            middle, odd = divmod(step + neighbour, 2)
            if not odd and level_of(middle) == level and middle not in known:
                found.add(middle)
    return sorted(found)


def hypervolume(points: Sequence[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Area dominated by points of two gains, above a reference that none falls below."""
    area, reached = 0.0, reference[1]
    for first, second in sorted(points, reverse=True):
        if second > reached:
            area += (first - reference[0]) * (second - reached)
            reached = second
    return area


def has_settled(before: Sequence[tuple[float, ...]], after: Sequence[tuple[float, ...]]) -> bool:
    """Whether a level moved the front too little to go on; with more than two objectives, whether not at all."""
    if not before or not after:
        return False
    if len(after[0]) != 2:
        return set(before) == set(after)
    low = np.min(np.array([*before, *after]), axis=0)
    reference = (float(low[0]), float(low[1]))
    old = hypervolume([(p[0], p[1]) for p in before], reference)
    new = hypervolume([(p[0], p[1]) for p in after], reference)
    return new - old <= SETTLED * old
