"""Load predictors, one interval ahead."""

import math

import pytest

from app.schemas.presets import LOAD_PREDICTORS, LoadPredictor
from tests.golden.files import cases
from workers.planner.predictors.catalogue import new_predictor

S12 = next(case for case in cases("traffic-probes") if case["id"] == "S12-load-predictor")
FITTED = [name for name in LOAD_PREDICTORS if name.startswith(("arima", "prophet"))]


def forecasts(settings: LoadPredictor, values: list[float]) -> list[float]:
    """Each value as forecast from those before it, and the one after the last."""
    predictor = new_predictor(settings, 10)
    found = []
    for value in values:
        found.append(predictor.predict())
        predictor.add(value)
    return [*found, predictor.predict()]


def test_kalman_forecasts_equal_the_peers() -> None:
    expected = S12["expected"]["kalman_default_forecasts_for_2_3_4_0_6_5_7"]
    assert forecasts(LOAD_PREDICTORS["kalman_default_raw"], [2, 3, 4, 0, 6, 5, 7]) == pytest.approx(expected, abs=1e-6)


def test_constant_forecast_is_the_last_value() -> None:
    assert forecasts(LOAD_PREDICTORS["constant_last"], [5, 0, 7]) == [0, 5, 0, 7]


@pytest.mark.parametrize("name", LOAD_PREDICTORS)
def test_leading_zeros_and_what_is_not_finite_never_enter(name: str) -> None:
    predictor = new_predictor(LOAD_PREDICTORS[name], 10)
    for value in (0.0, math.nan, 0.0, math.inf):
        predictor.add(value)
    assert predictor.predict() == 0.0
    predictor.add(3.0)
    assert predictor.predict() == 3.0


@pytest.mark.parametrize("name", LOAD_PREDICTORS)
def test_asking_twice_changes_nothing(name: str) -> None:
    once, twice = (new_predictor(LOAD_PREDICTORS[name], 10) for _ in range(2))
    for value in (4.0, 6.0, 5.0, 9.0, 7.0, 8.0):
        twice.predict()
        twice.predict()
        once.predict()
        once.add(value)
        twice.add(value)
    assert twice.predict() == once.predict()


@pytest.mark.parametrize("name", [name for name in LOAD_PREDICTORS if "kalman" in name])
def test_falling_series_is_never_forecast_below_zero(name: str) -> None:
    assert min(forecasts(LOAD_PREDICTORS[name], [50.0, 30.0, 10.0, 0.0, 0.0, 0.0])) == 0.0


@pytest.mark.parametrize("name", FITTED)
def test_fitted_predictor_repeats_the_last_value_until_it_has_five(name: str) -> None:
    values = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    found = forecasts(LOAD_PREDICTORS[name], values)
    assert found[:5] == pytest.approx([0.0, *values[:4]])
    assert all(0.0 <= each < 1e4 for each in found)
    assert found[6] != values[-1]


def test_prophet_follows_a_trend() -> None:
    assert forecasts(LOAD_PREDICTORS["prophet_w20_raw"], [10.0 * step for step in range(1, 11)])[-1] == pytest.approx(
        110.0, rel=0.05
    )


def test_prophet_forgets_what_is_older_than_its_window() -> None:
    settings = LOAD_PREDICTORS["prophet_w20_raw"].model_copy(update={"prophet_window_size": 6})
    recent = [5.0, 6.0, 5.0, 7.0, 6.0, 5.0]
    assert forecasts(settings, [900.0, *recent])[-1] == forecasts(settings, [1.0, *recent])[-1]


@pytest.mark.parametrize("name", ["arima_raw", "arima_log1p"])
def test_arima_of_a_constant_is_that_constant(name: str) -> None:
    assert forecasts(LOAD_PREDICTORS[name], [7.0] * 6)[-1] == 7.0
