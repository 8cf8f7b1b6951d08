"""/studies/{id}/events: server-sent events. Each is a snapshot, its id the study's version; there is no event table."""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Annotated, Any, cast
from uuid import UUID

import orjson
import psycopg
import structlog
from fastapi import APIRouter, Header, Request
from sqlalchemy.exc import DBAPIError
from starlette.responses import Response, StreamingResponse

from app import studies, views
from app.config import settings
from app.db.engine import reading
from app.errors import QuotaError, SpicaError
from app.polls import Poll, Polls
from app.routes.deps import BearerKey, WakerDep
from app.routes.json_text import json_bytes
from app.routes.pages import name_of
from app.routes.problems import problems
from app.routes.rendered import Rendered, RenderedPages
from app.schemas.status import STUDY_TERMINAL
from app.wake import Waker

log = structlog.get_logger()
router = APIRouter(prefix="/studies/{study_id}", tags=["studies"])
_KEEP_ALIVE_S = 15.0
_PAUSE_S = 0.25
_DATABASE_PAUSE_S = 1.0
_SHARED = 256
"""Snapshots that streams have parsed, and events written, in one process."""
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
    request: Request,
    study_id: UUID,
    waker: WakerDep,
    _key: BearerKey,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**31 - 1)] = None,
) -> Response:
    """Events `status`, `best` and `progress` until the study ends; a client that comes back gets what it missed."""
    look = _Look(request, study_id)
    first = await look()
    if last_event_id is not None and _has_ended(first) and first.version <= last_event_id:
        return Response(status_code=204)
    if _Streams.num_open >= settings().max_event_streams:
        raise QuotaError("Too many event streams are open.", limit=settings().max_event_streams)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    stream = _stream(look, waker, first, last_event_id)
    return StreamingResponse(stream, headers=headers, media_type="text/event-stream")


class _Look:
    """One caller's view of a study: a snapshot when called, which all streams of a version share."""

    def __init__(self, request: Request, study_id: UUID) -> None:
        self.study_id = study_id
        self._poll = Poll(
            study_id, request.headers.get("authorization"), request.client.host if request.client else None
        )
        self._name = name_of(request, "text/event-stream")._replace(query=b"")
        self._polls = cast(Polls, request.app.state.polls)
        self._rendered = cast(RenderedPages, request.app.state.rendered)

    async def __call__(self) -> Rendered:
        """Raises: NotFoundError, UnauthenticatedError (a key can be revoked meanwhile), psycopg.Error."""
        standing = await self._polls.standing(self._poll)
        return await self._rendered.get(self._name, standing.version, self._made)

    def _made(self) -> Rendered:
        with reading() as db:
            document = views.study_summary(studies.study_to_read(db, self.study_id))
        shown = {name: document[name] for name in _SNAPSHOT}
        return Rendered(document["version"], json_bytes(shown), "application/json", {})


async def _stream(look: _Look, waker: Waker, first: Rendered, last_event_id: int | None) -> AsyncIterator[bytes]:
    _Streams.num_open += 1
    try:
        seen: Rendered | None = None
        shown, said = first, time.monotonic()
        if last_event_id is not None and first.version <= last_event_id:
            seen = first
        yield b"retry: 1000\n\n"
        while True:
            if seen is None or shown.version != seen.version:
                yield _events(shown.body, seen.body if seen else b"{}")
                seen, said = shown, time.monotonic()
            if _has_ended(shown):
                return
            await asyncio.sleep(_PAUSE_S)
            if time.monotonic() - said >= _KEEP_ALIVE_S:
                yield b": still here\n\n"
                said = time.monotonic()
            try:
                await waker.wait_for(look.study_id, seen.version, _KEEP_ALIVE_S)
                shown = await look()
            except SpicaError:
                return
            except (DBAPIError, psycopg.Error) as error:
                # The stream outlives an outage; what happened meanwhile comes with the next snapshot.
                log.info("snapshot_not_read", error=type(error).__name__)
                await asyncio.sleep(_DATABASE_PAUSE_S)
    finally:
        _Streams.num_open -= 1


def _has_ended(snapshot: Rendered) -> bool:
    return _parsed(snapshot.body)["status"] in STUDY_TERMINAL


@lru_cache(maxsize=_SHARED)
def _parsed(body: bytes) -> dict[str, Any]:
    return cast(dict[str, Any], orjson.loads(body))


@lru_cache(maxsize=_SHARED)
def _events(body: bytes, seen_body: bytes) -> bytes:
    """One event per thing that changed, all of one version; the id comes last, so a cut stream repeats the lot.

    The streams of a study wake together and say the same: it is written once.
    """
    snapshot, seen = _parsed(body), _parsed(seen_body)
    kinds = [kind for kind in ("best", "progress", "status") if snapshot[kind] != seen.get(kind)] or ["progress"]
    parts = [b"event: " + kind.encode() + b"\ndata: " + body for kind in kinds]
    parts[-1] = b"id: " + str(snapshot["version"]).encode() + b"\n" + parts[-1]
    return b"\n\n".join(parts) + b"\n\n"
