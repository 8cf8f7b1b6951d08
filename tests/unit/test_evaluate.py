"""Verdicts: one per deployment, whatever becomes of it. The plain replay stands in for the compiled one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.schemas.status import ReasonCode, TrialStatus
from tests.reference import plain_replay
from tests.unit.deployments import SMALL_LOAD, agg, study
from workers import evaluate
from workers.errors import StoppedError, StuckError
from workers.replay import reports
from workers.replay.fleet import Fleet
from workers.replay.metrics import report
from workers.replay.timeline import timeline
from workers.timing import disk_cache
from workers.timing.aic import aic_times
from workers.traffic.requests import RequestBatch
from workers.verdict import Verdict


def go_on() -> bool:
    return False


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.Reports, "_replayed", plain_report)


def plain_report(self: reports.Reports, fleet: Fleet, batch: RequestBatch) -> reports.Report:
    outcomes = plain_replay.replay(fleet, batch)
    return reports.Report(report(outcomes, batch, fleet, self._sla), timeline(outcomes, batch, fleet))


def one(config: Any, deployment: Any, should_stop: Callable[[], bool] = go_on) -> Verdict:
    (verdict,) = evaluate.evaluate_many(config, [deployment], None, should_stop)
    return verdict


def test_feasible_verdict_carries_score_objective_metrics_load_and_report() -> None:
    verdict = one(study(SMALL_LOAD), agg())
    assert verdict.status is TrialStatus.FEASIBLE
    assert verdict.reason is None
    assert verdict.score == verdict.metrics["output_throughput_tok_s"] == verdict.objectives[0]
    assert verdict.metrics["completed_requests"] == 4
    assert verdict.load["concurrency"] == 2
    assert verdict.sla_met is None
    assert verdict.rejected == 0
    assert verdict.wall_s > 0


def test_report_is_json_with_a_timeline_of_at_most_500_buckets() -> None:
    report = orjson.loads(orjson.dumps(one(study(SMALL_LOAD), agg()).report))
    assert report["metrics"]["completed_requests"] == 4
    columns = report["timeline"]
    assert 1 <= len(columns["in_flight"]) <= 500
    assert len(columns["edge_ms"]) == len(columns["in_flight"]) + 1


def test_minimized_target_scores_by_its_negative() -> None:
    verdict = one(study(SMALL_LOAD, {"target": "ttft"}), agg())
    assert verdict.score == -verdict.objectives[0] < 0


def test_pareto_objectives_keep_the_goals_order() -> None:
    goal = {"target": "pareto", "pareto_objectives": ["e2e_latency", "throughput"]}
    verdict = one(study(SMALL_LOAD, goal), agg())
    assert verdict.objectives == (verdict.metrics["mean_e2e_latency_ms"], verdict.metrics["output_throughput_tok_s"])


def test_verdicts_come_in_order_and_one_failure_stops_no_other() -> None:
    deployments = [agg(tp=2), agg(tp=3), agg(tp=8, replicas=2), agg(tp=4)]
    verdicts = list(evaluate.evaluate_many(study(SMALL_LOAD), deployments, None, go_on))
    assert [(v.status, v.reason and v.reason.code) for v in verdicts] == [
        (TrialStatus.FEASIBLE, None),
        (TrialStatus.UNSUPPORTED, ReasonCode.BACKEND_CANNOT_RUN_SHAPE),
        (TrialStatus.INFEASIBLE, ReasonCode.OVER_GPU_BUDGET),
        (TrialStatus.FEASIBLE, None),
    ]


def test_no_kv_budget_is_infeasible_and_says_how_much_is_missing() -> None:
    name = "meta-llama/Meta-Llama-3.1-70B"
    verdict = one(study(SMALL_LOAD, model_name=name), agg(tp=1, model_name=name))
    assert verdict.status is TrialStatus.INFEASIBLE
    assert verdict.reason is not None
    assert verdict.reason.code is ReasonCode.NO_KV_BUDGET
    assert "GiB" in verdict.reason.detail


def test_stop_before_the_replay_times_out_and_the_iterator_goes_on() -> None:
    answers = iter([True, False])
    verdicts = list(evaluate.evaluate_many(study(SMALL_LOAD), [agg(), agg()], None, lambda: next(answers, False)))
    assert [verdict.status for verdict in verdicts] == [TrialStatus.TIMED_OUT, TrialStatus.FEASIBLE]
    assert verdicts[0].reason is not None
    assert verdicts[0].reason.code is ReasonCode.EXCEEDED_RUNTIME


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (
            StoppedError(ReasonCode.EXCEEDED_RUNTIME, "late"),
            TrialStatus.TIMED_OUT,
            ReasonCode.EXCEEDED_RUNTIME,
        ),
        (StuckError(ReasonCode.REPLAY_STUCK, "no progress"), TrialStatus.INFEASIBLE, ReasonCode.REPLAY_STUCK),
        (KeyError("/a/secret/path"), TrialStatus.FAILED, ReasonCode.REPLAY_ERROR),
    ],
)
def test_errors_of_the_replay_become_verdicts(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: TrialStatus, code: ReasonCode
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(reports.Reports, "_replayed", broken)
    verdict = one(study(SMALL_LOAD), agg())
    assert verdict.status is status
    assert verdict.reason is not None
    assert verdict.reason.code is code
    assert "secret" not in verdict.reason.detail


def test_prompts_longer_than_the_context_leave_no_candidate() -> None:
    verdict = one(study(SMALL_LOAD | {"isl": 50_000}), agg())
    assert verdict.status is TrialStatus.INFEASIBLE
    assert verdict.reason is not None
    assert verdict.reason.code is ReasonCode.CONTEXT_TOO_LONG
    assert "40960" in verdict.reason.detail
    assert verdict.rejected == 4


def test_objective_without_a_sample_is_infeasible() -> None:
    verdict = one(study(SMALL_LOAD | {"osl": 1}, {"target": "throughput_per_user"}), agg())
    assert verdict.reason is not None
    assert verdict.reason.code is ReasonCode.OBJECTIVE_UNDEFINED


@pytest.mark.parametrize(("strict", "status"), [(True, TrialStatus.INFEASIBLE), (False, TrialStatus.FEASIBLE)])
def test_missed_sla_ends_a_candidate_only_when_strict(strict: bool, status: TrialStatus) -> None:
    goal = {"target": "throughput", "strict_sla": strict, "sla": {"ttft_ms": 1.0}}
    verdict = one(study(SMALL_LOAD, goal), agg())
    assert verdict.status is status
    assert verdict.sla_met is False


def test_met_sla_is_said() -> None:
    assert one(study(SMALL_LOAD, {"sla": {"e2e_ms": 1e6}}), agg()).sla_met is True


def test_goodput_below_the_least_is_no_candidate_under_min_gpus() -> None:
    goal = {"target": "min_gpus", "min_goodput_rps": 1e6, "sla": {"e2e_ms": 1e6}}
    verdict = one(study(SMALL_LOAD, goal), agg())
    assert verdict.reason is not None
    assert verdict.reason.code is ReasonCode.SLA_NOT_MET
    assert one(study(SMALL_LOAD, goal | {"min_goodput_rps": 0.1}), agg()).score == -2.0


def test_step_times_are_on_disk_once_the_iterator_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk_cache.SETTING, str(tmp_path))
    aic_times.cache_clear()
    one(study(SMALL_LOAD), agg())
    assert list((tmp_path / "step-answers").iterdir())


def test_host_offload_makes_every_deployment_unsupported_instead_of_being_ignored() -> None:
    verdict = one(study(SMALL_LOAD, num_g2_blocks=100, kv_bytes_per_token=1000), agg())
    assert verdict.status is TrialStatus.UNSUPPORTED
    assert verdict.reason is not None
    assert "num_g2_blocks is 100" in verdict.reason.detail
