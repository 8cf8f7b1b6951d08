"""How far a front reaches: the area that it dominates, and how much of it a point adds.

Areas are of two objectives; with more of them a point counts for all or nothing: whether it lies beyond every known one.
"""

from collections.abc import Sequence

import numpy as np

from workers.search.pareto import Points, on_front

SETTLED = 0.005
"""A front that moves by no more than this share of its hypervolume stands still."""


def hypervolume(points: Sequence[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Area dominated by points of two gains, above a reference that none falls below."""
    area, reached = 0.0, reference[1]
    for first, second in sorted(points, reverse=True):
        if second > reached:
            area += (first - reference[0]) * (second - reached)
            reached = second
    return area


def has_settled(before: Points, after: Points) -> bool:
    """Whether `after`, which includes `before`, reaches hardly further: float64 [N, M] both."""
    if not len(before) or not len(after):
        return False
    if after.shape[1] != 2:
        reach = Reach(before)
        return all(reach.share_of(point) == 0 for point in after)
    reference = _reference(after)
    old, new = (_area(points, reference) for points in (before, after))
    return new - old <= SETTLED * new


class Reach:
    """What points reach together, one more at a time."""

    def __init__(self, points: Points) -> None:
        """Args: points, float64 [N, M], N > 0; their hypervolume is the scale of `share_of`."""
        self._points, self._reference = points[on_front(points)], _reference(points)
        self._whole = self._area = _area(self._points, self._reference)

    def share_of(self, point: Points) -> float:
        """How much of the hypervolume at the beginning a point would add: point [M]. Raises nothing below the reference."""
        if len(point) != 2:
            beaten = self._points >= point - SETTLED * np.abs(point)
            return 0.0 if beaten.all(axis=1).any() else 1.0
        raised = np.vstack([self._points, np.maximum(point, self._reference)])
        added = _area(raised, self._reference) - self._area
        return added / self._whole if self._whole > 0 else float(added > 0)

    def add(self, point: Points) -> None:
        """Take a point in."""
        self._points = np.vstack([self._points, np.maximum(point, self._reference)])
        self._area = _area(self._points, self._reference)


def _reference(points: Points) -> Points:
    """Nothing at all, or the worst seen where gains are negative: [M]."""
    return np.asarray(np.minimum(points.min(axis=0), 0.0))


def _area(points: Points, reference: Points) -> float:
    if points.shape[1] != 2:
        return 0.0
    return hypervolume(
        [(float(one), float(other)) for one, other in points], (float(reference[0]), float(reference[1]))
    )
