"""/traces: upload, list, read, delete."""

import asyncio
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from app.auth import Caller
from app.config import settings
from app.db.engine import transaction
from app.routes.deps import DoorDep
from app.routes.json_text import json_response
from app.routes.openapi_bodies import TRACE_UPLOAD
from app.routes.pages import Cursor, Limit, decode_cursor, encode_cursor, name_of, next_link
from app.routes.problems import problems
from app.routes.uploads import OptionsDep, SlotsDep, refuse_declared_size, take_in_body, too_slow
from app.schemas.trace import TracePage, TraceView
from app.traces import store
from app.traces.intake import CheckedTrace, open_intake
from app.views import trace_document

router = APIRouter(prefix="/traces", tags=["traces"])


@router.post(
    "",
    status_code=201,
    response_model=TraceView,
    responses=problems(408, 409, 413, 507) | TRACE_UPLOAD.responses,
    openapi_extra=TRACE_UPLOAD.request,
)
async def upload(
    request: Request,
    door: DoorDep,
    slots: SlotsDep,
    options: OptionsDep,
    name: Annotated[str | None, Query(min_length=1, max_length=200, description="An alias for `trace_path`.")] = None,
) -> Response:
    """Store a trace: JSON lines or CSV, plain, gzip or zstd, as the body or as one part of a form.

    It is checked row by row while it arrives. The same rows again, in any order, give the same trace.
    """
    caller = await run_in_threadpool(door.caller, "submit")
    if name is not None:
        store.check_name(name)
    refuse_declared_size(request)
    async with slots:
        intake = await run_in_threadpool(open_intake, options)
        try:
            async with asyncio.timeout(settings().trace_upload_timeout_s):
                checked = await take_in_body(request, intake)
            document = await run_in_threadpool(_store, caller, checked, name)
        except TimeoutError as error:
            raise too_slow() from error
        except ClientDisconnect:
            return Response(status_code=400)  # Nobody reads it.
        finally:
            await run_in_threadpool(intake.close)
    return json_response(document, 201, {"Location": f"/traces/{document['id']}"})


def _store(caller: Caller, checked: CheckedTrace, name: str | None) -> dict[str, Any]:
    trace_id = store.put(caller.project, checked, name)
    with transaction() as db:
        stored = store.get(db, caller.project, trace_id)
    return trace_document(stored._replace(upload=checked.upload))


@router.get("", response_model=TracePage, responses=problems())
def list_(
    request: Request,
    door: DoorDep,
    name: Annotated[str | None, Query(max_length=200, description="Only the trace of this alias.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Traces, newest first."""
    with door.open("read") as (db, caller):
        rows = store.list_traces(db, caller.visible_project, limit + 1, decode_cursor(cursor, UUID), name)
    following = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
    document = {"items": [trace_document(row) for row in rows[:limit]], "next_cursor": following}
    return json_response(document, headers=next_link(name_of(request), following))


@router.get("/{trace_id}", response_model=TraceView, responses=problems(404))
def get(trace_id: UUID, door: DoorDep) -> Response:
    """One trace: what it holds, and what its upload was like."""
    with door.open("read") as (db, caller):
        return json_response(trace_document(store.get(db, caller.visible_project, trace_id)))


@router.delete("/{trace_id}", status_code=204, responses=problems(404, 409, 507))
def delete(trace_id: UUID, door: DoorDep) -> Response:
    """Delete a trace that no study uses."""
    store.remove(door.caller("submit").visible_project, trace_id)
    return Response(status_code=204)
