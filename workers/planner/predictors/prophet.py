"""Prophet over a sliding window of intervals.

The forecast is a function of the window and its place in time, so equal histories are fitted once.
Source: search spec, section 6; needs the extra `predictors`.
"""

import logging
import warnings
from datetime import datetime, timedelta
from functools import lru_cache

import pandas as pd
from prophet import Prophet

from app.schemas.presets import LoadPredictor
from workers.planner.predictors.predictor import History, from_log, to_log

MIN_POINTS = 5
_START = datetime(2024, 1, 1)
"""Any Monday: seasons are told from the distance to it."""

logging.getLogger("cmdstanpy").setLevel(logging.WARNING)  # It reports every fit,
logging.getLogger("prophet.plot").setLevel(logging.CRITICAL)  # and that it cannot draw.


class ProphetPredictor:
    """The last value until five points have been seen."""

    def __init__(self, settings: LoadPredictor, interval_s: int) -> None:
        self._is_log, self._window, self._interval_s = (
            settings.load_predictor_log1p,
            settings.prophet_window_size,
            interval_s,
        )
        self._history = History()

    def add(self, value: float) -> None:
        """See `Predictor`."""
        self._history.add(max(0.0, value))

    def predict(self) -> float:
        """See `Predictor`."""
        values = self._history.values
        window = tuple(to_log(value) if self._is_log else value for value in values[-self._window :])
        if len(window) < MIN_POINTS:
            return self._history.last
        ahead = _forecast(window, len(values), self._interval_s)
        return from_log(ahead) if self._is_log else max(0.0, ahead)


@lru_cache(maxsize=4096)
def _forecast(window: tuple[float, ...], next_step: int, interval_s: int) -> float:
    """The value of step `next_step`, the one after the window."""

    def stamp(step: int) -> datetime:
        return _START + timedelta(seconds=step * interval_s)

    stamps = [stamp(step) for step in range(next_step - len(window), next_step)]
    model = Prophet(uncertainty_samples=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It uses what the pandas it asks for has deprecated.
        model.fit(pd.DataFrame({"ds": stamps, "y": window}))
        return float(model.predict(pd.DataFrame({"ds": [stamp(next_step)]}))["yhat"].iloc[0])
