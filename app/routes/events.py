"""/studies/{id}/events: server-sent events. Each is a snapshot, its id the study's version; there is no event table."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from app import studies, views
from app.config import settings
from app.errors import NotFoundError, QuotaError
from app.routes.deps import Door, DoorDep, WakerDep
from app.routes.json_text import json_bytes
from app.routes.problems import problems
from app.schemas.status import STUDY_TERMINAL
from app.wake import Waker

router = APIRouter(prefix="/studies/{study_id}", tags=["studies"])
_KEEP_ALIVE_S = 15.0
_PAUSE_S = 0.25
_SNAPSHOT = ("id", "version", "status", "progress", "best", "problem")


class _Streams:
    """How many streams this process holds open."""

    num_open = 0


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses=problems(404, 429)
    | {
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Snapshots as events"},
        204: {"description": "The study has ended, and the client has seen it end"},
    },
)
async def events(
    study_id: UUID,
    door: DoorDep,
    waker: WakerDep,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**31 - 1)] = None,
) -> Response:
    """Events `status`, `best` and `progress` until the study ends; a client that comes back gets what it missed."""
    first = await run_in_threadpool(_snapshot, door, study_id)
    if last_event_id is not None and first["status"] in STUDY_TERMINAL and first["version"] <= last_event_id:
        return Response(status_code=204)
    if _Streams.num_open >= settings().max_event_streams:
        raise QuotaError("Too many event streams are open.", limit=settings().max_event_streams)
    stream = _stream(door, waker, study_id, first, last_event_id)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, headers=headers, media_type="text/event-stream")


def _snapshot(door: Door, study_id: UUID) -> dict[str, Any]:
    with door.open("read") as (db, caller):
        document = views.study_summary(studies.get_study(db, caller, study_id))
    return {name: document[name] for name in _SNAPSHOT}


async def _stream(
    door: Door, waker: Waker, study_id: UUID, first: dict[str, Any], last_event_id: int | None
) -> AsyncIterator[bytes]:
    _Streams.num_open += 1
    try:
        seen: dict[str, Any] = {}
        snapshot, said = first, time.monotonic()
        if last_event_id is not None and first["version"] <= last_event_id:
            seen = first
        yield b"retry: 1000\n\n"
        while True:
            if snapshot["version"] != seen.get("version"):
                yield _events(snapshot, seen)
                seen, said = snapshot, time.monotonic()
            if snapshot["status"] in STUDY_TERMINAL:
                return
            await asyncio.sleep(_PAUSE_S)
            await waker.wait_for(study_id, seen["version"], _KEEP_ALIVE_S)
            if time.monotonic() - said >= _KEEP_ALIVE_S:
                yield b": still here\n\n"
                said = time.monotonic()
            try:
                snapshot = await run_in_threadpool(_snapshot, door, study_id)
            except NotFoundError:
                return
    finally:
        _Streams.num_open -= 1


def _events(snapshot: dict[str, Any], seen: dict[str, Any]) -> bytes:
    """One event per thing that changed, all of one version; the id comes last, so a cut stream repeats the lot."""
    kinds = [kind for kind in ("best", "progress", "status") if snapshot[kind] != seen.get(kind)] or ["progress"]
    data = json_bytes(snapshot)
    parts = [b"event: " + kind.encode() + b"\ndata: " + data for kind in kinds]
    parts[-1] = b"id: " + str(snapshot["version"]).encode() + b"\n" + parts[-1]
    return b"\n\n".join(parts) + b"\n\n"
