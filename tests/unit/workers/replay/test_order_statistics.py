"""Selecting by counting equals selecting by sorting."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.replay.compiled import entry
from workers.replay.order_statistics import values_at_ranks

_samples = st.lists(
    st.one_of(st.floats(0.0, 1e9), st.floats(99.0, 101.0), st.sampled_from([0.0, 10.0, 10.046435])),
    min_size=1,
    max_size=300,
)


@entry
def _select(values, least, most, ranks, found):  # type: ignore[no-untyped-def]
    values_at_ranks(values, least, most, ranks, found)


@settings(deadline=None)  # the first example compiles
@given(_samples, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_values_at_ranks_are_those_of_the_sorted_samples(samples: list[float], places: list[float]) -> None:
    values = np.array(samples) + 0.0
    ranks = np.sort(np.array([int(place * (values.size - 1)) for place in places], dtype=np.int64))
    found = np.empty(ranks.size)
    _select(values, values.min(), values.max(), ranks, found)
    assert found.tolist() == np.sort(values)[ranks].tolist()
