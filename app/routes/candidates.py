"""/studies/{id}/candidates, and the comparison of two studies' winners."""

from typing import Annotated, Any, NamedTuple
from uuid import UUID

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app import candidates, views
from app.config import SERVICE_VERSION
from app.db.engine import reading, snapshot
from app.errors import RegressionError
from app.render.formats import MEDIA_TYPES, Format
from app.routes import pages
from app.routes.deps import DoorDep
from app.routes.json_text import json_bytes, json_response
from app.routes.problems import UNCHANGED, Responses, problems
from app.routes.rendered import ReaderDep, Rendered
from app.schemas.candidate import CandidatePage, CandidateView
from app.schemas.report import Report
from app.schemas.study_view import Comparison
from app.studies import get_study, ranked_version_of

router = APIRouter(prefix="/studies/{study_id}", tags=["candidates"])
_LAUNCH_TEXTS: Responses = {
    200: {
        "content": {
            name: {"schema": {"type": "object" if "yaml" in name else "string"}}
            for name in sorted(set(MEDIA_TYPES.values()))
        }
    }
}
_FORMATS: Responses = {200: {"content": {name: {"schema": {"type": "string"}} for name in pages.FORMATS[1:]}}}


class _Listing(NamedTuple):
    """Which page, and how it is written."""

    study_id: UUID
    view: candidates.View
    limit: int
    cursor: str | None
    fields: str | None
    media_type: pages.Format


@router.get("/candidates", response_model=CandidatePage, responses=problems(404, 406) | UNCHANGED | _FORMATS)
async def list_(
    request: Request,
    study_id: UUID,
    reader: ReaderDep,
    view: candidates.View = "ranked",
    limit: pages.Limit = 50,
    cursor: pages.Cursor = None,
    fields: Annotated[str | None, Query(max_length=2000, description="Names of members, separated by commas.")] = None,
) -> Response:
    """Candidates: best first, the front, or all in the order of trials; as JSON, CSV or NDJSON."""
    media_type = pages.negotiate(request.headers.get("accept"))
    wanted, name = _Listing(study_id, view, limit, cursor, fields, media_type), pages.name_of(request)
    return await reader.read(study_id, media_type, lambda: _list(wanted, name))


def _list(wanted: _Listing, name: pages.Name) -> Rendered:
    after = pages.decode_cursor(wanted.cursor, UUID)
    goal = candidates.goal_of(wanted.study_id)
    with reading() as db:
        version, rows = candidates.page_of_candidates(
            db,
            wanted.study_id,
            view=wanted.view,
            is_pareto=goal["target"] == "pareto",
            limit=wanted.limit + 1,
            after=after,
        )
    following = pages.encode_cursor(rows[wanted.limit - 1].id) if len(rows) > wanted.limit else None
    items = [views.candidate_document(goal, row) for row in rows[: wanted.limit]]
    document = {
        "study_id": wanted.study_id,
        "version": version,
        "view": wanted.view,
        "items": items,
        "next_cursor": following,
    }
    body = json_bytes(document)
    if wanted.fields or wanted.media_type != "application/json":
        body = _rewritten(orjson.loads(body), wanted)
    return Rendered(version, body, wanted.media_type, pages.next_link(name, following))


def _rewritten(document: dict[str, Any], wanted: _Listing) -> bytes:
    items = pages.select_fields(document["items"], wanted.fields)
    if wanted.media_type == "text/csv":
        return pages.as_csv(items)
    if wanted.media_type == "application/x-ndjson":
        return pages.as_ndjson(items)
    return json_bytes({**document, "items": items})


@router.get("/candidates/{candidate_id}", response_model=CandidateView, responses=problems(404) | UNCHANGED)
async def get(study_id: UUID, candidate_id: UUID, reader: ReaderDep) -> Response:
    """One candidate with its whole configuration and metrics."""

    def made() -> Rendered:
        goal = candidates.goal_of(study_id)
        with snapshot() as db:
            version = ranked_version_of(db, study_id)
            document = views.candidate_document(goal, candidates.get_candidate(db, study_id, candidate_id))
        return Rendered(version, json_bytes(document), "application/json", {})

    return await reader.read(study_id, "application/json", made)


@router.get("/candidates/{candidate_id}/report", response_model=Report, responses=problems(404) | UNCHANGED)
def report(request: Request, study_id: UUID, candidate_id: UUID, door: DoorDep) -> Response:
    """The trace report: every metric, percentiles and a timeline. It never changes."""
    tag = pages.etag(pages.name_of(request), 1)
    with door.open("read") as (db, caller):
        candidate = candidates.get_candidate(db, get_study(db, caller, study_id).id, candidate_id)
        if pages.is_unchanged(request.headers.get("if-none-match"), tag):
            return pages.not_modified(tag)
        body = candidates.get_report(db, candidate)
    return Response(body, headers=pages.cache_headers(tag), media_type="application/json")


@router.get(
    "/candidates/{candidate_id}/deployment",
    response_class=Response,
    responses=problems(404) | UNCHANGED | _LAUNCH_TEXTS,
)
def deployment(
    request: Request,
    study_id: UUID,
    candidate_id: UUID,
    door: DoorDep,
    wanted: Annotated[Format, Query(alias="format", description="An engine's own commands, or a manifest.")] = "dynamo",
) -> Response:
    """How to run it for real: commands of the candidate's engine, or a DynamoGraphDeployment. Assumptions as comments."""
    tag = pages.etag(pages.name_of(request, SERVICE_VERSION), 1)
    with door.open("read") as (db, caller):
        study = get_study(db, caller, study_id)
        candidate = candidates.get_candidate(db, study.id, candidate_id)
    if pages.is_unchanged(request.headers.get("if-none-match"), tag):
        return pages.not_modified(tag)
    text = candidates.launch_text(study, candidate, wanted)
    return Response(text, headers=pages.cache_headers(tag), media_type=MEDIA_TYPES[wanted])


@router.get("/compare", response_model=Comparison, responses=problems(404, 409))
def compare(
    study_id: UUID,
    door: DoorDep,
    baseline: Annotated[UUID, Query(description="The study to compare with.")],
    tolerance: Annotated[float | None, Query(ge=0, le=1, description="Part of the baseline that may be lost.")] = None,
) -> Response:
    """This study's winner against the baseline's. With `tolerance`, 422 if an objective is worse by more than that."""
    with door.open("read") as (db, caller):
        ours = candidates.winner(db, get_study(db, caller, study_id))
        theirs = candidates.winner(db, get_study(db, caller, baseline))
    rows = candidates.compare(ours, theirs)
    worse = candidates.worse_than_allowed(rows, tolerance) if tolerance is not None else []
    document = {
        "study_id": ours.study.id,
        "baseline_id": theirs.study.id,
        "candidate_id": ours.candidate.id,
        "baseline_candidate_id": theirs.candidate.id,
        "tolerance": tolerance,
        "within_tolerance": None if tolerance is None else not worse,
        "metrics": rows,
    }
    if worse:
        said = "; ".join(f"{row['metric']} {row['value']:g} against {row['baseline']:g}" for row in worse)
        raise RegressionError(f"Worse than the baseline by more than {tolerance:g}: {said}.", comparison=document)
    return json_response(document)
