"""Who met the SLA is told apart from the ranking; rejecting work never wins."""

import pytest

from app.schemas.study_view import StudyView
from app.views import study_document
from tests.thin import Desk, candidates, submit

pytestmark = pytest.mark.services


def _view(desk: Desk, **labels: object) -> StudyView:
    return StudyView.model_validate(study_document(desk.run(submit(**labels))))


def test_study_whose_sla_nobody_meets_succeeds_and_names_those_that_come_closest(desk: Desk) -> None:
    view = _view(desk, trials=12, goal={"target": "throughput", "sla": {"e2e_ms": 1e-9}})
    assert view.status == "succeeded"
    assert view.sla is not None
    assert view.sla.met_by == 0
    assert view.best is not None
    assert view.best.sla_met is False
    ratios = [each.sla.worst_ratio for each in view.sla.least_violating]
    assert len(ratios) == 5
    assert ratios == sorted(ratios)
    first = view.sla.least_violating[0].sla.bounds["e2e_ms"]
    assert first.limit == 1e-9
    assert first.mean is not None
    assert first.ratio == first.mean / first.limit


def test_study_whose_sla_is_met_lists_no_violations(desk: Desk) -> None:
    view = _view(desk, trials=10, goal={"target": "throughput", "sla": {"e2e_ms": 1e9}})
    assert view.sla is not None
    assert (view.sla.met_by, view.sla.least_violating) == (8, [])


def test_study_without_an_sla_says_nothing_about_it(desk: Desk) -> None:
    assert _view(desk, trials=4).sla is None


def test_candidate_that_rejects_requests_is_ranked_last_however_fast(desk: Desk) -> None:
    row = desk.run(submit(trials=12, rejected=3))
    ranked = candidates(row.id)
    assert ranked[-1].number == 1
    assert ranked[-1].rejected == 3
    assert ranked[-1].score > min(each.score for each in ranked)
