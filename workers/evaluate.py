"""Deployments to verdicts: capacity, load, requests, replay, score. The pure half's one entrance for the thin half.

See `workers.verdict` for the contract of `evaluate_many`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.schemas.deployment import Deployment
from app.schemas.goal import Goal
from app.schemas.status import ReasonCode, TrialStatus
from app.schemas.study import SmartSearchConfig
from workers.errors import EvaluationError, StoppedError, UnsupportedError
from workers.fleets import Run, plan_run
from workers.replay.metrics import Metric, Sla
from workers.replay.reports import Report, Reports
from workers.replay.timeline import Timeline
from workers.scaled_reports import ScaledReports
from workers.search.score import misses_sla, objectives, score
from workers.timing.aic import persist_all
from workers.traffic.workload import TraceFile
from workers.verdict import Reason, Verdict

_log = logging.getLogger(__name__)


def evaluate_many(
    config: SmartSearchConfig,
    deployments: Sequence[Deployment],
    trace: TraceFile | None,
    should_stop: Callable[[], bool],
    threads: int = 1,
) -> Iterator[Verdict]:
    """One verdict per deployment, in order; errors of a deployment become its own verdict. threads: of each replay.

    Equal request batches and equal engines' step times are built once per process, and deployments that act alike are
    replayed once; new step times are put on disk when the iterator ends or is closed.
    """
    used: set[object] = set()
    bounds = goodput_bounds(config.goal)
    reports = _AllReports(Reports(bounds, should_stop, threads), ScaledReports(bounds, should_stop))
    try:
        for deployment in deployments:
            started = time.perf_counter()
            verdict = _verdict(config, deployment, trace, should_stop, reports, used)
            yield replace(verdict, wall_s=time.perf_counter() - started)
    finally:
        persist_all(used)


def _verdict(
    config: SmartSearchConfig,
    deployment: Deployment,
    trace: TraceFile | None,
    should_stop: Callable[[], bool],
    reports: "_AllReports",
    used: set[object],
) -> Verdict:
    try:
        over = _over_budget(config, deployment)
        if over is not None:
            return Verdict(TrialStatus.INFEASIBLE, over)
        if should_stop():
            raise StoppedError(ReasonCode.EXCEEDED_RUNTIME, "stopped before the replay began")
        _refuse_host_offload(config)
        run = plan_run(config.workload, deployment, trace, config.sweep.seed)
        used.update(pool.step_times for pool in (run.fleet.agg, run.fleet.prefill, run.fleet.decode) if pool)
        return reports.judge(config.goal, deployment, run)
    except EvaluationError as error:
        return Verdict(_status(error), Reason(error.code, error.detail))
    except Exception as error:
        _log.exception("evaluation failed: %s", deployment.model_dump_json())
        # The class name only: a message may hold paths or data of this machine.
        return Verdict(
            TrialStatus.FAILED, Reason(ReasonCode.REPLAY_ERROR, f"The replay failed: {type(error).__name__}.")
        )


class _AllReports(NamedTuple):
    """Replays of static fleets and of scaled ones."""

    static: Reports
    scaled: ScaledReports

    def judge(self, goal: Goal, deployment: Deployment, run: Run) -> Verdict:
        """Replay and judge. Raises: as the replay."""
        if run.planner is None:
            return judge(goal, deployment, run, self.static.of(run.fleet, run.batch))
        found = self.scaled.of(run.fleet, run.planner, run.batch)
        verdict = judge(goal, deployment, run, found.report)
        return replace(verdict, report=verdict.report | {"scaling": found.scaling}) if verdict.report else verdict


def _refuse_host_offload(config: SmartSearchConfig) -> None:
    """A host cache changes what a prompt costs; no replay models it, so no result may pretend to."""
    blocks = config.search_space.num_g2_blocks
    if blocks > 0:
        detail = f"replay with KV offload to host memory is not available (num_g2_blocks is {blocks}); 0 is"
        raise UnsupportedError(ReasonCode.BACKEND_CANNOT_RUN_SHAPE, detail)


def _over_budget(config: SmartSearchConfig, deployment: Deployment) -> Reason | None:
    budget = config.search_space.gpu_budget
    if deployment.used_gpus <= budget:
        return None
    return Reason(
        ReasonCode.OVER_GPU_BUDGET, f"the deployment takes {deployment.used_gpus} GPUs of a budget of {budget}"
    )


def _status(error: EvaluationError) -> TrialStatus:
    """A stuck engine is a result like any other: the deployment cannot serve this load."""
    if isinstance(error, StoppedError):
        return TrialStatus.TIMED_OUT
    return TrialStatus.UNSUPPORTED if isinstance(error, UnsupportedError) else TrialStatus.INFEASIBLE


def goodput_bounds(goal: Goal) -> Sla | None:
    """The bounds that a request must keep to count as good; None if the goal states none."""
    bounds = goal.sla
    return None if bounds is None else Sla(bounds.ttft_ms, bounds.itl_ms, bounds.e2e_ms)


def judge(goal: Goal, deployment: Deployment, run: Run, report: Report) -> Verdict:
    """The verdict on a finished replay: metrics, objectives and score, or the reason why it is not a candidate."""
    metrics = dict(report.metrics)
    missed = misses_sla(goal, metrics)
    values = objectives(goal, metrics, deployment.used_gpus)
    reason = _refusal(goal, metrics, missed, values, run)
    known = () if reason is not None else tuple(value for value in values if value is not None)
    return Verdict(
        status=TrialStatus.FEASIBLE if reason is None else TrialStatus.INFEASIBLE,
        reason=reason,
        score=score(goal, known) if known else None,
        objectives=known,
        load=dict(run.load),
        metrics=metrics,
        report={} if reason is not None else _document(report),
        rejected=_count(metrics, "num_requests") - _count(metrics, "completed_requests"),
        sla_met=None if goal.sla is None else not missed,
    )


def _refusal(
    goal: Goal, metrics: Mapping[str, Metric], missed: Sequence[str], values: Sequence[float | None], run: Run
) -> Reason | None:
    """Why a finished replay is no candidate; None if it is one."""
    if _count(metrics, "completed_requests") == 0:
        limit = min((p.context_length for p in (run.fleet.agg, run.fleet.prefill) if p and p.context_length), default=0)
        longest = int(run.batch.input_tokens.max())
        known = f" (longest prompt {longest} tokens, engine limit {limit or 'none'})"
        return Reason(ReasonCode.CONTEXT_TOO_LONG, f"the engines can hold none of the requests{known}")
    if missed and (goal.strict_sla or goal.target == "min_gpus"):
        return Reason(ReasonCode.SLA_NOT_MET, f"the means of the replay exceed the SLA in {', '.join(missed)}")
    goodput, least = metrics.get("goodput_request_throughput_rps"), goal.min_goodput_rps
    if least is not None and (goodput is None or goodput < least):
        return Reason(
            ReasonCode.SLA_NOT_MET, f"goodput is {goodput or 0:.3f} requests/s, at least {least} are asked for"
        )
    undefined = [name for name, value in zip(goal.objectives, values, strict=True) if value is None]
    if undefined:
        return Reason(ReasonCode.OBJECTIVE_UNDEFINED, f"the replay gives no sample for {', '.join(undefined)}")
    return None


def _count(metrics: Mapping[str, Metric], name: str) -> int:
    return int(metrics[name] or 0)


def _document(report: Report) -> dict[str, Any]:
    """The trace report JSON-ready."""
    return {
        "metrics": dict(report.metrics),
        "timeline": _columns(report.course),
        "step_time_residual": report.step_time_residual,
    }


def _columns(course: Timeline) -> dict[str, list[float]]:
    """The timeline JSON-ready."""
    names = ("edge_ms", "in_flight", "queued", "kv_tokens", "kv_used_ratio", "output_tok_s")
    return {name: getattr(course, name).tolist() for name in names}
