"""/studies/{id}/candidates, and the comparison of two studies' winners."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app import candidates, views
from app.config import SERVICE_VERSION
from app.errors import RegressionError
from app.render.formats import MEDIA_TYPES, Format
from app.routes import pages
from app.routes.deps import DoorDep
from app.routes.json_text import json_response
from app.routes.problems import UNCHANGED, Responses, problems
from app.schemas.candidate import CandidatePage, CandidateView
from app.schemas.report import Report
from app.schemas.study_view import Comparison
from app.studies import get_study

router = APIRouter(prefix="/studies/{study_id}", tags=["candidates"])
_LAUNCH_TEXTS: Responses = {
    200: {"content": {name: {"schema": {"type": "string"}} for name in sorted(set(MEDIA_TYPES.values()))}}
}
_FORMATS: Responses = {200: {"content": {name: {"schema": {"type": "string"}} for name in pages.FORMATS[1:]}}}


@router.get("/candidates", response_model=CandidatePage, responses=problems(404, 406) | UNCHANGED | _FORMATS)
def list_(
    request: Request,
    study_id: UUID,
    door: DoorDep,
    view: candidates.View = "ranked",
    limit: pages.Limit = 50,
    cursor: pages.Cursor = None,
    fields: Annotated[str | None, Query(max_length=2000, description="Names of members, separated by commas.")] = None,
) -> Response:
    """Candidates: best first, the front, or all in the order of trials; as JSON, CSV or NDJSON."""
    media_type = pages.negotiate(request)
    with door.open("read") as (db, caller):
        study = get_study(db, caller, study_id)
        tag = pages.etag(request, study.version, media_type)
        if pages.is_unchanged(request, tag):
            return pages.not_modified(tag)
        rows = candidates.page_of_candidates(db, study, view, limit + 1, pages.decode_cursor(cursor, UUID))
    following = pages.encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
    items = pages.select_fields([views.candidate_document(study, row) for row in rows[:limit]], fields)
    headers = pages.cache_headers(tag) | pages.next_link(request, following)
    if media_type == "text/csv":
        return Response(pages.as_csv(items), headers=headers, media_type=media_type)
    if media_type == "application/x-ndjson":
        return Response(pages.as_ndjson(items), headers=headers, media_type=media_type)
    page = {"study_id": study.id, "version": study.version, "view": view, "items": items, "next_cursor": following}
    return json_response(page, headers=headers)


@router.get("/candidates/{candidate_id}", response_model=CandidateView, responses=problems(404) | UNCHANGED)
def get(request: Request, study_id: UUID, candidate_id: UUID, door: DoorDep) -> Response:
    """One candidate with its whole configuration and metrics."""
    with door.open("read") as (db, caller):
        study = get_study(db, caller, study_id)
        tag = pages.etag(request, study.version)
        if pages.is_unchanged(request, tag):
            return pages.not_modified(tag)
        candidate = candidates.get_candidate(db, study, candidate_id)
    return json_response(views.candidate_document(study, candidate), headers=pages.cache_headers(tag))


@router.get("/candidates/{candidate_id}/report", response_model=Report, responses=problems(404) | UNCHANGED)
def report(request: Request, study_id: UUID, candidate_id: UUID, door: DoorDep) -> Response:
    """The trace report: every metric, percentiles and a timeline. It never changes."""
    tag = pages.etag(request, 1)
    with door.open("read") as (db, caller):
        candidate = candidates.get_candidate(db, get_study(db, caller, study_id), candidate_id)
        if pages.is_unchanged(request, tag):
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
    tag = pages.etag(request, 1, SERVICE_VERSION)
    with door.open("read") as (db, caller):
        study = get_study(db, caller, study_id)
        candidate = candidates.get_candidate(db, study, candidate_id)
    if pages.is_unchanged(request, tag):
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
