"""The leaders of a study under other loads and arrivals. The plain replay stands in for the compiled one."""

import orjson
import pytest

from app.schemas.candidate import StabilityView
from tests.reference import plain_replay
from tests.unit.deployments import SMALL_LOAD, agg, study
from workers import stability as module
from workers.replay import reports
from workers.replay.fleet import Fleet
from workers.replay.metrics import report
from workers.replay.timeline import timeline
from workers.stability import UNFINISHED, stability, variations
from workers.traffic.requests import RequestBatch

OPEN = {"isl": 100, "osl": 8, "request_rate": 20.0, "num_request_ratio": 0.5}
POISSON = {**OPEN, "arrival": "poisson"}


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def replayed(self: reports.Reports, fleet: Fleet, batch: RequestBatch) -> reports.Report:
        outcomes = plain_replay.replay(fleet, batch)
        return reports.Report(report(outcomes, batch, fleet, self._sla), timeline(outcomes, batch, fleet))

    monkeypatch.setattr(reports.Reports, "_replayed", replayed)


def test_closed_loop_varies_the_concurrency() -> None:
    config = study({**SMALL_LOAD, "concurrency": 20})
    caps = [each.applied(config).workload.concurrency for each in variations(config.workload)]
    assert caps == [18, 22]


def test_random_arrivals_are_drawn_under_five_more_seeds() -> None:
    config = study(POISSON)
    changed = [each.applied(config).workload for each in variations(config.workload)]
    assert [each.request_rate for each in changed] == pytest.approx([18.0, 22.0, *[20.0] * 5])
    assert len({each.arrival_seed for each in changed}) == 6


def test_kv_load_of_a_candidate_is_varied_on_the_candidate() -> None:
    leader = agg().model_copy(update={"kv_load_ratio": 0.5})
    config = study({"isl": 100, "osl": 8, "kv_load_ratio": 0.5, "num_request_ratio": 1.0})
    assert [each.deployed(leader).kv_load_ratio for each in variations(config.workload)] == [0.45, 0.55]


def test_every_leader_gets_its_objectives_and_rank_under_every_variation() -> None:
    found = stability(study(POISSON), [agg(tp=4), agg(tp=2)], None)
    views = [StabilityView.model_validate(orjson.loads(orjson.dumps(each))) for each in found.documents]
    assert [len(view.variations) for view in views] == [7, 7]
    for pair in zip(*(view.variations for view in views), strict=True):
        assert sorted(each.rank or 0 for each in pair) == [1, 2]
        assert all(each.objectives is not None and each.objectives["throughput"] > 0 for each in pair)


def test_leaders_in_the_wrong_order_are_warned_of() -> None:
    firm = stability(study({**SMALL_LOAD, "concurrency": 8}), [agg(tp=8), agg(tp=1)], None)
    swapped = stability(study({**SMALL_LOAD, "concurrency": 8}), [agg(tp=1), agg(tp=8)], None)
    assert not [each for each in firm.warnings if "not the best" in each.detail]
    assert len([each for each in swapped.warnings if "not the best" in each.detail]) == 2


def test_pareto_leaders_say_whether_they_stay_on_the_front() -> None:
    config = study({**SMALL_LOAD, "concurrency": 8}, {"target": "pareto"})
    (document,) = stability(config, [agg(tp=2)], None).documents
    assert [row["on_front"] for row in document["variations"]] == [True, True]


def test_too_long_a_check_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REQUESTS", 5)
    found = stability(study(SMALL_LOAD), [agg(), agg(tp=2)], None)
    assert found.documents == ()
    assert "not checked" in found.warnings[0].detail


def test_no_leader_no_stability() -> None:
    assert stability(study(SMALL_LOAD), [], None).documents == ()


def test_check_that_is_told_to_stop_says_nothing_but_that() -> None:
    assert stability(study(SMALL_LOAD), [agg(), agg(tp=2)], None, lambda: True) is UNFINISHED
