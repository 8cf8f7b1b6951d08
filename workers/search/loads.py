"""A range of KV loads as a finite, fixed sequence of ratios, coarse ones first.

Ratios are low + (high - low) * j / 2^level: both ends and the middle first, then what lies beside a member of the
front, level by level up to `MAX_LEVEL`.
"""

from collections.abc import Iterable

FIRST_LEVEL = 1
MAX_LEVEL = 8


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


def beside(leading: Iterable[int], asked: Iterable[int], level: int) -> list[int]:
    """Steps of `level` next to a leading step of a coarser one and not asked yet, ascending."""
    stride, known = 1 << (MAX_LEVEL - level), set(asked)
    near = {step + side for step in leading if level_of(step) < level for side in (-stride, stride)}
    return sorted(step for step in near - known if 0 <= step <= 1 << MAX_LEVEL)
