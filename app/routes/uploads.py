"""Traces that come with a request: how they are to be read, how many at a time, and from where in the body."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, cast

from fastapi import Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from app.config import settings
from app.routes.bodies import RefusedError, is_multipart, read_trace_part
from app.routes.faults import Fault
from app.traces.convert import TimeUnit, TraceFormat
from app.traces.intake import CheckedTrace, Intake, IntakeOptions, take_in

_FEED_BYTES = 1 << 20
_MAX_BLOCK_SIZE = 1 << 16


async def _options(
    trace_format: Annotated[TraceFormat, Query(alias="format", description="Layout of the trace sent.")] = "mooncake",
    time_unit: Annotated[TimeUnit | None, Query(description="Unit of its timestamps, if not the format's.")] = None,
    block_size: Annotated[
        int | None, Query(ge=1, le=_MAX_BLOCK_SIZE, description="Tokens per hash id, if not the format's.")
    ] = None,
) -> IntakeOptions:
    return IntakeOptions(trace_format, time_unit, block_size)


class Slots:
    """How many traces are read at a time in this process: each takes memory. Others wait, their bytes unread."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(settings().max_trace_uploads)

    async def __aenter__(self) -> None:
        await self._slots.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()


async def _slots(request: Request) -> Slots:
    state: Any = request.app.state
    if not hasattr(state, "upload_slots"):
        state.upload_slots = Slots()
    return cast(Slots, state.upload_slots)


OptionsDep = Annotated[IntakeOptions, Depends(_options)]
SlotsDep = Annotated[Slots, Depends(_slots)]


def refuse_declared_size(request: Request) -> None:
    """Refuse before a byte is read what says itself that it is too large. Raises: RefusedError, 413."""
    declared, limit = request.headers.get("content-length", ""), settings().max_trace_bytes
    # The envelope of a form is small beside the limit.
    if declared.isdigit() and int(declared) > limit + _FEED_BYTES:
        remedy = f"send at most {limit} bytes; gzip and zstd are read"
        fault = f"the trace is larger than {limit} bytes"
        raise RefusedError(413, [Fault(pointer="", value=int(declared), fault=fault, remedy=remedy)])


def too_slow() -> RefusedError:
    """408: the body did not come in time."""
    fault = (
        f"no bytes came for {settings().body_timeout_s:g} s, or not all within {settings().trace_upload_timeout_s:g} s"
    )
    return RefusedError(408, [Fault(pointer="", value=None, fault=fault, remedy="send it faster")])


async def take_in_body(request: Request, intake: Intake) -> CheckedTrace:
    """The checked trace of a body, or of the one part of a form.

    Raises: TooLargeError, TraceRefusedError, RefusedError; TimeoutError; ClientDisconnect.
    """
    if is_multipart(request):
        return await take_in_part(await read_trace_part(request), intake)
    async for data in _batches(request.stream()):
        await run_in_threadpool(intake.feed, data)
    return await run_in_threadpool(intake.finish)


async def take_in_part(part: UploadFile, intake: Intake) -> CheckedTrace:
    """The checked trace of a form's part, which lies in a temporary file. Raises: TooLargeError, TraceRefusedError."""
    try:
        return await run_in_threadpool(take_in, part.file, intake)
    finally:
        await part.close()


async def _batches(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The stream in pieces worth a change of thread. Raises: TimeoutError when nothing comes for too long."""
    waiting = bytearray()
    chunks = aiter(stream)
    while True:
        try:
            waiting += await asyncio.wait_for(anext(chunks), settings().body_timeout_s)
        except StopAsyncIteration:
            break
        if len(waiting) >= _FEED_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)
