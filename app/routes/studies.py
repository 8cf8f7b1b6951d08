"""/studies: submit, list, read, cancel, delete, plan, trials."""

import asyncio
import re
import time
from datetime import datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from pydantic import BeforeValidator
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.responses import Response

from app import studies, views
from app.auth import Caller
from app.config import settings
from app.db.engine import reading, snapshot
from app.errors import ConflictError, FieldFault, InvalidRequestError
from app.limits import check_duration, check_limits
from app.queue import announce, wake_study
from app.routes.bodies import CheckedStudy, RefusedError, check, is_multipart, read_submission
from app.routes.deps import Door, DoorDep, Planner, PlannerDep, WakerDep
from app.routes.faults import Fault
from app.routes.json_text import json_bytes, json_response
from app.routes.openapi_bodies import SUBMISSION
from app.routes.pages import (
    Cursor,
    Limit,
    decode_cursor,
    encode_cursor,
    name_of,
    next_link,
)
from app.routes.problems import UNCHANGED, problems
from app.routes.rendered import ReaderDep, Rendered
from app.routes.uploads import OptionsDep, SlotsDep, take_in_part
from app.schemas.advice import advice
from app.schemas.status import STUDY_TERMINAL, StudyStatus, TrialStatus
from app.schemas.study_view import StudyPage, StudyView, TrialPage
from app.traces.intake import IntakeOptions, open_intake
from app.traces.store import put
from app.wake import Waker

router = APIRouter(prefix="/studies", tags=["studies"])
T = TypeVar("T")


def _no_number(text: str) -> str:
    """Pydantic would read a number as seconds since 1970, which no one who writes a year means."""
    if not re.match(r"\d{4}-\d\d-\d\d", text):
        raise ValueError("write a time as in 2026-01-31T12:00:00Z")
    return text


Wait = Annotated[float, Query(ge=0, le=60, description="Seconds to wait at most.")]
Moment = Annotated[datetime, BeforeValidator(_no_number)]
_POLL_AGAIN_S = "1"
_TRACE_TO_COME = "sha256:"
"""Stands for the trace of the same form until that is read."""


