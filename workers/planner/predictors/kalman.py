"""A Kalman filter over level and trend, one step ahead.

State (level, trend), transition [[1, 1], [0, 1]], measurement of the level, process noise diag(q_level, q_trend),
measurement noise r. Source: search spec, section 6 (probe S12).
"""

from app.schemas.presets import LoadPredictor
from workers.planner.predictors.predictor import History, from_log, to_log

_FIRST_VARIANCE = 1000.0


class KalmanPredictor:
    """Forecasts the level; the last value until `kalman_min_points` have been seen."""

    def __init__(self, settings: LoadPredictor) -> None:
        self._settings = settings
        self._history = History()
        self._level, self._trend = 0.0, 0.0
        # Covariance of (level, trend): symmetric, so three numbers.
        self._var_level, self._cov, self._var_trend = _FIRST_VARIANCE, 0.0, _FIRST_VARIANCE
        self._is_ahead = False

    def add(self, value: float) -> None:
        """See `Predictor`."""
        if not self._history.add(value):
            return
        measured = to_log(self._history.last) if self._settings.load_predictor_log1p else self._history.last
        if len(self._history.values) == 1:
            self._level = measured
        else:
            self._step_ahead()
            self._correct(measured)
        self._is_ahead = False

    def predict(self) -> float:
        """See `Predictor`."""
        if len(self._history.values) < max(1, self._settings.kalman_min_points):
            return max(0.0, self._history.last)
        self._step_ahead()
        return from_log(self._level) if self._settings.load_predictor_log1p else max(0.0, self._level)

    def _step_ahead(self) -> None:
        """The state of the next interval; once per interval, however often it is asked."""
        if self._is_ahead:
            return
        self._level += self._trend
        self._var_level += 2.0 * self._cov + self._var_trend + self._settings.kalman_q_level
        self._cov += self._var_trend
        self._var_trend += self._settings.kalman_q_trend
        self._is_ahead = True

    def _correct(self, measured: float) -> None:
        total = self._var_level + self._settings.kalman_r
        gain_level, gain_trend = self._var_level / total, self._cov / total
        surprise = measured - self._level
        self._level += gain_level * surprise
        self._trend += gain_trend * surprise
        self._var_trend -= gain_trend * self._cov
        self._cov -= gain_level * self._cov
        self._var_level -= gain_level * self._var_level
