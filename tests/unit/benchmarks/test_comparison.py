"""How a replay is compared with its reference."""

import math
from typing import Any

import pytest

from benchmarks.comparison import compare_metrics, compare_rows, relative_deviation, tolerance_of


def outs(ours: dict[str, Any], expected: dict[str, Any], is_aic: bool = False, **more: Any) -> list[str]:
    return [found.name for found in compare_metrics(ours, expected, is_aic, **more) if found.is_out]


def test_metric_equal_is_within() -> None:
    assert outs({"mean_ttft_ms": 10.0}, {"mean_ttft_ms": 10.0 + 1e-12}) == []


@pytest.mark.parametrize(
    ("is_aic", "deviation", "is_out"), [(False, 1e-8, True), (True, 1e-3, False), (True, 3e-3, True)]
)
def test_metric_tolerance_depends_on_the_timing(is_aic: bool, deviation: float, is_out: bool) -> None:
    assert bool(outs({"duration_ms": 1000.0}, {"duration_ms": 1000.0 * (1 + deviation)}, is_aic)) is is_out


def test_metric_sketched_percentile_may_be_a_thousandth_off() -> None:
    assert outs({"p90_itl_ms": 10.0}, {"p90_itl_ms": 10.004152608697646}) == []
    assert outs({"p90_itl_ms": 1.0}, {"p90_itl_ms": 0.9989999999999999}) == []
    assert outs({"mean_itl_ms": 10.0}, {"mean_itl_ms": 10.004152608697646}) == ["mean_itl_ms"]
    assert tolerance_of("p90_ttft_ms", is_aic=False) == 1e-9


def test_metric_undefined_equals_the_zero_of_the_reference() -> None:
    assert outs({"mean_tpot_ms": None}, {"mean_tpot_ms": 0.0}) == []
    assert outs({"mean_tpot_ms": None}, {"mean_tpot_ms": 5.0}) == ["mean_tpot_ms"]


def test_metric_absent_here_is_out() -> None:
    assert outs({}, {"mean_ttft_ms": 1.0}) == ["mean_ttft_ms"]


def test_metric_of_the_host_or_unstable_is_passed_over() -> None:
    expected = {"wall_time_ms": 3.0, "power_w": 2.0, "mean_ttft_ms": 1.0, "estimator": "fixed", "is_ok": True}
    assert outs({}, expected, unstable=("mean_ttft_ms",)) == []


def test_spread_of_rounding_noise_is_no_deviation() -> None:
    assert relative_deviation("std_ttft_ms", 0.0, 3e-13) == 0.0
    assert relative_deviation("std_ttft_ms", 0.0, 3e-3) == 1.0


def test_deviation_is_relative_to_the_larger_side() -> None:
    assert relative_deviation("x", 2.0, 1.0) == relative_deviation("x", 1.0, 2.0) == 0.5


def test_rows_are_compared_in_one_order() -> None:
    ours = [{"arrival_time_ms": 0.0, "input_length": 5}, {"arrival_time_ms": 0.0, "input_length": 3}]
    assert not [found for found in compare_rows(ours, ours[::-1], is_aic=False) if found.is_out]


def test_rows_differing_field_is_named() -> None:
    ours = [{"session_id": "a", "first_token_ms": 5.0}]
    theirs = [{"session_id": "a", "first_token_ms": 6.0}]
    assert [found.name for found in compare_rows(ours, theirs, is_aic=False) if found.is_out] == [
        "request.first_token_ms"
    ]


def test_rows_of_another_count_are_out() -> None:
    found = list(compare_rows([], [{"arrival_time_ms": 0.0}], is_aic=False))
    assert [(item.name, item.relative) for item in found] == [("requests", math.inf)]


def test_rows_field_unknown_to_either_side_is_passed_over() -> None:
    ours, theirs = [{"a": 1, "b": None}], [{"a": 1, "c": 2}]
    assert [found.name for found in compare_rows(ours, theirs, is_aic=False)] == ["request.a"]
