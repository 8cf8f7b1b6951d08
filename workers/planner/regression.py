"""Pass times as a linear function of what a pass holds, learned from a bounded, evenly spread set of samples.

Source: search spec, section 5.5.
"""

import math
from collections import deque
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Features = tuple[float, ...]
_Sample = tuple[int, Features, float]
"""Its number, features and duration in ms."""

_LEAST_MS = 1e-3
_ROUND_OFF = 1e-9
"""A slope that moves the time of the largest sample by less than this share of it is none: arithmetic noise."""


class MovingMean:
    """Mean of the last `size` values; leading zeros never enter, 0 before any value."""

    def __init__(self, size: int) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        """One value more."""
        if value != 0.0 or self._values:
            self._values.append(value)

    @property
    def value(self) -> float:
        """The mean."""
        return math.fsum(self._values) / len(self._values) if self._values else 0.0


class Samples:
    """At most `most` samples (features, ms). Beyond that the fullest bucket loses its oldest one.

    Buckets divide the range of each feature seen so far in equal parts, `buckets` in all (a square number with two
    features): a steady load at one point does not push out what is known elsewhere.
    """

    def __init__(self, features: int, most: int, buckets: int) -> None:
        self._most, self._num_added = most, 0
        self._per_axis = buckets if features == 1 else math.isqrt(buckets)
        self._low, self._high = [math.inf] * features, [-math.inf] * features
        self._buckets: dict[tuple[int, ...], deque[_Sample]] = {}

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def add(self, features: Features, duration_ms: float) -> None:
        """One sample more."""
        sample = (self._num_added, features, duration_ms)
        self._num_added += 1
        pairs = zip(features, self._low, self._high, strict=True)
        if all(low <= value <= high for value, low, high in pairs):
            self._buckets.setdefault(self._place(features), deque()).append(sample)
        else:
            self._widen(sample)
        if len(self) > self._most:
            self._drop_one()

    def _widen(self, sample: _Sample) -> None:
        """The range of a feature has grown: every sample finds its bucket anew."""
        known = [*self._by_age(), sample]
        self._low = [min(pair) for pair in zip(self._low, sample[1], strict=True)]
        self._high = [max(pair) for pair in zip(self._high, sample[1], strict=True)]
        self._buckets = {}
        for each in known:
            self._buckets.setdefault(self._place(each[1]), deque()).append(each)

    def _drop_one(self) -> None:
        """The oldest of the fullest bucket; of several, the one with the oldest sample."""
        place = max(self._buckets, key=lambda at: (len(self._buckets[at]), -self._buckets[at][0][0]))
        self._buckets[place].popleft()
        if not self._buckets[place]:
            del self._buckets[place]

    def _place(self, features: Features) -> tuple[int, ...]:
        return tuple(
            min(int((value - low) / (high - low) * self._per_axis), self._per_axis - 1) if high > low else 0
            for value, low, high in zip(features, self._low, self._high, strict=True)
        )

    def _by_age(self) -> list[_Sample]:
        return sorted(sample for bucket in self._buckets.values() for sample in bucket)

    def columns(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Features float64 [N, F] and durations float64 [N], ms, oldest first."""
        known = self._by_age()
        return np.array([features for _, features, _ in known]), np.array([ms for _, _, ms in known])


class PassTimes:
    """The fit over the samples. No pass gets shorter by holding more: a fit that says so is refused.

    clamped: features whose slope is set to 0 instead.
    """

    def __init__(
        self, features: int, most: int, buckets: int, least_samples: int, clamped: Collection[int] = ()
    ) -> None:
        self._samples = Samples(features, most, buckets)
        self._least, self._clamped = least_samples, clamped
        self._fit: NDArray[np.float64] | None = None
        self._is_stale = False

    def learn(self, features: Features, duration_ms: float) -> None:
        """One pass more; a pass without duration says nothing."""
        if duration_ms > 0.0:
            self._samples.add(features, duration_ms)
            self._is_stale = True

    @property
    def is_ready(self) -> bool:
        """Whether there are samples enough, and a fit that is not refused."""
        if self._is_stale:
            self._fit, self._is_stale = self._fitted(), False
        return self._fit is not None

    def ms(self, *features: float) -> float:
        """Duration of a pass. Raises: AssertionError before the times are ready."""
        assert self.is_ready
        assert self._fit is not None
        return max(_LEAST_MS, float(self._fit[0] + np.dot(self._fit[1:], features)))

    def _fitted(self) -> NDArray[np.float64] | None:
        if len(self._samples) < self._least:
            return None
        rows, durations = self._samples.columns()
        # Scaled to their largest value, features of very different size leave the fit well conditioned.
        scale = np.maximum(np.abs(rows).max(axis=0), 1.0)
        design = np.column_stack([np.ones(len(rows)), rows / scale])
        fit = np.linalg.lstsq(design, durations, rcond=None)[0]
        slopes = np.where(np.abs(fit[1:]) < _ROUND_OFF * durations.max(), 0.0, fit[1:])
        for feature in self._clamped:
            slopes[feature] = max(0.0, slopes[feature])
        return None if (slopes < 0.0).any() else np.concatenate([fit[:1], slopes / scale])
