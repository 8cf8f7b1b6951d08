"""What is known of a study's trials: the history told to the sampler, and the ranking written from it."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from app.db.engine import transaction
from app.db.lifecycle import database_now, touch_study
from app.db.tables import CandidateRow, StudyRow, TrialRow
from app.ids import fingerprint
from app.schemas.deployment import Deployment
from app.schemas.status import ReasonCode, TrialStatus
from app.schemas.study import SmartSearchConfig
from workers.search.history import Told
from workers.search.pareto import front
from workers.search.score import rank

_KEPT_STUDIES = 8
_kept: OrderedDict[UUID, list[Told]] = OrderedDict()
"""Ended trials by study, from trial 0 on without gaps. Ended trials never change, so this can be short, never wrong."""

_TOLD = (
    TrialRow.number,
    TrialRow.deployment,
    TrialRow.status,
    TrialRow.reason_code,
    TrialRow.score,
    TrialRow.objectives,
    TrialRow.rejected,
    TrialRow.cache_hit,
)


def history(study_id: UUID) -> list[Told]:
    """Every trial of a study between rounds, in trial order; all have ended."""
    known = _kept.pop(study_id, [])
    query = select(*_TOLD).where(TrialRow.study_id == study_id, TrialRow.number >= len(known)).order_by(TrialRow.number)
    with transaction() as db:
        known = [*known, *(_told(row) for row in db.execute(query))]
    _kept[study_id] = known
    while len(_kept) > _KEPT_STUDIES:
        _kept.popitem(last=False)
    return known


def feasible_so_far(db: Session, study_id: UUID) -> list[Told]:
    """The distinct feasible results at this moment, in trial order."""
    is_result = (TrialRow.study_id == study_id, TrialRow.status == TrialStatus.FEASIBLE, ~TrialRow.cache_hit)
    return [_told(row) for row in db.execute(select(*_TOLD).where(*is_result).order_by(TrialRow.number))]


def first_results(told: Iterable[Told]) -> list[Told]:
    """The distinct feasible results of a history."""
    return [each for each in told if each.status == TrialStatus.FEASIBLE and not each.cache_hit]


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
    )


def numbers_by_fingerprint(told: Sequence[Told]) -> dict[str, int]:
    """The first trial number of each configuration."""
    numbers: dict[str, int] = {}
    for each in told:
        numbers.setdefault(fingerprint(each.deployment.model_dump(mode="json")), each.number)
    return numbers


def is_ranking_due(db: Session, study: StudyRow) -> bool:
    """Whether an open round has brought results and a second has passed; large studies are ranked less often."""
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


def write_ranking(db: Session, study: StudyRow, results: Sequence[Told]) -> None:
    """Write place, rank and front of every result, and the study's best. The caller holds the lock."""
    goal = SmartSearchConfig.model_validate(study.config).goal
    order = [results[index] for index in rank(goal, results)]
    leaders = {results[index].number for index in front(goal, results)} if goal.is_pareto else {order[0].number} if order else set()
    ranks: list[int | None] = []
    for place, told in enumerate(order, start=1):
        position = sum(1 for each in ranks if each is not None) + 1 if goal.is_pareto else place
        ranks.append(position if not goal.is_pareto or told.number in leaders else None)
    parameters = {
        "id": study.id,
        "numbers": [told.number for told in order],
        "places": list(range(1, len(order) + 1)),
        "ranks": ranks,
        "fronts": [told.number in leaders for told in order],
    }
    db.execute(_PLACE, parameters)
    touch_study(db, study.id, ranked_at=func.clock_timestamp(), best=_best(db, study, goal.is_pareto, len(leaders)))


def _best(db: Session, study: StudyRow, is_pareto: bool, num_leaders: int) -> dict[str, Any] | None:
    query = select(CandidateRow).where(CandidateRow.study_id == study.id, CandidateRow.rank == 1)
    winner = db.scalars(query.order_by(CandidateRow.place).limit(1)).one_or_none()
    if winner is None:
        return None
    best = {"candidate_id": str(winner.id), "trial": winner.number, "score": winner.score, "used_gpus": winner.used_gpus}
    return {**best, "front_size": num_leaders} if is_pareto else best
