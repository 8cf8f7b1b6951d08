"""Predictors by their settings. Those that need the extra `predictors` are imported only when they are asked for."""

from app.schemas.presets import LoadPredictor
from workers.planner.predictors import constant
from workers.planner.predictors.constant import ConstantPredictor
from workers.planner.predictors.kalman import KalmanPredictor
from workers.planner.predictors.predictor import Predictor

_FITTED_MIN_POINTS = 5


def min_points(settings: LoadPredictor) -> int:
    """Values that the predictor wants to have seen before it forecasts by more than the last one."""
    family = settings.load_predictor
    if family == "constant":
        return constant.MIN_POINTS
    return settings.kalman_min_points if family == "kalman" else _FITTED_MIN_POINTS


def new_predictor(settings: LoadPredictor, interval_s: int) -> Predictor:
    """A fresh predictor. Raises: ImportError where the extra is not installed."""
    family = settings.load_predictor
    if family == "constant":
        return ConstantPredictor()
    if family == "kalman":
        return KalmanPredictor(settings)
    if family == "arima":
        from workers.planner.predictors.arima import ArimaPredictor

        return ArimaPredictor(settings.load_predictor_log1p)
    from workers.planner.predictors.prophet import ProphetPredictor

    return ProphetPredictor(settings, interval_s)
