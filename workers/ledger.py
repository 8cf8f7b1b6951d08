"""What is known of a study's ended trials: the history told to the sampler, and the ranking written from it.

Ended trials never change, so each process keeps those of recent studies in memory and reads only what came since.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import orjson
from sqlalchemy import CursorResult, func, select, text
from sqlalchemy.orm import Session

from app.db.engine import snapshot
from app.db.lifecycle import database_now, has_open_trials, touch_study
from app.db.tables import CandidateRow, StudyRow, TrialRow
from app.schemas.deployment import Deployment
from app.schemas.goal import Goal
from app.schemas.status import ReasonCode, TrialStatus
from workers.search.candidate import scored
from workers.search.history import Told
from workers.search.pareto import front_key, front_of
from workers.search.score import Scored, ranked

_KEPT_STUDIES = 8


@dataclass(slots=True)
class Known:
    """Closed rounds of a study.

    told: every ended trial from number 0 on, without gaps. numbers: first trial number by deployment fingerprint.
    results: trial number and result of each candidate among them.
    """

    told: list[Told] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    results: list[tuple[int, Scored]] = field(default_factory=list)


_kept: OrderedDict[UUID, Known] = OrderedDict()

_TOLD = (
    TrialRow.number,
    TrialRow.deployment,
    TrialRow.deployment_sha256,
    TrialRow.status,
    TrialRow.reason_code,
    TrialRow.score,
    TrialRow.objectives,
    TrialRow.rejected,
    TrialRow.cache_hit,
    TrialRow.suggestion,
)
_RESULT = (
    CandidateRow.number,
    CandidateRow.deployment,
    CandidateRow.used_gpus,
    CandidateRow.score,
    CandidateRow.objectives,
    CandidateRow.rejected,
    CandidateRow.metrics["goodput_output_throughput_tok_s"].astext.label("goodput"),
    CandidateRow.metrics["mean_e2e_latency_ms"].astext.label("e2e"),
)


def closed_rounds(study: StudyRow) -> Known | None:
    """Everything known of a study none of whose trials is open; None if another process has begun its next round.

    What is read is kept, so it must be of one moment: an open trial among it would stay open for ever.
    """
    known = _kept.get(study.id) or Known()
    since = len(known.told)
    query = select(*_TOLD).where(TrialRow.study_id == study.id, TrialRow.number >= since).order_by(TrialRow.number)
    with snapshot() as db:
        if has_open_trials(db, study.id):
            return None
        rows = db.execute(query).all()
        results = _results(db, study, since)
    for row in rows:
        known.numbers.setdefault(row.deployment_sha256, row.number)
    known = Known([*known.told, *map(_told, rows)], known.numbers, [*known.results, *results])
    _kept[study.id] = known
    _kept.move_to_end(study.id)
    while len(_kept) > _KEPT_STUDIES:
        _kept.popitem(last=False)
    return known


def _told(row: Any) -> Told:
    return Told(
        number=row.number,
        deployment=Deployment.model_validate(row.deployment),
        status=TrialStatus(row.status),
        reason=ReasonCode(row.reason_code) if row.reason_code else None,
        score=row.score,
        objectives=tuple(row.objectives or ()),
        rejected=row.rejected,
        cache_hit=row.cache_hit,
        suggestion=row.suggestion,
    )


def results_so_far(db: Session, study: StudyRow) -> list[tuple[int, Scored]]:
    """Trial number and result of every candidate at this moment, open round included."""
    known = _kept.get(study.id) or Known()
    return [*known.results, *_results(db, study, len(known.told))]


def _results(db: Session, study: StudyRow, since: int) -> list[tuple[int, Scored]]:
    query = select(*_RESULT).where(CandidateRow.study_id == study.id, CandidateRow.number >= since)
    smallest_first = study.config["goal"]["target"] == "min_gpus"
    return [(row.number, _scored(row, smallest_first)) for row in db.execute(query.order_by(CandidateRow.number))]


def _scored(row: Any, smallest_first: bool) -> Scored:
    tie = (-float(row.goodput or 0.0), float(row.e2e or "inf")) if smallest_first else ()
    return scored(Deployment.model_validate(row.deployment), row.score, row.objectives, row.rejected, tie)


def is_ranking_due(db: Session, study: StudyRow) -> bool:
    """Whether there are results and a second has passed since the last ranking; large studies are ranked less often."""
    if study.num_feasible == 0:
        return False
    pause = timedelta(seconds=1 + study.num_feasible / 1000)
    return database_now(db) - (study.ranked_at or study.started_at or study.created_at) > pause


_PLACE = text("""
    UPDATE candidates SET place = v.place, rank = v.rank, on_front = v.on_front
    FROM unnest(CAST(:numbers AS int[]), CAST(:places AS int[]), CAST(:ranks AS int[]), CAST(:fronts AS bool[]))
        AS v(number, place, rank, on_front)
    WHERE study_id = :id AND candidates.number = v.number
      AND (candidates.place, candidates.rank, candidates.on_front) IS DISTINCT FROM (v.place, v.rank, v.on_front)
