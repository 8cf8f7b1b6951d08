"""Polls answered before routing: 304, or a page that is kept. Whatever else there is to say, the routes say.

Hundreds of dashboards ask the same few questions each second; routing, dependencies and validation would cost them more
than the answer. Nothing is decided here that a route has not decided before: a page is kept only after a route has
answered the very same path, query and format, and who may see it is asked each time.
"""

import re
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from app.errors import SpicaError
from app.polls import Poll, Polls
from app.routes.pages import Name, cache_headers, etag, is_unchanged, negotiate, version_shown
from app.routes.rendered import Rendered, RenderedPages
from app.telemetry import name_request

_STUDY = "/studies/{study_id}"
_PATHS = re.compile(r"/studies/([0-9a-f-]{36})(/candidates|/candidates/[0-9a-f-]{36}|/trials|)")
_NEGOTIATED = "/candidates"


class Route(NamedTuple):
    """Stands for the route in the request's scope, where the metering looks for its path."""

    path: str


class Shortcut:
    """ASGI middleware for GET of a study, its candidates and its trials. `wait` is for the routes."""

    def __init__(self, app: Any, polls: Polls, rendered: RenderedPages) -> None:
        self._app = app
        self._polls = polls
        self._rendered = rendered

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        found = None
        if scope["type"] == "http" and scope["method"] == "GET":
            found = _PATHS.fullmatch(scope["path"])
        if found is None or b"wait" in scope["query_string"] or not await self._answers(scope, send, found):
            await self._app(scope, receive, send)

    async def _answers(self, scope: Any, send: Any, found: re.Match[str]) -> bool:
        """Whether the request could be answered, and was."""
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in reversed(scope["headers"])}
        given = headers.get("if-none-match")
        try:
            media_type = negotiate(headers.get("accept")) if found[2] == _NEGOTIATED else "application/json"
            name = Name(scope["path"], scope["query_string"], media_type)
            if given is None and name not in self._rendered:
                return False
            host = scope["client"][0] if scope["client"] else None
            standing = await self._polls.standing(Poll(UUID(found[1]), headers.get("authorization"), host))
            version = version_shown(name, standing)
            unchanged = is_unchanged(given, etag(name, version))
            page = None if unchanged else await self._rendered.again(name, version)
        except (SpicaError, psycopg.Error, SQLAlchemyError, ValueError):
            return False  # the route finds the same fault, and says it
        if page is None and not unchanged:
            return False
        scope["route"] = Route(_STUDY + re.sub("/[0-9a-f-]{36}", "/{candidate_id}", found[2]))
        name_request(scope["method"], scope["route"].path)
        await _send(send, etag(name, page.version if page else version), page)
        return True


async def _send(send: Any, tag: str, page: Rendered | None) -> None:
    """The page under its tag, or 304 without one."""
    headers = cache_headers(tag)
    if page is not None:
        headers |= page.links | {"Content-Type": page.media_type, "Content-Length": str(len(page.body))}
    pairs = [(key.lower().encode(), value.encode("latin-1")) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": 304 if page is None else 200, "headers": pairs})
    await send({"type": "http.response.body", "body": b"" if page is None else page.body})
