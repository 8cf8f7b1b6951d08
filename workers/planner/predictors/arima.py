"""An ARIMA model whose order is chosen once, on the first points, and whose parameters follow every point.

The forecast is a function of the values alone, so equal histories, of however many replays, are fitted once.
Source: search spec, section 6; needs the extra `predictors`.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pmdarima
from threadpoolctl import threadpool_limits

from workers.planner.predictors.predictor import History, from_log, to_log

_FIRST_POINTS = 5

Values = tuple[float, ...]


class ArimaPredictor:
    """The last value until five points have been seen; constant values are their own forecast."""

    def __init__(self, is_log: bool) -> None:
        self._is_log = is_log
        self._history = History()

    def add(self, value: float) -> None:
        """See `Predictor`."""
        self._history.add(max(0.0, value))

    def predict(self) -> float:
        """See `Predictor`."""
        values = tuple(self._history.values)
        if len(values) < _FIRST_POINTS or len(set(values)) == 1:
            return self._history.last
        return _forecast(values, self._is_log)


@lru_cache(maxsize=4096)
def _forecast(values: Values, is_log: bool) -> float:
    """One step ahead. Raw values that no model explains (order 0, d, 0) are fitted as logarithms instead."""
    first = _first_points(values)
    chosen = _chosen(_as_logs(first) if is_log else first)
    if not is_log and (chosen.order[0], chosen.order[2]) == (0, 0):
        is_log, chosen = True, _chosen(_as_logs(first))
    model = pmdarima.ARIMA(order=chosen.order, with_intercept=chosen.with_intercept, suppress_warnings=True)
    with _quiet_and_single():
        ahead = float(model.fit(list(_as_logs(values) if is_log else values)).predict(n_periods=1)[0])
    return from_log(ahead) if is_log else max(0.0, ahead)


@lru_cache(maxsize=1024)
def _chosen(values: Values) -> Any:
    """The order and intercept that explain the values best."""
    with _quiet_and_single():
        return pmdarima.auto_arima(list(values), suppress_warnings=True, error_action="ignore")


@contextmanager
def _quiet_and_single() -> Iterator[None]:
    """Fits of a few points: no library threads, which would only wait for each other, and no advice on convergence."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield


def _first_points(values: Values) -> Values:
    """The points on which the order is chosen: five, or more while they are all alike."""
    count = _FIRST_POINTS
    while len(set(values[:count])) == 1:
        count += 1
    return values[:count]


def _as_logs(values: Values) -> Values:
    return tuple(to_log(value) for value in values)
