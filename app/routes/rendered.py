"""Answers kept as bytes: a page of a study at a version is the same for everybody who may see it.

Per process, least recently used ones go first. A page that many ask for at once is made once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, NamedTuple, cast
from uuid import UUID

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from app.polls import Poll, Polls
from app.routes.deps import BearerKey
from app.routes.pages import Name, cache_headers, etag, is_unchanged, name_of, not_modified, version_shown

_LARGEST_PART = 8
"""A page may take one eighth of the room, so that one huge page does not drive out all others."""

_ENTRY_BYTES = 500
"""What an entry takes beside its body and its query."""


class Rendered(NamedTuple):
    """A finished answer, and the version of the study that it shows."""

    version: int
    body: bytes
    media_type: str
    links: dict[str, str]


class RenderedPages:
    """Finished answers of one process, each in its newest version.

    capacity_bytes: room for them; 0 keeps nothing. Lives in one event loop.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[Name, _Kept] = OrderedDict()
        self._making: dict[tuple[Name, int], asyncio.Task[Rendered]] = {}

    def __contains__(self, name: Name) -> bool:
        """Whether an answer of this name is kept, in whatever version."""
        return name in self._kept

    async def again(self, name: Name, version: int) -> Rendered | None:
        """What `get` gives, of an answer that was asked for before; None if it is not kept any more."""
        found = self._kept.get(name)
        return None if found is None else await self.get(name, version, found.make)

    async def get(self, name: Name, version: int, make: Callable[[], Rendered]) -> Rendered:
        """The answer called `name` at `version` or later; made in a thread if it is not kept."""
        found = self._kept.get(name)
        if found is not None and found.rendered.version >= version:
            self._kept.move_to_end(name)
            return found.rendered
        key = (name, version)
        if key not in self._making:
            task = asyncio.create_task(self._make(name, make))
            self._making[key] = task
            task.add_done_callback(lambda _: self._making.pop(key, None))
        # One client that hangs up must not take the page from the others who wait for it.
        return await asyncio.shield(self._making[key])

    async def _make(self, name: Name, make: Callable[[], Rendered]) -> Rendered:
        rendered = await run_in_threadpool(make)
        self._keep(name, _Kept(rendered, make))
        return rendered

    def _keep(self, name: Name, new: "_Kept") -> None:
        earlier = self._kept.get(name)
        if earlier is not None and earlier.rendered.version > new.rendered.version:
            return
        if _size(name, new) * _LARGEST_PART > self._capacity_bytes:
            return
        self._num_bytes += _size(name, new) - (_size(name, earlier) if earlier else 0)
        self._kept[name] = new
        self._kept.move_to_end(name)
        while self._num_bytes > self._capacity_bytes:
            self._num_bytes -= _size(*self._kept.popitem(last=False))


class _Kept(NamedTuple):
    """An answer, and how it is made anew when the study has moved on."""

    rendered: Rendered
    make: Callable[[], Rendered]


def _size(name: Name, kept: _Kept) -> int:
    return len(kept.rendered.body) + len(name.query) + _ENTRY_BYTES


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
        name = name_of(request, media_type)
        version = version_shown(name, await cast(Polls, state.polls).standing(poll))
        tag = etag(name, version)
        if is_unchanged(request.headers.get("if-none-match"), tag):
            return not_modified(tag)
        rendered = await cast(RenderedPages, state.rendered).get(name, version, make)
        headers = cache_headers(etag(name, rendered.version)) | rendered.links
        return Response(rendered.body, headers=headers, media_type=rendered.media_type)


async def _reader(request: Request, _key: BearerKey) -> Reader:
    return Reader(request)


ReaderDep = Annotated[Reader, Depends(_reader)]
