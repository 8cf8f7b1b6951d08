"""The course of a replay in buckets."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workers.replay.observed import AGG, Seen, observe
from workers.replay.timeline import timeline

CAPACITY_TOKENS = 2 * 100 * 64


def test_timeline_in_flight_is_the_mean_over_each_bucket() -> None:
    course = timeline(*observe(Seen(0.0, (50, 100)), Seen(75.0, (90, 100))), AGG, 4)
    assert course.edge_ms.tolist() == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert course.in_flight.tolist() == [1.0, 1.0, 1.0, 2.0]


def test_timeline_queued_ends_at_admission() -> None:
    outcomes, batch = observe(Seen(0.0, (50, 100)), first_admit_ms=np.array([25.0]))
    assert timeline(outcomes, batch, AGG, 4).queued.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_timeline_rejected_request_is_queued_until_it_ends() -> None:
    outcomes, batch = observe(Seen(0.0, (50, 100)), Seen(0.0), end_ms=np.array([100.0, 50.0]))
    assert timeline(outcomes, batch, AGG, 2).queued.tolist() == [1.0, 0.0]


def test_timeline_tokens_are_spread_between_first_and_last() -> None:
    course = timeline(*observe(Seen(0.0, (50, 60, 70, 80, 90, 100))), AGG, 4)
    assert course.output_tok_s.tolist() == pytest.approx([0.0, 40.0, 100.0, 100.0])


def test_timeline_kv_holds_prompt_and_generated_tokens() -> None:
    course = timeline(*observe(Seen(0.0, (50, 100), 400)), AGG, 2)
    assert course.kv_tokens.tolist() == pytest.approx([400.0, 401.5])
    assert course.kv_used_ratio.tolist() == pytest.approx([400.0 / CAPACITY_TOKENS, 401.5 / CAPACITY_TOKENS])


def test_timeline_request_that_never_arrived_is_left_out() -> None:
    course = timeline(*observe(Seen(0.0, (50, 100)), Seen(math.nan, is_unfinished=True)), AGG, 2)
    assert course.in_flight.tolist() == [1.0, 1.0]


def test_timeline_of_no_time_has_no_buckets() -> None:
    assert timeline(*observe(Seen(0.0)), AGG).in_flight.size == 0


@pytest.mark.parametrize("buckets", [0, 501])
def test_timeline_bucket_count_is_bounded(buckets: int) -> None:
    with pytest.raises(ValueError, match="num_buckets"):
        timeline(*observe(Seen(0.0, (1.0,))), AGG, buckets)


REQUESTS = st.lists(
    st.builds(
        lambda arrival, gaps, prompt: Seen(arrival, tuple(np.cumsum([arrival, *gaps])[1:].tolist()), prompt),
        arrival=st.floats(0, 500),
        gaps=st.lists(st.floats(0.5, 50), min_size=1, max_size=20),
        prompt=st.integers(1, 500),
    ),
    min_size=1,
    max_size=12,
)


@given(REQUESTS, st.integers(1, 40))
def test_timeline_any_requests_conserves_tokens_and_time(requests: list[Seen], buckets: int) -> None:
    outcomes, batch = observe(*requests)
    course = timeline(outcomes, batch, AGG, buckets)
    width_ms = np.diff(course.edge_ms)
    emitted = float((course.output_tok_s * width_ms).sum() / 1000)
    assert emitted == pytest.approx(outcomes.generated_tokens.sum(), abs=1e-3)
    in_flight_ms = float((outcomes.end_ms - outcomes.arrival_ms).sum())
    assert float((course.in_flight * width_ms).sum()) == pytest.approx(in_flight_ms, abs=1e-3)
    for values in (course.in_flight, course.queued, course.kv_tokens, course.output_tok_s):
        assert (values > -1e-3).all()
