"""Progress of a study says how long it takes, and is right about it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.db.tables import StudyRow
from app.views import progress

_NUM, _EACH_S = 100, 30.0


def _study(done: int, status: str = "running", **changes: Any) -> StudyRow:
    """A study of trials that take the same time each, at the moment when so many are done."""
    counters = {
        f"num_{name}": 0 for name in ("infeasible", "unsupported", "failed", "timed_out", "cancelled", "cached")
    }
    started_at = datetime.now(UTC) - timedelta(seconds=done * _EACH_S)
    columns = {"status": status, "num_trials": _NUM, "num_feasible": done, "expected_trials": _NUM, "coverage": None}
    return StudyRow(**{**counters, **columns, "started_at": started_at, "finished_at": None, **changes})


@pytest.mark.parametrize("done", [1, 10, 50, 99])
def test_eta_is_the_time_that_the_rest_takes(done: int) -> None:
    told = progress(_study(done))
    assert told["eta_s"] == pytest.approx((_NUM - done) * _EACH_S, rel=0.01)
    assert told["fraction"] == pytest.approx(done / _NUM)


def test_eta_covers_trials_that_are_not_asked_for_yet() -> None:
    told = progress(_study(50, num_trials=50, expected_trials=80))
    assert told["eta_s"] == pytest.approx((80 - 50) * _EACH_S, rel=0.01)


@pytest.mark.parametrize("changes", [{"num_feasible": 0}, {"expected_trials": None}])
def test_eta_is_unknown_while_nothing_is_known(changes: dict[str, Any]) -> None:
    assert progress(_study(10, **changes))["eta_s"] is None


def test_part_done_is_unknown_while_nobody_knows_how_many_trials_there_will_be() -> None:
    assert progress(_study(10, num_trials=16, expected_trials=None))["fraction"] is None


def test_eta_of_an_ended_study_is_zero() -> None:
    ended = _study(100, "succeeded", finished_at=datetime.now(UTC))
    assert (progress(ended)["eta_s"], progress(ended)["fraction"]) == (0.0, 1.0)


def test_part_of_a_cancelled_study_leaves_out_what_was_swept_away_and_what_was_never_asked() -> None:
    ended = _study(20, "cancelled", num_trials=50, num_cancelled=30, finished_at=datetime.now(UTC))
    assert (progress(ended)["eta_s"], progress(ended)["fraction"]) == (0.0, 0.2)
