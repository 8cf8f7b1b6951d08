"""One message's worth of trials: claim them, evaluate them in one call of the pure half, hand the verdicts in.

A chunk is cut by estimated time, so its size depends on the machine; the verdicts do not: each trial is evaluated by
its own configuration alone, and keeps its own row, status and attempt.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import structlog

from app.config import settings
from app.db.engine import patiently, transaction
from app.db.lifecycle import Claim, claim_trials, give_back_trials
from app.db.tables import StudyRow
from app.schemas.deployment import Deployment
from app.schemas.status import ReasonCode, TrialStatus
from app.schemas.study import SmartSearchConfig
from app.telemetry import note_span
from app.traces.store import StoredTrace, at_hand, stored_trace
from workers.evaluate import evaluate_many
from workers.lease import Watch
from workers.persist import Outcome, outcome, persist
from workers.verdict import Reason, Verdict

log = structlog.get_logger()
_HAND_IN_EVERY_S = 0.5


class Work(NamedTuple):
    """Claimed trials with what it takes to evaluate them."""

    study_id: UUID
    config: SmartSearchConfig
    trace: StoredTrace | None
    claims: list[Claim]
    deployments: list[Deployment]


def run_chunk(study_id: UUID, first: int, last: int) -> int:
    """Evaluate the queued trials numbered first..last; how many were ours to evaluate (0: others have them)."""
    work = patiently(lambda: _claim(study_id, first, last))
    if work is None:
        return 0
    with Watch(study_id, work.claims, work.config.sweep.max_eval_seconds) as watch:
        if work.trace is not None:
            at_hand(work.trace)
        _hand_in(work, watch)
    return len(work.claims)


def _claim(study_id: UUID, first: int, last: int) -> Work | None:
    with transaction() as db:
        claims = claim_trials(db, study_id, first, last, settings().lease_s)
        if not claims:
            return None
        study = db.get_one(StudyRow, study_id)
        trace = stored_trace(db, study.trace_id) if study.trace_id else None
        config = SmartSearchConfig.model_validate(study.config)
    return Work(study_id, config, trace, claims, [Deployment.model_validate(claim.deployment) for claim in claims])


def _hand_in(work: Work, watch: Watch) -> None:
    """Persist verdicts as they come, at most twice a second; then settle what an interruption left without verdict."""
    ready: list[Outcome] = []
    num_seen, handed_in, begun_ns = 0, time.monotonic(), time.time_ns()
    watch.begin(work.claims[0])
    for verdict in _verdicts(work, watch):
        if watch.is_interrupted and verdict.status == TrialStatus.TIMED_OUT:
            break
        ready.append(outcome(work.config.goal, work.claims[num_seen], work.deployments[num_seen], verdict))
        _note(work.study_id, ready[-1], begun_ns)
        num_seen += 1
        watch.pause()
        if time.monotonic() - handed_in > _HAND_IN_EVERY_S:
            persist(work.study_id, ready)
            ready, handed_in = [], time.monotonic()
        if num_seen < len(work.claims):
            begun_ns = time.time_ns()
            watch.begin(work.claims[num_seen])
    watch.pause()
    rest = work.claims[num_seen:]
    persist(work.study_id, ready, cancelled=rest if watch.is_cancelled else ())
    if rest and watch.is_leaving and not watch.is_cancelled:
        _give_back(work.study_id, rest)


def _note(study_id: UUID, each: Outcome, begun_ns: int) -> None:
    """The trial's span in the trace of its message."""
    status, attempt = each.verdict.status.value, each.claim.attempt
    note_span("trial", begun_ns, study_id=str(study_id), trial=each.claim.number, attempt=attempt, status=status)


def _give_back(study_id: UUID, claims: Sequence[Claim]) -> None:
    with transaction() as db:
        give_back_trials(db, study_id, claims)
    log.info("trials_given_back", study_id=str(study_id), count=len(claims))


def _verdicts(work: Work, watch: Watch) -> Iterator[Verdict]:
    """A verdict per deployment. After an error of the batch the rest is evaluated one by one, so that one faulty
    deployment fails alone, whatever chunk it came in."""
    num_seen = 0
    try:
        for verdict in evaluate_many(work.config, work.deployments, work.trace, watch, settings().replay_threads):
            yield verdict
            num_seen += 1
        return
    except Exception:
        log.exception("batch_failed", study_id=str(work.study_id), first=work.claims[num_seen].number)
    for deployment in work.deployments[num_seen:]:
        yield _single(work, deployment, watch)


def _single(work: Work, deployment: Deployment, watch: Watch) -> Verdict:
    started = time.monotonic()
    try:
        return next(iter(evaluate_many(work.config, [deployment], work.trace, watch)))
    except Exception as error:
        log.exception("trial_failed", study_id=str(work.study_id))
        # The class name only: a message may hold paths or data of this machine.
        reason = Reason(ReasonCode.REPLAY_ERROR, f"The replay failed: {type(error).__name__}.")
        return Verdict(TrialStatus.FAILED, reason, wall_s=time.monotonic() - started)
