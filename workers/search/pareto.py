"""The non-dominated front of candidates, and of points.

Source: search.md, section 3 (probe S09); service.md, section 8: rejecting work never wins, so fewer rejected requests
count as one more objective.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from workers.search.score import Scored, signed

Points = NDArray[np.float64]
"""Gains of several candidates: float64 [N, M], larger is better."""


def gains(objectives: Sequence[str], candidate: Scored) -> tuple[float, ...]:
    """Objective values such that larger is better, fewer rejected requests last."""
    values = (signed(name, value) for name, value in zip(objectives, candidate.values, strict=True))
    return (*values, -float(candidate.rejected))


def front_key(objectives: Sequence[str], candidate: Scored) -> tuple[float, tuple[float, ...], tuple[int, int, str]]:
    """Sort key along the last objective, ascending; then the others best first, then the simplest."""
    others = tuple(-value for value in gains(objectives, candidate)[:-2])
    return (candidate.values[-1], others, candidate.simplest_first)


def front_of(objectives: Sequence[str], candidates: Iterable[Scored]) -> list[Scored]:
    """The non-dominated candidates in the front's order; equal points all stay."""
    known = list(candidates)
    if not known:
        return []
    kept = on_front(np.array([gains(objectives, each) for each in known]))
    members = (each for each, stays in zip(known, kept.tolist(), strict=True) if stays)
    return sorted(members, key=lambda candidate: front_key(objectives, candidate))


def on_front(points: Points) -> NDArray[np.bool_]:
    """Which points no other one dominates (at least as good everywhere, better somewhere): bool [N]."""
    varying = points[:, np.ptp(points, axis=0) > 0] if len(points) else points
    if varying.shape[1] == 0:
        return np.ones(len(points), dtype=np.bool_)
    different, which = np.unique(-varying, axis=0, return_inverse=True)
    # Best first objective first, then best second: whoever dominates a point stands before it.
    return np.asarray(descending_on_front(-different)[which.reshape(-1)])


def descending_on_front(points: Points) -> NDArray[np.bool_]:
    """As `on_front`, for points in descending lexicographic order; of equal ones the first stays."""
    kept = np.ones(len(points), dtype=np.bool_)
    if points.shape[1] <= 2:
        last = points[:, -1]
        kept[1:] = last[1:] > np.maximum.accumulate(last)[:-1]
        return kept
    front = np.empty_like(points)
    size = 0
    for at, point in enumerate(points):
        kept[at] = not (front[:size] >= point).all(axis=1).any()
        if kept[at]:
            front[size] = point
            size += 1
    return kept
