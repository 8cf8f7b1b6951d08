"""Verbs on candidates: pages, one, its report, and the comparison of two studies' winners."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple
from uuid import UUID

import zstandard
from sqlalchemy import Integer, Row, Select, Text, Uuid, bindparam, cast, select, true
from sqlalchemy.orm import Session

from app.db.engine import reading
from app.db.tables import CandidateRow, ReportRow, StudyRow
from app.errors import ConflictError, NotFoundError
from app.render import formats
from app.render.facts import Facts
from app.schemas.deployment import Deployment

View = Literal["ranked", "front", "all"]


class Winner(NamedTuple):
    """A study with its first candidate."""

    study: StudyRow
    candidate: CandidateRow


_PAGE: tuple[Any, ...] = (
    CandidateRow.id,
    CandidateRow.study_id,
    CandidateRow.number,
    CandidateRow.place,
    CandidateRow.rank,
    CandidateRow.on_front,
    CandidateRow.used_gpus,
    CandidateRow.score,
    CandidateRow.objectives,
    CandidateRow.rejected,
    CandidateRow.sla_met,
    CandidateRow.created_at,
    *(cast(getattr(CandidateRow, name), Text).label(name) for name in ("deployment", "load", "metrics", "stability")),
)


class Page(NamedTuple):
    """Candidates, and the version of the study that last changed them, or any candidate for the view `all`."""

    version: int
    rows: Sequence[Row[Any]]


@lru_cache(maxsize=4096)
def goal_of(study_id: UUID) -> Mapping[str, Any]:
    """The goal of a study, read once: a configuration never changes. Raises: NotFoundError."""
    with reading() as db:
        goal: Mapping[str, Any] | None = db.scalar(select(StudyRow.config["goal"]).where(StudyRow.id == study_id))
    if goal is None:
        raise NotFoundError("There is no such study.")
    return goal


def page_of_candidates(
    db: Session, study_id: UUID, *, view: View, is_pareto: bool, limit: int, after: UUID | None
) -> Page:
    """Candidates of a view in its order, those behind candidate `after`; documents come as JSON text, unparsed.

    Stable while rows arrive: a page begins behind the *present* place of the last candidate seen, and two candidates
    never swap places. So nothing that was there when paging began is left out or shown twice. One statement: version
    and rows fit together.
    Raises: NotFoundError if there is no such study, or `after` is not a candidate of it.
    """
    if after is not None:
        last = select(_order_of(view)).where(CandidateRow.study_id == study_id, CandidateRow.id == after)
        if db.scalar(last) is None:
            raise NotFoundError("The cursor is not of this list.")
    parameters = {"study_id": study_id, "limit": limit, "after": after}
    # A page is made each time a study moves: building and inspecting the statement would cost twice its execution.
    found = db.connection().execute(_page_statement(view, is_pareto, after is not None), parameters).all()
    if not found:
        raise NotFoundError("There is no such study.")
    return Page(found[0].version, [row for row in found if row.id is not None])


def _order_of(view: View) -> Any:
    return CandidateRow.number if view == "all" else CandidateRow.place


@cache
def _page_statement(view: View, is_pareto: bool, has_cursor: bool) -> Select[Any]:
    """The study's version beside the page: `limit` candidates of a view, those behind `after` if there is a cursor."""
    study_id, key = bindparam("study_id", type_=Uuid), _order_of(view)
    query = select(*_PAGE).where(CandidateRow.study_id == study_id).order_by(key)
    if view != "all":
        # A Pareto goal ranks the front only.
        query = query.where(CandidateRow.on_front if view == "front" or is_pareto else CandidateRow.place.is_not(None))
    if has_cursor:
        after = bindparam("after", type_=Uuid)
        last = select(key).where(CandidateRow.study_id == study_id, CandidateRow.id == after)
        query = query.where(key > last.scalar_subquery())
    page = query.limit(bindparam("limit", type_=Integer)).subquery("page")
    order = page.c.number if view == "all" else page.c.place
    # Candidates join the view `all` with whatever raises the version; the others wait there for the next ranking.
    version = StudyRow.version if view == "all" else StudyRow.ranked_version
    return (
        select(version.label("version"), *page.c).outerjoin(page, true()).where(StudyRow.id == study_id).order_by(order)
    )


def get_candidate(db: Session, study_id: UUID, candidate_id: UUID) -> CandidateRow:
    """Raises: NotFoundError."""
    candidate = db.get(CandidateRow, candidate_id)
    if candidate is None or candidate.study_id != study_id:
        raise NotFoundError("There is no such candidate in this study.")
    return candidate


def get_report(db: Session, candidate: CandidateRow) -> bytes:
    """The report as JSON text."""
    return zstandard.decompress(db.get_one(ReportRow, candidate.id).body_zstd)