""")


def write_ranking(db: Session, study: StudyRow, results: Sequence[tuple[int, Scored]]) -> None:
    """Write place, rank and front of every result, and the study's best. The caller holds the lock.

    Where nobody's place changes, the ranked version stays, so that those who poll the ranking are told nothing new.
    """
    goal = Goal.model_validate(study.config["goal"])
    by_identity = {id(scored): number for number, scored in results}
    order, leaders = _ordered(goal, [scored for _, scored in results])
    numbers = [by_identity[id(scored)] for scored in order]
    on_front = [id(scored) in leaders for scored in order]
    parameters = {
        "id": study.id,
        "numbers": numbers,
        "places": list(range(1, len(order) + 1)),
        "ranks": _ranks(goal, on_front),
        "fronts": on_front,
    }
    moved = cast(CursorResult[Any], db.execute(_PLACE, parameters)).rowcount
    best = _best(db, study, len(leaders) if goal.is_pareto else None)
    sla = _sla(db, study) if goal.sla is not None else None
    changes = {"ranked_version": StudyRow.version + 1} if moved else {}
    touch_study(db, study.id, ranked_at=func.clock_timestamp(), best=best, sla=sla, **changes)


_LEAST_VIOLATING = text("""
    SELECT number AS trial, candidate_id::text, deployment, rejected, sla FROM trials
    WHERE study_id = :id AND sla IS NOT NULL
    ORDER BY rejected, (sla ->> 'worst_ratio')::float8 NULLS LAST, number LIMIT :limit
""")
_NUM_LEAST_VIOLATING = 5


def _sla(db: Session, study: StudyRow) -> dict[str, Any]:
    """How many candidates met the SLA; if none did, the trials that came closest, apart from the ranking."""
    met = select(func.count()).where(CandidateRow.study_id == study.id, CandidateRow.sla_met.is_(True))
    met_by = db.scalar(met) or 0
    nearest = [] if met_by else db.execute(_LEAST_VIOLATING, {"id": study.id, "limit": _NUM_LEAST_VIOLATING}).all()
    return {"met_by": met_by, "least_violating": [dict(row._mapping) for row in nearest]}


def leaders(goal: Goal, results: Sequence[tuple[int, Scored]], scalar: int, front: int) -> list[int]:
    """Trial numbers of the first results in the goal's order: of a scalar goal, or of a front."""
    by_identity = {id(scored): number for number, scored in results}
    order, on_front = _ordered(goal, [scored for _, scored in results])
    kept = [each for each in order if id(each) in on_front][:front] if goal.is_pareto else order[:scalar]
    return [by_identity[id(each)] for each in kept]


_STABILITY = text("""
    UPDATE candidates SET stability = CAST(v.document AS jsonb)
    FROM unnest(CAST(:numbers AS int[]), CAST(:documents AS text[])) AS v(number, document)
    WHERE study_id = :id AND candidates.number = v.number
""")


def write_stability(db: Session, study_id: UUID, numbers: Sequence[int], documents: Sequence[dict[str, Any]]) -> None:
    """Write how firm the leaders stand. The caller holds the lock."""
    if not numbers:
        return
    texts = [orjson.dumps(document).decode() for document in documents]
    db.execute(_STABILITY, {"id": study_id, "numbers": list(numbers), "documents": texts})
    touch_study(db, study_id, ranked_version=StudyRow.version + 1)


def _ordered(goal: Goal, results: Sequence[Scored]) -> tuple[list[Scored], set[int]]:
    """All results in the goal's total order, and the identities of those that no other one beats."""
    if not goal.is_pareto:
        order = ranked(results)
        return order, {id(order[0])} if order else set()
    order = sorted(results, key=lambda scored: front_key(goal.objectives, scored))
    return order, {id(scored) for scored in front_of(goal.objectives, results)}


def _ranks(goal: Goal, on_front: Sequence[bool]) -> list[int | None]:
    if not goal.is_pareto:
        return list(range(1, len(on_front) + 1))
    ranks: list[int | None] = []
    position = 0
    for is_leader in on_front:
        position += is_leader
        ranks.append(position if is_leader else None)
    return ranks


def _best(db: Session, study: StudyRow, front_size: int | None) -> dict[str, Any] | None:
    query = select(CandidateRow).where(CandidateRow.study_id == study.id, CandidateRow.rank == 1)
    first = db.scalars(query.order_by(CandidateRow.place).limit(1)).one_or_none()
    if first is None:
        return None
    return {
        "candidate_id": str(first.id),
        "trial": first.number,
        "score": first.score,
        "used_gpus": first.used_gpus,
        "sla_met": first.sla_met,
        "front_size": front_size,
    }
