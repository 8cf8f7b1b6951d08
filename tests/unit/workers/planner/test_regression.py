"""Pass times as a linear function of what a pass holds."""

import pytest

from workers.planner.regression import MovingMean, PassTimes, Samples


def test_moving_mean_forgets_and_skips_leading_zeros() -> None:
    mean = MovingMean(2)
    for value in (0.0, 0.0, 4.0, 0.0):
        mean.add(value)
    assert mean.value == 2.0
    mean.add(8.0)
    assert mean.value == 4.0


def test_samples_beyond_the_most_leave_from_the_fullest_bucket_oldest_first() -> None:
    samples = Samples(features=1, most=4, buckets=2)
    for tokens, ms in ((0.0, 1.0), (100.0, 2.0), (90.0, 3.0), (80.0, 4.0), (10.0, 5.0)):
        samples.add((tokens,), ms)
    assert samples.columns()[1].tolist() == [1.0, 3.0, 4.0, 5.0]


def test_samples_of_two_features_share_the_buckets_between_the_axes() -> None:
    samples = Samples(features=2, most=3, buckets=4)
    for x, y in ((0.0, 0.0), (10.0, 10.0), (9.0, 9.0), (0.0, 10.0)):
        samples.add((x, y), x + y)
    assert samples.columns()[0].tolist() == [[0.0, 0.0], [9.0, 9.0], [0.0, 10.0]]


def test_pass_times_of_a_line_are_that_line() -> None:
    times = PassTimes(2, 64, 16, 3)
    for x, y in ((1.0, 10.0), (2.0, 40.0), (5.0, 10.0), (7.0, 90.0)):
        times.learn((x, y), 3.0 + 2.0 * x + 0.5 * y)
    assert times.is_ready
    assert times.ms(4.0, 20.0) == pytest.approx(21.0)


def test_pass_times_wait_for_the_least_number_of_samples() -> None:
    times = PassTimes(1, 64, 16, 3)
    for tokens in (1.0, 2.0):
        times.learn((tokens,), tokens)
    times.learn((3.0,), 0.0)
    assert not times.is_ready
    times.learn((3.0,), 3.0)
    assert times.is_ready


def test_pass_times_that_fall_with_load_are_refused_unless_clamped() -> None:
    falling, clamped = PassTimes(1, 64, 16, 2), PassTimes(1, 64, 16, 2, clamped=(0,))
    for tokens in (1.0, 2.0, 3.0):
        falling.learn((tokens,), 10.0 - tokens)
        clamped.learn((tokens,), 10.0 - tokens)
    assert not falling.is_ready
    assert clamped.ms(1.0) == clamped.ms(3.0)


def test_pass_times_without_slope_survive_round_off() -> None:
    times = PassTimes(1, 64, 16, 3)
    for tokens in (100.0, 1111.0, 2122.0, 8192.0):
        times.learn((tokens,), 0.1)
    assert times.is_ready
    assert times.ms(50000.0) == pytest.approx(0.1)
