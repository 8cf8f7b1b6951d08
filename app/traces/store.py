"""Stored traces: what a `trace_path` may name, and nothing else.

A path is a client's word: an id, `sha256:<hex>` or alias of a trace of the caller's project. Whatever it fails to name
is refused in the same words, so that the answer does not tell whether a file exists.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from app.db.engine import transaction
from app.db.tables import StudyRow, TraceNameRow, TraceRow
from app.errors import ConflictError, FieldFault, InvalidRequestError, NotFoundError
from app.ids import uuid7
from app.traces import content
from app.traces.intake import CheckedTrace

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")
_CONTENT_LOCK = 7310404


class StoredTrace(NamedTuple):
    """A checked trace: where its content lies, and what is known about it."""

    id: UUID
    sha256: str
    path: Path
    block_size: int
    num_requests: int
    summary: dict[str, Any]


class NamedTrace(NamedTuple):
    """A trace as clients see it."""

    id: UUID
    sha256: str
    names: Sequence[str]
    block_size: int
    num_requests: int
    num_bytes: int
    summary: dict[str, Any]
    upload: dict[str, Any]
    created_at: datetime


def check_name(name: str) -> None:
    """Raises: InvalidRequestError for an alias that could be taken for an id or a path."""
    if not re.fullmatch(NAME_PATTERN, name) or _UUID.fullmatch(name):
        remedy = "use 1 to 200 letters, digits, dots, dashes and underscores, beginning with a letter or digit"
        raise InvalidRequestError([FieldFault("name", name[:200], "is not a name for a trace", remedy)])


def put(project: str, trace: CheckedTrace, name: str | None = None) -> UUID:
    """Store a trace, once per content and project; its id. An alias is added to those that it has.

    Raises: InvalidRequestError for a malformed alias; ConflictError if the alias names another trace.
    """
    if name is not None:
        check_name(name)
    try:
        with transaction() as db:
            _lock_content(db, trace.sha256)
            content.keep(db, trace.sha256, trace.path)
            trace_id = _row(db, project, trace)
            if name is not None:
                _name(db, project, name, trace_id)
    except BaseException:
        # A database that is away leaves a content behind that the next upload of it uses.
        with suppress(DBAPIError):
            _drop_if_unused(trace.sha256)
        raise
    return trace_id


def _row(db: Session, project: str, trace: CheckedTrace) -> UUID:
    known = db.scalar(select(TraceRow.id).where(TraceRow.project == project, TraceRow.sha256 == trace.sha256))
    if known is not None:
        return known
    row = TraceRow(
        id=uuid7(),
        project=project,
        sha256=trace.sha256,
        num_requests=trace.num_requests,
        num_bytes=trace.num_bytes,
        block_size=trace.block_size,
        summary=trace.summary,
        upload=trace.upload,
    )
    db.add(row)
    db.flush()
    return row.id


def _name(db: Session, project: str, name: str, trace_id: UUID) -> None:
    added = insert(TraceNameRow).values(project=project, name=name, trace_id=trace_id).on_conflict_do_nothing()
    db.execute(added)
    named = select(TraceNameRow.trace_id).where(TraceNameRow.project == project, TraceNameRow.name == name)
    if (other := db.scalar(named)) != trace_id:
        raise ConflictError(f"The name {name!r} is that of another trace; delete that or use another.", trace_id=other)


def _lock_content(db: Session, sha256: str) -> None:
    # Keeping and dropping one content must not cross; other contents do not wait, but for a collision of 32 bits.
    db.execute(
        text("SELECT pg_advisory_xact_lock(:lock, hashtext(:sha256))"), {"lock": _CONTENT_LOCK, "sha256": sha256}
    )


def _drop_if_unused(sha256: str) -> None:
    """Drop a content without a trace, in a transaction of its own, after that which removed the trace."""
    with transaction() as db:
        _lock_content(db, sha256)
        if db.scalar(select(TraceRow.id).where(TraceRow.sha256 == sha256).limit(1)) is None:
            content.drop(db, sha256)


def _named(trace_path: str) -> ColumnElement[bool]:
    if found := _SHA256.fullmatch(trace_path):
        return TraceRow.sha256 == found[1]
    if _UUID.fullmatch(trace_path):
        return TraceRow.id == UUID(trace_path)
    return TraceRow.id == (
        select(TraceNameRow.trace_id)
        .where(TraceNameRow.project == TraceRow.project, TraceNameRow.name == trace_path)
        .scalar_subquery()
    )


def find(db: Session, project: str, trace_path: str) -> StoredTrace | None:
    """The stored trace of a project that `trace_path` names, if it names one."""
    if "\0" in trace_path:
        return None
    row = db.scalars(select(TraceRow).where(TraceRow.project == project, _named(trace_path))).one_or_none()
    return None if row is None else _stored(row)


def resolve(db: Session, project: str, trace_path: str) -> StoredTrace:
    """The stored trace of a project that `trace_path` names.

    Raises: InvalidRequestError at /workload/trace_path, in the same words for every name that is not a known trace.
    """
    found = find(db, project, trace_path)
    if found is None:
        raise unknown_trace(trace_path)
    return found


def unknown_trace(trace_path: str) -> InvalidRequestError:
    """The refusal of whatever is not a trace: unknown, absolute, leading outside, unreadable."""
    remedy = "upload it with POST /traces and give its id, sha256:... or name"
    fault = FieldFault("/workload/trace_path", trace_path, "names no trace of this service", remedy)
    return InvalidRequestError([fault])


def stored_trace(db: Session, trace_id: UUID) -> StoredTrace:
    """The trace that a study refers to; it exists as long as the study does."""
    return _stored(db.get_one(TraceRow, trace_id))


def at_hand(trace: StoredTrace) -> StoredTrace:
    """The trace, its content on this host. Raises: UnavailableError."""
    if not trace.path.exists():
        with transaction() as db:
            content.fetch(db, trace.sha256)
    return trace


def _stored(row: TraceRow) -> StoredTrace:
    path = content.content_path(row.sha256)
    return StoredTrace(row.id, row.sha256, path, row.block_size, row.num_requests, row.summary)


def _visible(project: str | None) -> Select[TraceRow]:
    return select(TraceRow) if project is None else select(TraceRow).where(TraceRow.project == project)


def get(db: Session, project: str | None, trace_id: UUID) -> NamedTrace:
    """One trace; project None looks into all. Raises: NotFoundError."""
    row = db.scalars(_visible(project).where(TraceRow.id == trace_id)).one_or_none()
    if row is None:
        raise NotFoundError("There is no such trace.")
    return _with_names(db, [row])[0]


def list_traces(
    db: Session, project: str | None, limit: int, before: UUID | None = None, name: str | None = None
) -> list[NamedTrace]:
    """Newest first, those older than trace `before`; with `name`, the one of that alias (in each project)."""
    query = _visible(project)
    if before is not None:
        query = query.where(TraceRow.id < before)
    if name is not None:
        query = query.where(TraceRow.id.in_(select(TraceNameRow.trace_id).where(TraceNameRow.name == name)))
    return _with_names(db, db.scalars(query.order_by(TraceRow.id.desc()).limit(limit)).all())


def _with_names(db: Session, rows: Sequence[TraceRow]) -> list[NamedTrace]:
    names: dict[UUID, list[str]] = {row.id: [] for row in rows}
    query = select(TraceNameRow.trace_id, TraceNameRow.name).where(TraceNameRow.trace_id.in_(list(names)))
    for trace_id, name in db.execute(query.order_by(TraceNameRow.created_at, TraceNameRow.name)):
        names[trace_id].append(name)
    return [
        NamedTrace(
            row.id,
            row.sha256,
            names[row.id],
            row.block_size,
            row.num_requests,
            row.num_bytes,
            row.summary,
            row.upload,
            row.created_at,
        )
        for row in rows
    ]


def remove(project: str | None, trace_id: UUID) -> None:
    """Delete a trace, and its content with the last trace that has it.

    Raises: NotFoundError; ConflictError while a study refers to it, ended or not: a study keeps what it rests on.
    """
    try:
        with transaction() as db:
            row = db.scalars(_visible(project).where(TraceRow.id == trace_id)).one_or_none()
            if row is None:
                raise NotFoundError("There is no such trace.")
            users = select(func.count()).select_from(StudyRow).where(StudyRow.trace_id == trace_id)
            if num_studies := db.scalar(users):
                raise ConflictError(
                    f"{num_studies} studies use this trace; delete them first.", num_studies=num_studies
                )
            db.execute(delete(TraceRow).where(TraceRow.id == trace_id))
    except IntegrityError as error:
        raise ConflictError("A study has just begun to use this trace.") from error
    _drop_if_unused(row.sha256)