@router.post(
    "",
    status_code=202,
    response_model=StudyView,
    responses=problems(408, 409, 413, 415, 429, 507) | SUBMISSION.responses,
    openapi_extra=SUBMISSION.request,
)
async def submit(
    request: Request,
    door: DoorDep,
    planner: PlannerDep,
    waker: WakerDep,
    slots: SlotsDep,
    options: OptionsDep,
    wait: Wait = 0,
    dry_run: bool = False,
    reuse: bool = False,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Response:
    """Submit a study as JSON or YAML, or as a form with the parts `config` and `trace`.

    202 with the study; 200 with the plan for `dry_run`, or with the earlier study for a repeated `Idempotency-Key` and
    for `reuse`. With `wait`, answers when the study ends or the seconds are over.
    """
    caller = await run_in_threadpool(door.caller, "submit")
    _check_wait(wait)
    checked, part = await _received(request)
    summary: dict[str, Any] | None = None
    if part is not None:
        async with slots:
            checked, summary = await _with_trace(caller, checked, part, options, keeps=not dry_run)
    plan = await run_in_threadpool(_within_limits, caller, checked, planner, summary, dry_run=dry_run)
    if plan is not None:
        return json_response(plan)
    warnings = [warned.model_dump() for warned in advice(checked.config, checked.client_set)]
    submission = studies.Submission(checked.config, warnings, idempotency_key, reuse)
    created = await run_in_threadpool(_create, caller, submission)
    document = await _await_end(door, waker, created.study.id, wait)
    headers = {"Location": f"/studies/{created.study.id}"}
    if document["status"] not in STUDY_TERMINAL:
        headers["Retry-After"] = _POLL_AGAIN_S
    if created.is_replay:
        headers["Idempotency-Replayed"] = "true"
    return json_response(document, 200 if created.is_replay else 202, headers)


def _check_wait(wait_s: float) -> None:
    limit_s = settings().max_wait_s
    if wait_s > limit_s:
        fault = f"is {wait_s:g} seconds; the limit is {limit_s:g}"
        raise InvalidRequestError([FieldFault("wait", wait_s, fault, f"wait at most {limit_s:g} s, then ask again")])


async def _received(request: Request) -> tuple[CheckedStudy, UploadFile | None]:
    """The configuration, and the trace that came with it, which its `trace_path` does not name yet."""
    limit_s = settings().trace_upload_timeout_s if is_multipart(request) else settings().body_timeout_s
    try:
        submission = await asyncio.wait_for(read_submission(request), limit_s)
    except TimeoutError as error:
        fault = f"did not arrive within {limit_s:g} seconds"
        raise RefusedError(408, [Fault(pointer="", value=None, fault=fault, remedy="send it faster")]) from error
    document = submission.document
    if submission.trace is not None and isinstance(document, dict):
        workload = document.get("workload") or {}
        if isinstance(workload, dict):
            document = {**document, "workload": {**workload, "trace_path": _TRACE_TO_COME}}
    try:
        return await run_in_threadpool(check, document, submission.faults), submission.trace
    except RefusedError:
        if submission.trace is not None:
            await submission.trace.close()
        raise


async def _with_trace(
    caller: Caller, checked: CheckedStudy, part: UploadFile, options: IntakeOptions, *, keeps: bool
) -> tuple[CheckedStudy, dict[str, Any]]:
    """The configuration with the trace in place of its `trace_path`, and the trace's summary."""
    intake = await run_in_threadpool(open_intake, options)
    try:
        trace = await take_in_part(part, intake)
        if keeps:
            await run_in_threadpool(put, caller.project, trace)
    finally:
        await run_in_threadpool(intake.close)
    workload = checked.config.workload.model_copy(update={"trace_path": f"sha256:{trace.sha256}"})
    config = checked.config.model_copy(update={"workload": workload})
    return CheckedStudy(config, checked.client_set), trace.summary


def _within_limits(
    caller: Caller, checked: CheckedStudy, planner: Planner, summary: dict[str, Any] | None, *, dry_run: bool
) -> dict[str, Any] | None:
    """The plan of a dry run; None if the study is to be stored. Raises: InvalidRequestError beyond a limit."""
    config = checked.config
    if summary is None:
        trace = studies.named_trace(caller, config)
        summary = trace.summary if trace else None
    num_trace_requests = summary.get("num_requests") if summary else None
    check_limits(config, num_trace_requests)
    if dry_run:
        return planner(config, summary)
    check_duration(config, num_trace_requests, lambda: planner(config, summary))
    return None


def _create(caller: Caller, submission: studies.Submission) -> studies.Created:
    created = studies.create_study(caller, submission)
    if not created.is_replay:
        wake_study(created.study.id)
    return created


def _read(door: Door, study_id: UUID) -> dict[str, Any]:
    with door.open("read") as (db, caller):
        return views.study_document(studies.get_study(db, caller, study_id))


async def _await_end(
    door: Door, waker: Waker, study_id: UUID, seconds: float, version: int | None = None
) -> dict[str, Any]:
    """The study once it has ended, its version is above `version`, or the seconds are over."""
    deadline = time.monotonic() + seconds
    while True:
        document = await run_in_threadpool(_read, door, study_id)
        has_moved = version is not None and document["version"] > version
        left_s = deadline - time.monotonic()
        if has_moved or document["status"] in STUDY_TERMINAL or left_s <= 0:
            return document
        await waker.wait_for(study_id, document["version"], left_s)


@router.get("", response_model=StudyPage, responses=problems())
def list_(
    request: Request,
    door: DoorDep,
    status: StudyStatus | None = None,
    label: Annotated[str | None, Query(max_length=400, description="`key`, or `key=value`.")] = None,
    model_name: Annotated[str | None, Query(max_length=400)] = None,
    created_after: Moment | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Studies, newest first."""
    wanted = studies.StudyFilter(status, label, model_name, created_after)
    with door.open("read") as (db, caller):
        rows = studies.list_studies(db, caller, wanted, limit + 1, decode_cursor(cursor, UUID))
    following = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
    document = {"items": [views.study_summary(row) for row in rows[:limit]], "next_cursor": following}
    return json_response(document, headers=next_link(name_of(request), following))


@router.get("/{study_id}", response_model=StudyView, responses=problems(404) | UNCHANGED)
async def get(
    study_id: UUID,
    door: DoorDep,
    waker: WakerDep,
    reader: ReaderDep,
    wait: Wait = 0,
    version: Annotated[int | None, Query(ge=0, description="Wait until the study is past this version.")] = None,
) -> Response:
    """One study. With `wait`, answers when it ends; with `version` too, as soon as it is past that version."""
    _check_wait(wait)
    if wait > 0:
        await _await_end(door, waker, study_id, wait, version)

    def made() -> Rendered:
        with reading() as db:
            study = studies.study_to_read(db, study_id)
            return Rendered(study.version, json_bytes(views.study_document(study)), "application/json", {})

    return await reader.read(study_id, "application/json", made)


@router.post("/{study_id}/cancel", status_code=202, response_model=StudyView, responses=problems(404, 409, 507))
def cancel(study_id: UUID, door: DoorDep) -> Response:
    """Stop a study within seconds; what it has found stays. Repeating it is harmless."""
    study = studies.cancel_study(door.caller("submit"), study_id)
    announce(study.id, study.version)
    wake_study(study.id)
    return json_response(views.study_document(study), 202)


@router.delete("/{study_id}", status_code=204, responses=problems(404, 409, 507))
def delete(study_id: UUID, door: DoorDep) -> Response:
    """Delete an ended study with its trials, candidates and reports."""
    studies.delete_study(door.caller("submit"), study_id)
    return Response(status_code=204)


@router.get("/{study_id}/plan", responses=problems(404, 409))
def plan(study_id: UUID, door: DoorDep) -> Response:
    """What the study searches: branches, knobs, excluded shapes with reasons, capacities, estimated time."""
    with door.open("read") as (db, caller):
        study = studies.get_study(db, caller, study_id)
        document = study.plan
    if document is None:
        raise ConflictError(f"There is no plan (yet): the study is {study.status}.")
    return json_response(document)


@router.get("/{study_id}/trials", response_model=TrialPage, responses=problems(404) | UNCHANGED)
async def trials(
    request: Request,
    study_id: UUID,
    reader: ReaderDep,
    status: TrialStatus | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Every trial ever asked for, in that order."""
    name = name_of(request)

    def made() -> Rendered:
        after = decode_cursor(cursor, int)
        with snapshot() as db:
            version = studies.version_of(db, study_id)
            rows = studies.list_trials(db, study_id, status, limit + 1, after)
        following = encode_cursor(rows[limit - 1].number) if len(rows) > limit else None
        document = {"items": [views.trial_document(row) for row in rows[:limit]], "next_cursor": following}
        return Rendered(version, json_bytes(document), "application/json", next_link(name, following))

    return await reader.read(study_id, "application/json", made)