def launch_text(study: StudyRow, candidate: CandidateRow, wanted: formats.Format) -> str:
    """How to run the candidate for real. Raises: InvalidRequestError if the format does not fit its backend."""
    deployment = Deployment.model_validate(candidate.deployment)
    return formats.render(deployment, _facts(study, candidate, deployment), wanted)


_ADMISSION_FIELDS = (
    "active_decode_blocks_threshold",
    "active_prefill_tokens_threshold",
    "active_prefill_tokens_threshold_frac",
)


def _facts(study: StudyRow, candidate: CandidateRow, deployment: Deployment) -> Facts:
    space = study.config["search_space"]
    measured = study.provenance.get("perf_data") or {}
    load = {role: candidate.load.get(f"{role}_kv_capacity_tokens") for role in deployment.roles}
    return Facts(
        study_id=str(study.id),
        candidate_id=str(candidate.id),
        perf_data=f"{measured['package']} {measured['version']}" if measured else None,
        engine_version=(measured.get("backends") or {}).get(deployment.backend),
        kv_tokens={role: int(tokens) for role, tokens in load.items() if tokens is not None},
        host_blocks=space.get("num_g2_blocks") or 0,
        kv_bytes_per_token=space.get("kv_bytes_per_token"),
        admission={name: space[name] for name in _ADMISSION_FIELDS if space.get(name) is not None},
    )


def winner(db: Session, study: StudyRow) -> Winner:
    """The first of the ranking, or of the front. Raises: ConflictError while there is none."""
    query = select(CandidateRow).where(CandidateRow.study_id == study.id, CandidateRow.rank == 1)
    first = db.scalars(query.order_by(CandidateRow.place).limit(1)).one_or_none()
    if first is None:
        raise ConflictError(f"Study {study.id} has no ranked candidate; it is {study.status}.")
    return Winner(study, first)


_HIGHER = ("_tok_s", "_rps", "_per_user", "_per_gpu", "_reused_ratio")
_LOWER = ("_ms", "_gpus", "_s")
_DIRECTIONS = {"num_rejected": -1, "rejected": -1, "gpu_hours": -1}
_TARGETS_DOWN = frozenset({"e2e_latency", "ttft", "min_gpus"})


def direction(metric: str) -> int:
    """1 if more is better, -1 if less is, 0 if unknown."""
    if metric in _DIRECTIONS:
        return _DIRECTIONS[metric]
    if metric.endswith(_HIGHER) or "throughput" in metric:
        return 1
    return -1 if metric.endswith(_LOWER) else 0


def compare(ours: Winner, baseline: Winner) -> list[dict[str, Any]]:
    """Both winners metric by metric: objectives first, then every metric that either has.

    Raises: ConflictError if the goals have no objective in common.
    """
    rows = []
    mine, theirs = objectives_of(ours), objectives_of(baseline)
    if not mine.keys() & theirs.keys():
        raise ConflictError(f"The goals differ: {', '.join(mine)} against {', '.join(theirs)}.")
    for name in mine:
        sense = -1 if name in _TARGETS_DOWN else 1
        rows.append(_row(name, mine[name], theirs.get(name), sense, is_objective=True))
    left, right = ours.candidate.metrics, baseline.candidate.metrics
    names = [*left, *(name for name in right if name not in left)]
    rows += [_row(name, left.get(name), right.get(name), direction(name), is_objective=False) for name in names]
    return rows


def objectives_of(winner: Winner) -> dict[str, float]:
    """Raw objective values by name."""
    return named_objectives(winner.study.config["goal"], winner.candidate.objectives)


def named_objectives(goal: Mapping[str, Any], values: list[float]) -> dict[str, float]:
    """Objective values under the names of the goal, in its order."""
    names = goal.get("pareto_objectives") or ["throughput_per_gpu", "throughput_per_user"]
    return dict(zip(names if goal["target"] == "pareto" else [goal["target"]], values, strict=False))


def _row(metric: str, value: float | None, base: float | None, sense: int, *, is_objective: bool) -> dict[str, Any]:
    ratio = value / base if value is not None and base else None
    said = "unknown"
    if value is not None and base is not None and (sense or value == base):
        said = "equal" if value == base else "better" if (value - base) * sense > 0 else "worse"
    return {
        "metric": metric, "is_objective": is_objective, "value": value, "baseline": base, "ratio": ratio,
        "verdict": said,
    }  # fmt: skip


def worse_than_allowed(rows: list[dict[str, Any]], tolerance: float) -> list[dict[str, Any]]:
    """Objectives that are worse than the baseline by more than `tolerance`, a part of the baseline's value."""
    return [
        row
        for row in rows
        if row["is_objective"]
        and row["verdict"] == "worse"
        and (row["ratio"] is None or abs(row["ratio"] - 1) > tolerance)
    ]
