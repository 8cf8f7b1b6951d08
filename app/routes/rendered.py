"""Answers kept as bytes: a page of a study at a version is the same for everybody who may see it.

Per process, least recently used ones go first. A page that many ask for at once is made once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Annotated, NamedTuple, cast
from uuid import UUID

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from app.polls import Poll, Polls
from app.routes.deps import BearerKey
from app.routes.pages import cache_headers, etag, is_unchanged, not_modified

_LARGEST_PART = 8
"""A page may take one eighth of the room, so that one huge page does not drive out all others."""


class Rendered(NamedTuple):
    """A finished answer, and the version of the study that it shows."""

    version: int
    body: bytes
    media_type: str
    links: dict[str, str]


class RenderedPages:
    """Finished answers of one process.

    capacity_bytes: room for bodies; 0 keeps nothing. Lives in one event loop.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[Hashable, Rendered] = OrderedDict()
        self._making: dict[Hashable, asyncio.Task[Rendered]] = {}

    async def get(self, name: Hashable, version: int, make: Callable[[], Rendered]) -> Rendered:
        """The answer called `name` at `version` or later; made in a thread if it is not kept."""
        key = (name, version)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._making:
            task = asyncio.create_task(self._make(name, make))
            self._making[key] = task
            task.add_done_callback(lambda _: self._making.pop(key, None))
        # One client that hangs up must not take the page from the others who wait for it.
        return await asyncio.shield(self._making[key])

    async def _make(self, name: Hashable, make: Callable[[], Rendered]) -> Rendered:
        rendered = await run_in_threadpool(make)
        self._keep((name, rendered.version), rendered)
        return rendered

    def _keep(self, key: Hashable, rendered: Rendered) -> None:
        if len(rendered.body) * _LARGEST_PART > self._capacity_bytes:
            return
        earlier = self._kept.pop(key, None)
        self._num_bytes += len(rendered.body) - (len(earlier.body) if earlier else 0)
        self._kept[key] = rendered
        while self._num_bytes > self._capacity_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= len(oldest.body)


class Reader:
    """Answers one request from a poll, from what is kept, or anew, in this order of cost."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def read(self, study_id: UUID, media_type: str, make: Callable[[], Rendered]) -> Response:
        """The answer to a request about a study, or 304.

        make: reads and writes the answer, whose study the caller may see; depends on path, query and format alone.
        Raises: UnauthenticatedError, ForbiddenError, NotFoundError; what `make` raises.
        """
        request, state = self._request, self._request.app.state
        client_host = request.client.host if request.client else None
        poll = Poll(study_id, request.headers.get("authorization"), client_host)
        version = await cast(Polls, state.polls).version(poll)
        tag = etag(request, version, media_type)
        if is_unchanged(request, tag):
            return not_modified(tag)
        name = (request.url.path, request.url.query, media_type)
        rendered = await cast(RenderedPages, state.rendered).get(name, version, make)
        headers = cache_headers(etag(request, rendered.version, media_type)) | rendered.links
        return Response(rendered.body, headers=headers, media_type=rendered.media_type)


async def _reader(request: Request, _key: BearerKey) -> Reader:
    return Reader(request)


ReaderDep = Annotated[Reader, Depends(_reader)]
