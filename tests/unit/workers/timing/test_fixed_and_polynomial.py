"""Fixed and polynomial step times (engine spec, section 10)."""

import pytest

from workers.timing.fixed import FixedTimes
from workers.timing.polynomial import PolynomialTimes
from workers.timing.step_time import whole_nanoseconds


def test_fixed_prefill_is_charged_only_for_computed_tokens() -> None:
    times = FixedTimes(10.0, 1.0)
    assert [times.prefill_ms(*batch) for batch in ((1, 100, 0), (8, 100, 99), (1, 64, 64), (0, 0, 0))] == [10, 10, 0, 0]


def test_fixed_decode_is_charged_only_when_something_decodes() -> None:
    times = FixedTimes(10.0, 1.0)
    assert [times.decode_ms(5, 500, 100), times.decode_ms(0, 0, 0)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("batch", "expected_ms"), [((2, 250, 0), 24.19839), ((1, 4, 0), 16.56216), ((1, 64, 64), 0.0), ((0, 0, 0), 0.0)]
)
def test_polynomial_prefill_equals_observed_passes(batch: tuple[int, int, int], expected_ms: float) -> None:
    assert PolynomialTimes(64_000).prefill_ms(*batch) == expected_ms


@pytest.mark.parametrize(("context", "expected_ms"), [(5, 7.074162), (31, 13.493146), (147, 31.531958), (300, 34.01)])
def test_polynomial_decode_equals_observed_passes(context: int, expected_ms: float) -> None:
    """Pool of 200 tokens: every odd context is a near-tie of the nanosecond; a full pool caps the share at 1."""
    assert PolynomialTimes(200).decode_ms(1, context, context) == expected_ms


def test_polynomial_decode_is_at_least_one_ms_and_zero_when_idle() -> None:
    assert PolynomialTimes(200).decode_ms(0, 0, 0) == 0.0
    assert PolynomialTimes(10**9).decode_ms(1, 1, 1) >= 1.0


@pytest.mark.parametrize(("given_ms", "whole_ms"), [(1.0000004, 1.0), (1.0000006, 1.000001), (0.0, 0.0), (5e9, 5e9)])
def test_whole_nanoseconds_rounds_to_the_nearest(given_ms: float, whole_ms: float) -> None:
    assert whole_nanoseconds(given_ms) == whole_ms
