"""What every load predictor offers, and the history they share. Source: search spec, section 6."""

import math
from typing import Protocol


class Predictor(Protocol):
    """Forecasts the next value of one series, an interval at a time."""

    def add(self, value: float) -> None:
        """The value observed in the interval that has ended."""

    def predict(self) -> float:
        """The value of the interval that begins, at least 0; the same however often it is asked."""


class History:
    """The values a predictor has seen: leading zeros never enter, anything not finite counts as 0."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self, value: float) -> bool:
        """Whether the value entered."""
        known = value if math.isfinite(value) else 0.0
        if known == 0.0 and not self.values:
            return False
        self.values.append(known)
        return True

    @property
    def last(self) -> float:
        """The latest value; 0 before any."""
        return self.values[-1] if self.values else 0.0


def to_log(value: float) -> float:
    """ln(1 + value), negative values counted as 0."""
    return math.log1p(max(0.0, value))


def from_log(value: float) -> float:
    """The inverse of `to_log`, at least 0."""
    return max(0.0, math.expm1(value))
