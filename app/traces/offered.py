"""Traces that the operator offers as files: named by a path relative to the folder of the setting `trace_dir`.

A path that leaves the folder, by `..`, from the root or by a link, is as unknown as one that names nothing.
"""

import os
import stat
from pathlib import Path
from typing import IO

from app.config import settings
from app.db.engine import transaction
from app.traces import store
from app.traces.intake import IntakeOptions, open_intake, take_in
from app.traces.store import StoredTrace

_MAX_KNOWN_FILES = 1000
_known: dict[tuple[str, int, int, int, int], str] = {}
"""Content hash by path, device, inode, size and time of change: a file that stays the same is checked once."""


def resolve(project: str, trace_path: str) -> StoredTrace:
    """The trace that a `trace_path` names: a stored one, or an offered file, which is then stored.

    Raises: InvalidRequestError at /workload/trace_path if there is none; TraceRefusedError for a faulty offered file.
    """
    with transaction() as db:
        found = store.find(db, project, trace_path)
    if found is not None:
        return found
    path = _offered_file(trace_path)
    if path is None:
        raise store.unknown_trace(trace_path)
    try:
        with open(path, "rb", opener=_without_links) as file:
            sha256 = _stored_content(project, file, str(path))
    except OSError as error:
        raise store.unknown_trace(trace_path) from error
    with transaction() as db:
        return store.resolve(db, project, f"sha256:{sha256}")


def _offered_file(trace_path: str) -> Path | None:
    """The real path of an offered file, all links followed; None unless it lies within the folder."""
    folder = settings().trace_dir
    named = Path(trace_path) if "\0" not in trace_path else Path("/")
    if folder is None or named.is_absolute() or ".." in named.parts:
        return None
    try:
        root = folder.resolve(strict=True)
        path = (root / named).resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return path if path.is_relative_to(root) and path.is_file() else None


def _without_links(path: str, flags: int) -> int:
    # The path was resolved a moment ago: a link in its last place has come in between, and a pipe would block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _stored_content(project: str, file: IO[bytes], path: str) -> str:
    """The hash of the file's content, which is stored for the project."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    mark = (path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    sha256 = _known.get(mark)
    if sha256 is not None:
        with transaction() as db:
            if store.find(db, project, f"sha256:{sha256}") is not None:
                return sha256
    intake = open_intake(IntakeOptions())
    try:
        trace = take_in(file, intake)
        store.put(project, trace)
    finally:
        intake.close()
    if len(_known) >= _MAX_KNOWN_FILES:
        _known.clear()
    _known[mark] = trace.sha256
    return trace.sha256
