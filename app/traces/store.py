"""Stored traces: what a `trace_path` may name, and nothing else.

A path is a client's word: an id, `sha256:<hex>` or alias of an uploaded trace of the caller's project. Whatever it
fails to name is refused in the same words, so that the answer does not tell whether a file exists.
"""

import re
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.config import settings
from app.db.tables import TraceRow
from app.errors import FieldFault, InvalidRequestError

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class StoredTrace(NamedTuple):
    """A checked trace: where its rows lie, and what is known about them."""

    id: UUID
    sha256: str
    path: Path
    block_size: int
    num_requests: int
    summary: dict[str, object]


def resolve(db: Session, project: str, trace_path: str) -> StoredTrace:
    """The stored trace of a project that `trace_path` names.

    Raises: InvalidRequestError at /workload/trace_path, in the same words for every name that is not a known trace.
    """
    named = TraceRow.name == trace_path
    if trace_path.startswith("sha256:"):
        named = TraceRow.sha256 == trace_path.removeprefix("sha256:")
    elif _UUID.fullmatch(trace_path):
        named = TraceRow.id == UUID(trace_path)
    row = db.scalars(select(TraceRow).where(TraceRow.project == project, named)).one_or_none()
    if row is None:
        fault = "names no trace of this service"
        remedy = "upload it with POST /traces and give its id, sha256:... or name"
        raise InvalidRequestError([FieldFault("/workload/trace_path", trace_path, fault, remedy)])
    return _stored(row)


def stored_trace(db: Session, trace_id: UUID) -> StoredTrace:
    """The trace that a study refers to; it exists as long as the study does."""
    return _stored(db.get_one(TraceRow, trace_id))


def _stored(row: TraceRow) -> StoredTrace:
    path = settings().data_dir / "traces" / row.sha256
    return StoredTrace(row.id, row.sha256, path, row.block_size, row.num_requests, row.summary)
