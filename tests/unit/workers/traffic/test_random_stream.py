"""The random stream, against draws observed on the peer (traffic spec, section 2.2)."""

import numpy as np
import pytest

from workers.traffic.random_stream import RandomStream


def test_uniforms_seed_42_start_as_observed() -> None:
    expected = [0.5265574090027738, 0.5427252099031439, 0.6364650991438949, 0.4059017582307767]
    assert RandomStream(42).uniforms(4).tolist() == expected


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(42, [0, 2, 0, 2, 3, 2, 3, 1, 3, 0, 2, 1]), (0, [3, 2, 2, 3, 3, 0, 2, 2, 3, 1, 0, 3])],
)
def test_below_four_starts_as_observed(seed: int, expected: list[int]) -> None:
    assert RandomStream(seed).below(4, 12).tolist() == expected


def test_stream_split_draws_equal_one_long_draw() -> None:
    whole, split = RandomStream(7), RandomStream(7)
    parts = [split.uniforms(count) for count in (0, 1, 7, 8, 9, 100)]
    assert np.concatenate(parts).tolist() == whole.uniforms(125).tolist()


def test_stream_mixed_draws_consume_the_same_words() -> None:
    """A uniform takes two words, a bounded draw one."""
    mixed, plain = RandomStream(5), RandomStream(5)
    mixed.below(10, 4)
    assert mixed.uniforms(3).tolist() == plain.uniforms(5)[2:].tolist()


def test_below_biased_draw_takes_a_second_word() -> None:
    """With a bound near 2^32 most draws are biased; the rule is checked word by word."""
    bound, words = 4_000_000_000, RandomStream(1)._peek(64).tolist()
    expected, position = [], 0
    while len(expected) < 20:
        product = words[position] * bound
        position += 1
        value, low = product >> 32, product & 0xFFFFFFFF
        if low > (-bound) % 2**32:
            value += low + ((words[position] * bound) >> 32) >= 2**32
            position += 1
        expected.append(value)
    stream = RandomStream(1)
    assert stream.below(bound, 20).tolist() == expected
    assert stream._next_word == position


def test_below_bound_outside_32_bits_is_refused() -> None:
    for bound in (0, -1, 2**32):
        with pytest.raises(ValueError, match="bound"):
            RandomStream(0).below(bound, 1)


def test_uniforms_lie_in_unit_interval_with_the_right_mean() -> None:
    drawn = RandomStream(11).uniforms(20_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01
