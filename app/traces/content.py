"""Where the contents of traces lie: a folder, or the database with the folder as its cache.

A content file appears under its name whole or not at all, and never changes after that.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from uuid import uuid4

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from app.config import settings
from app.db.tables import TraceChunkRow
from app.errors import UnavailableError
from app.schemas.trace_file import SUFFIX

_CHUNK_BYTES = 4 << 20
_INCOMING = ".incoming"
_ABANDONED_S = 86_400.0


def content_path(sha256: str) -> Path:
    """Where the content of a trace lies on this host, if it is here."""
    return _folder() / f"{sha256}{SUFFIX}"


def intake_folder() -> Path:
    """A fresh folder for one upload, not made yet; what uploads of a dead process left behind is swept away first."""
    incoming = _folder() / _INCOMING
    incoming.mkdir(parents=True, exist_ok=True)
    for left in incoming.iterdir():
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    return incoming / uuid4().hex


def keep(db: Session, sha256: str, path: Path) -> None:
    """Keep a content that is not kept yet. The caller holds the lock of its hash."""
    if settings().trace_store == "postgres":
        known = select(TraceChunkRow.number).where(TraceChunkRow.sha256 == sha256).limit(1)
        if db.scalar(known) is None:
            with path.open("rb") as file:
                for number, body in enumerate(_chunks(file)):
                    db.execute(insert(TraceChunkRow).values(sha256=sha256, number=number, body=body))
    if not content_path(sha256).exists():
        os.replace(path, content_path(sha256))
        _sync(_folder())


def drop(db: Session, sha256: str) -> None:
    """Forget a content that no trace refers to. The caller holds the lock of its hash."""
    db.execute(delete(TraceChunkRow).where(TraceChunkRow.sha256 == sha256))
    content_path(sha256).unlink(missing_ok=True)


def fetch(db: Session, sha256: str) -> None:
    """Bring a content that is kept in the database onto this host, checked.

    Raises: UnavailableError if it is not there, or is not what its name says.
    """
    path = content_path(sha256)
    if settings().trace_store != "postgres" or path.exists():
        return
    folder = intake_folder()
    folder.mkdir()
    try:
        digest = hashlib.sha256()
        with (folder / "content").open("wb") as file:
            for body in _stored_chunks(db, sha256):
                digest.update(body)
                file.write(body)
        if digest.hexdigest() != sha256:
            raise UnavailableError("The content of the trace is not to be had.")
        os.replace(folder / "content", path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    return settings().data_dir / "traces"


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while body := file.read(_CHUNK_BYTES):
        yield body


def _stored_chunks(db: Session, sha256: str) -> Iterator[bytes]:
    # One chunk per statement: a cursor over all of them would hold them all in this process.
    number = 0
    while True:
        one = select(TraceChunkRow.body).where(TraceChunkRow.sha256 == sha256, TraceChunkRow.number == number)
        body = db.scalar(one)
        if body is None:
            return
        yield body
        number += 1


def _sync(folder: Path) -> None:
    """Make a rename in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
