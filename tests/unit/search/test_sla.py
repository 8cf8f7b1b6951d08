"""Standing against an SLA."""

from app.schemas.goal import Goal
from workers.search.sla import sla_standing

GOAL = Goal.model_validate({"target": "throughput", "sla": {"ttft_ms": 100.0, "itl_ms": 10.0}})
METRICS = {
    "mean_ttft_ms": 150.0,
    "p99_ttft_ms": 400.0,
    "mean_tpot_ms": 5.0,
    "goodput_completed_requests": 3,
    "num_requests": 4,
}


def test_standing_names_each_bound_and_the_worst() -> None:
    standing = sla_standing(GOAL, METRICS)
    assert standing is not None
    assert standing["bounds"]["ttft_ms"] == {"limit": 100.0, "mean": 150.0, "p99": 400.0, "ratio": 1.5}
    assert standing["bounds"]["itl_ms"]["ratio"] == 0.5
    assert (standing["worst_ratio"], standing["good_ratio"]) == (1.5, 0.75)


def test_mean_without_a_sample_leaves_the_worst_ratio_unknown() -> None:
    standing = sla_standing(GOAL, {**METRICS, "mean_tpot_ms": None})
    assert standing is not None
    assert standing["worst_ratio"] is None


def test_no_bounds_or_no_replay_has_no_standing() -> None:
    assert sla_standing(Goal.model_validate({"target": "throughput"}), METRICS) is None
    assert sla_standing(GOAL, {}) is None
