"""The choice of a load predictor before a study."""

import importlib.util
import math
from typing import Any

import numpy as np
import pytest

from app.schemas import policies
from app.schemas.presets import LOAD_PREDICTORS, LoadPredictor
from tests.golden.files import cases
from workers.planner.subsweep import (
    MOST_WINDOWS,
    Choice,
    Entry,
    Window,
    choose,
    mean_loss,
    window_loss,
    windows,
    without_trace,
)

S12 = next(case for case in cases("traffic-probes") if case["id"] == "S12-load-predictor")
EXPECTED = S12["expected"]


def entries(*names: str) -> list[Entry]:
    return [Entry(name, LOAD_PREDICTORS[name]) for name in names]


def course() -> list[Window]:
    """The windows of the probe, from requests."""
    counts, interval_s = S12["config"]["counts"], S12["config"]["interval_s"]
    place = np.repeat(np.arange(len(counts)), counts)
    spread = np.concatenate([np.linspace(0.0, 0.9, count) for count in counts])
    arrival_ms = (place + spread) * interval_s * 1000.0
    return windows(arrival_ms, 100 + 10 * place, 20 + place, interval_s)


def choice(*names: str) -> Choice:
    return choose(entries(*names), course(), S12["config"]["interval_s"])


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As on an installation that lacks these packages."""
    found = importlib.util.find_spec

    def find(name: str) -> Any:
        return None if name in packages else found(name)

    monkeypatch.setattr(policies, "find_spec", find)


def test_windows_of_a_trace_count_requests_and_average_lengths() -> None:
    assert [[w.num_requests, w.isl, w.osl] for w in course()] == EXPECTED["windows"]


def test_window_loss_equals_the_peers() -> None:
    single = EXPECTED["single_window_loss"]
    assert window_loss(Window(*single["forecast"]), Window(*single["actual"])) == pytest.approx(
        single["loss"], abs=1e-12
    )


@pytest.mark.parametrize("warm_up", [1, 5])
@pytest.mark.parametrize("name", EXPECTED["losses"])
def test_mean_loss_equals_the_peers(name: str, warm_up: int) -> None:
    loss = mean_loss(LOAD_PREDICTORS[name], course(), S12["config"]["interval_s"], warm_up)
    assert loss == pytest.approx(EXPECTED["losses"][name][f"warmup_{warm_up}"], abs=1e-6)


def test_least_loss_wins_after_the_longest_warm_up_of_all() -> None:
    found = choice("constant_last", "kalman_reactive_raw", "kalman_default_raw")
    assert (found.winner.name, found.warm_up, found.num_windows) == ("kalman_reactive_raw", 5, 10)
    assert {each.entry.name: each.loss for each in found.judged} == pytest.approx(
        {name: EXPECTED["losses"][name]["warmup_5"] for name in (each.entry.name for each in found.judged)}, abs=1e-6
    )


def test_first_candidate_wins_a_tie() -> None:
    again = Entry("again", LOAD_PREDICTORS["constant_last"])
    assert choose([again, *entries("constant_last")], course(), 10).winner.name == "again"


def test_first_candidate_stands_where_no_window_is_left() -> None:
    found = choose(entries("kalman_default_raw", "constant_last"), course()[:5], 10)
    assert (found.winner.name, [each.loss for each in found.judged]) == ("kalman_default_raw", [None, None])
    assert "no candidate has a loss" in found.reason


def test_long_trace_is_judged_by_its_last_windows() -> None:
    quiet, busy = [Window(1.0, 10.0, 10.0)] * 500, [Window(9.0, 90.0, 90.0)] * MOST_WINDOWS
    found = choose(entries("constant_last"), [*quiet, *busy], 10)
    assert (found.num_windows, found.judged[0].loss) == (MOST_WINDOWS, 0.0)


def test_candidate_without_its_package_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pmdarima", "prophet")
    found = choice("arima_raw", "prophet_w20_raw", "constant_last")
    assert found.winner.name == "constant_last"
    assert found.warm_up == 5, "the same windows count as where the package is installed"
    reasons = {each.entry.name: each.reason for each in found.judged}
    assert "needs pmdarima, of the extra 'predictors'" in str(reasons["arima_raw"])
    assert "needs prophet" in str(reasons["prophet_w20_raw"])


def test_candidates_that_all_lack_their_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pmdarima")
    with pytest.raises(ValueError, match="extra 'predictors'"):
        choice("arima_raw", "arima_log1p")


def test_synthetic_traffic_takes_the_first_candidate_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert without_trace(entries("arima_raw", "constant_last"), 180).winner.name == "arima_raw"
    without(monkeypatch, "pmdarima")
    assert without_trace(entries("arima_raw", "constant_last"), 180).winner.name == "constant_last"


def test_candidate_that_fails_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = Entry("faulty", LoadPredictor(load_predictor="kalman", kalman_r=1e-300, kalman_q_level=1e-300))
    monkeypatch.setattr("workers.planner.subsweep.mean_loss", _failing(mean_loss))
    found = choose([faulty, *entries("constant_last")], course(), 10)
    assert (found.winner.name, found.judged[0].reason) == ("constant_last", "failed: ArithmeticError")
    assert found.judged[1].loss is not None
    assert math.isfinite(found.judged[1].loss)


def _failing(real: Any) -> Any:
    def loss(settings: LoadPredictor, *rest: Any) -> float:
        if settings.kalman_r < 1e-200:
            raise ArithmeticError
        return float(real(settings, *rest))

    return loss
