"""Cutting trials into messages."""

import pytest

from workers.dispatch import chunk_size, cut


def _fresh(*numbers: int) -> list[tuple[int, int]]:
    return [(number, 0) for number in numbers]


def test_cut_covers_every_trial_once_in_order() -> None:
    chunks = cut(_fresh(*range(100)), 7)
    assert [number for first, last in chunks for number in range(first, last + 1)] == list(range(100))
    assert max(last - first + 1 for first, last in chunks) == 7


def test_cut_starts_anew_behind_a_gap() -> None:
    assert cut(_fresh(3, 4, 9, 10, 11), 10) == [(3, 4), (9, 11)]


def test_cut_of_nothing_is_nothing() -> None:
    assert cut([], 5) == []


def test_trials_whose_worker_died_travel_in_smaller_company() -> None:
    assert cut([(number, 1) for number in range(64)], 64) == [(start, start + 3) for start in range(0, 64, 4)]
    assert cut([(number, 2) for number in range(3)], 64) == [(0, 0), (1, 1), (2, 2)]


def test_trials_of_different_attempts_do_not_share_a_message() -> None:
    assert cut([(0, 0), (1, 0), (2, 1), (3, 0)], 64) == [(0, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("num_trials", "parallel", "trial_s", "size"),
    [
        (405, 16, 0.001, 100),  # a tenth of a second at least
        (405, 2, 0.001, 203),  # an even share per lane
        (100_000, 2, 0.001, 1000),  # a second at most
        (50, 16, 5.0, 1),  # a slow trial travels alone
        (1, 16, 0.001, 100),
    ],
)
def test_chunk_size_is_an_even_share_within_bounds(num_trials: int, parallel: int, trial_s: float, size: int) -> None:
    assert chunk_size(num_trials, parallel, trial_s) == size
