"""Formulas of the traffic page: blocks, role capacity, requests that fill it."""

import pytest

from workers.capacity.kv_blocks import blocks_per_rank, capacity_concurrency, role_capacity_tokens


def test_worked_example_of_the_search_page() -> None:
    capacity = role_capacity_tokens(100_001, 64, attention_dp=2, replicas=3)
    assert capacity == 599_808
    assert capacity_concurrency(capacity, 1000, 201) == 545


def test_tokens_are_rounded_down_to_whole_blocks_before_ranks_multiply() -> None:
    assert role_capacity_tokens(127, 64, attention_dp=4, replicas=1) == 256
    assert blocks_per_rank(63, 64) == 0


def test_output_counts_half_rounded_down() -> None:
    assert capacity_concurrency(3_000, 1_000, 1) == 3
    assert capacity_concurrency(3_000, 1_000, 2) == 2


def test_capacity_below_one_request_gives_zero() -> None:
    assert capacity_concurrency(999, 1_000, 1) == 0


@pytest.mark.parametrize(("isl", "osl"), [(0, 5), (5, 0)])
def test_lengths_below_one_are_refused(isl: int, osl: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        capacity_concurrency(100, isl, osl)


def test_block_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size"):
        blocks_per_rank(100, 0)
