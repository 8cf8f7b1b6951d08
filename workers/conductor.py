"""One step of a study: plan it, send its trials, close a round and ask for the next, or end it.

A step may run any number of times, in any number of processes, at once: what it decides is computed from rows that do
not change any more (ended trials), outside any lock, and written under the study's lock only if the study still stands
where the computation began. The loser of a race finds nothing to do.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import structlog
from sqlalchemy import func, select, update

from app.config import settings
from app.db.engine import transaction
from app.db.lifecycle import (
    NewTrial,
    add_trials,
    has_open_trials,
    lock_study,
    mark_sent,
    move_study,
    touch_study,
)
from app.db.tables import StudyRow
from app.errors import SpicaError, TransitionRefusedError
from app.ids import fingerprint
from app.queue import announce, wake_trials
from app.schemas.plan import Plan
from app.schemas.policies import throughput_intervals
from app.schemas.status import STUDY_TERMINAL, StudyStatus
from app.schemas.study import SmartSearchConfig
from app.traces.store import StoredTrace, at_hand, stored_trace
from workers import dispatch, endings, ledger, watchdog
from workers.errors import EvaluationError, SamplerError, StoppedError
from workers.lease import Watch
from workers.plan import plan as make_plan
from workers.search.history import Proposal
from workers.search.search import Search
from workers.stability import FRONT_LEADERS, LEADERS, UNFINISHED, Stability, num_replays, stability

log = structlog.get_logger()

ROUND_TRIALS = 512
"""The most trials of one round. A constant, not a setting: with a sampler that learns, the answer depends on it."""

_ASK_LOCK = 7310404


class Step(NamedTuple):
    """What a step changed: the messages to send once it is committed."""

    version: int
    chunks: Sequence[tuple[int, int]] = ()


def advance(study_id: UUID) -> None:
    """Take a study as far as it goes without waiting for a trial. Safe to repeat."""
    while (study := _read(study_id)) is not None and study.status not in STUDY_TERMINAL:
        step = _step(study)
        if step is None:
            return
        announce(study_id, step.version)
        for first, last in step.chunks:
            wake_trials(study_id, first, last)
        if step.chunks:
            return


def _read(study_id: UUID) -> StudyRow | None:
    with transaction() as db:
        return db.get(StudyRow, study_id)


def _step(study: StudyRow) -> Step | None:
    """One committed change, or None when there is nothing to do for now."""
    try:
        if study.cancel_requested_at is not None:
            return _cancel(study.id)
        if study.status == StudyStatus.QUEUED:
            with transaction() as db:
                moved = move_study(db, study.id, StudyStatus.QUEUED, StudyStatus.PLANNING, started_at=func.now())
            return Step(moved)
        if study.status == StudyStatus.PLANNING:
            return _plan(study)
        return _run(study.id)
    except TransitionRefusedError:
        log.info("step_overtaken", study_id=str(study.id))
        return None


def _cancel(study_id: UUID) -> Step | None:
    with transaction() as db:
        locked = lock_study(db, study_id)
        if locked is None or locked.status in STUDY_TERMINAL:
            return None
        version = endings.cancel_study(db, locked, force=False)
    return None if version is None else Step(version)


def _plan(study: StudyRow) -> Step:
    """Compute the plan and store it; a configuration that cannot be planned fails the study, with the reason."""
    changes: dict[str, Any]
    try:
        plan = _made_plan(study)
    except (EvaluationError, SpicaError, ValueError) as error:
        to, changes = StudyStatus.FAILED, {"problem": endings.planning_problem(error)}
    except Exception:
        log.exception("planning_failed", study_id=str(study.id))
        to, changes = StudyStatus.FAILED, {"problem": endings.planning_problem(None)}
    else:
        document = plan.model_dump(mode="json")
        changes = {
            "plan": document,
            "expected_trials": plan.budget.expected_trials,
            "warnings": [*study.warnings, *(each for each in document["warnings"] if each not in study.warnings)],
            "provenance": {**study.provenance, "perf_data": document["perf_data"]},
        }
        to = StudyStatus.FAILED if plan.problem else StudyStatus.RUNNING
        if plan.problem:
            changes["problem"] = plan.problem
    with transaction() as db:
        return Step(move_study(db, study.id, StudyStatus.PLANNING, to, **changes))


def _made_plan(study: StudyRow) -> Plan:
    trace = _stored_trace(study)
    config = SmartSearchConfig.model_validate(study.config)
    if trace is not None and throughput_intervals(config):
        at_hand(trace)
    return make_plan(config, trace.summary if trace else None, trace)


def _stored_trace(study: StudyRow) -> StoredTrace | None:
    if study.trace_id is None:
        return None
    with transaction() as db:
        return stored_trace(db, study.trace_id)


def _run(study_id: UUID) -> Step | None:
    """Look after the open trials, or, if there are none, ask for the next round, and begin it, or rank and end the study.

    One process asks at a time: an optimizer may think for minutes, and a second one would only think the same. Whoever
    comes meanwhile goes away, so the one inside looks again before it leaves.
    """
    while True:
        with transaction() as turn:
            is_open = has_open_trials(turn, study_id)
            if not is_open:
                if not turn.scalar(select(func.pg_try_advisory_xact_lock(_ASK_LOCK, func.hashtext(str(study_id))))):
                    return None
                study = turn.get(StudyRow, study_id)
                step = None if study is None else _asked(study)
        if is_open:
            return _during_round(study_id)
        if step is not None or not _is_idle(study_id):
            return step


def _during_round(study_id: UUID) -> Step | None:
    """Trials are open: send what fits, keep the ranking fresh, and end the study if it fails over and over."""
    with transaction() as db:
        study = lock_study(db, study_id)
        if study is None or study.status != StudyStatus.RUNNING or study.cancel_requested_at is not None:
            return None
        cause = endings.repeated_failure(db, study)
        if cause is not None:
            return Step(endings.end_study(db, study, cause))
        chunks = dispatch.due_chunks(db, study)
        mark_sent(db, study_id, chunks)
        ranked = ledger.is_ranking_due(db, study)
        if ranked:
            ledger.write_ranking(db, study, ledger.results_so_far(db, study))
        if not chunks and not ranked:
            return None
        return Step(touch_study(db, study_id, woken_at=func.clock_timestamp()), chunks)


def _is_idle(study_id: UUID) -> bool:
    with transaction() as db:
        study = db.get(StudyRow, study_id)
        is_running = study is not None and study.status == StudyStatus.RUNNING and study.cancel_requested_at is None
        return is_running and not has_open_trials(db, study_id)


def _asked(study: StudyRow) -> Step | None:
    if study.status != StudyStatus.RUNNING or study.cancel_requested_at is not None:
        return None
    known = ledger.closed_rounds(study)
    if known is None:
        return None
    config = SmartSearchConfig.model_validate(study.config)
    plan = Plan.model_validate(study.plan)
    search = Search(config, plan, study.seed)
    room = min(ROUND_TRIALS, settings().max_trials - study.num_trials)
    try:
        proposals = search.ask(known.told, room, lambda: _is_cancelled(study.id)) if room > 0 else []
    except StoppedError:
        return None
    except SamplerError as error:
        return _sampler_failed(study, error)
    trials = _new_trials(known, proposals)
    # The coverage costs the sampler as much as an ask: computed for the end, and now and then on the way.
    is_told = not trials or len(known.told) >= 2 * (study.coverage or {"evaluated": 0})["evaluated"]
    coverage = endings.coverage_document(search.coverage(known.told)) if is_told else study.coverage
    expected = _expected_trials(plan, len(known.told), search.left(known.told)) if is_told else study.expected_trials
    checked = ([], Stability()) if trials else _stability(study, config, known)
    if checked is None:
        return None
    numbers, firm = checked
    with transaction() as db:
        locked = lock_study(db, study.id)
        if locked is None or (locked.status, locked.round) != (study.status, study.round):
            return None
        if locked.cancel_requested_at is not None or has_open_trials(db, study.id):
            return None
        cause = endings.repeated_failure(db, locked)
        touch_study(db, study.id, coverage=coverage, expected_trials=expected, woken_at=func.clock_timestamp())
        if cause is not None or not trials:
            ledger.write_stability(db, study.id, numbers[: len(firm.documents)], firm.documents)
            warned = [*locked.warnings, *(each.model_dump(mode="json") for each in firm.warnings)]
            touch_study(db, study.id, warnings=warned)
            return Step(endings.end_study(db, locked, cause))
        if ledger.is_ranking_due(db, locked):
            ledger.write_ranking(db, locked, known.results)
        add_trials(db, study.id, study.round + 1, trials)
        db.refresh(locked)
        chunks = dispatch.due_chunks(db, locked)
        mark_sent(db, study.id, chunks)
        return Step(locked.version, chunks)


def _expected_trials(plan: Plan, done: int, left: int | None) -> int | None:
    """About how many trials the study will have in all; None while neither its search nor its budget tells."""
    most = settings().max_trials if plan.budget.whole_space else plan.budget.expected_trials
    if left is None:
        return None if plan.budget.whole_space else most
    return min(done + left, most)


def _is_cancelled(study_id: UUID) -> bool:
    """Asked while an optimizer thinks; the rescuer sees by `woken_at` that the study is not forgotten."""
    awake = update(StudyRow).where(StudyRow.id == study_id).values(woken_at=func.clock_timestamp())
    with transaction() as db:
        found = db.execute(awake.returning(StudyRow.cancel_requested_at)).one_or_none()
    return found is None or found[0] is not None


def _sampler_failed(study: StudyRow, error: SamplerError) -> Step | None:
    log.error("sampler_failed", study_id=str(study.id), error=str(error))
    with transaction() as db:
        locked = lock_study(db, study.id)
        if locked is None or (locked.status, locked.round) != (study.status, study.round):
            return None
        return Step(endings.end_study(db, locked, endings.sampler_problem(error)))


def _stability(study: StudyRow, config: SmartSearchConfig, known: ledger.Known) -> tuple[list[int], Stability] | None:
    """Trial numbers of the leaders, and how firm they stand; a study whose leaders cannot be replayed ends without.

    None if a cancel or a worker that is told to go came between: somebody else ends the study.
    """
    if study.provenance.get(watchdog.STUCK):
        return [], UNFINISHED
    numbers = ledger.leaders(config.goal, known.results, LEADERS, FRONT_LEADERS)
    limit_s = config.sweep.max_eval_seconds
    if limit_s is not None:
        limit_s *= max(num_replays(config, len(numbers)), 1)
    trace = _stored_trace(study)
    leaders = [known.told[number].deployment for number in numbers]
    with Watch(study.id, [], limit_s) as watch:
        watch.begin(watchdog.CHECK)
        try:
            firm = stability(config, leaders, trace, watch)
        except Exception:
            log.exception("stability_failed", study_id=str(study.id))
            return [], Stability()
        return None if watch.is_interrupted else (numbers, firm)


def _new_trials(known: ledger.Known, proposals: Sequence[Proposal]) -> list[NewTrial]:
    """Rows for a round; a proposal that repeats an earlier trial is born with that one's verdict.

    A repeat within the round is left out: its twin has no verdict yet, and one row per configuration is enough.
    """
    trials: dict[str, NewTrial] = {}
    number = len(known.told)
    for each in proposals:
        document = each.deployment.model_dump(mode="json")
        sha256 = fingerprint(document)
        if sha256 not in trials:
            trials[sha256] = NewTrial(number, document, sha256, known.numbers.get(sha256), each.suggestion)
            number += 1
    return list(trials.values())
