"""Checked columns on their way to disk: appended batch by batch, then put in order of arrival and written as one file.

Memory holds one batch while rows come in, and a few columns of 8 bytes per row while they are put in order.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from app.schemas.trace_file import ROW_COLUMNS, VALUE_BYTES, TraceHeader
from app.traces.check import Columns
from app.traces.convert import Clock
from app.traces.faults import Faults, RowFault

_COPY_BYTES = 1 << 20
_GATHER_IDS = 1 << 17
_SPOOLED = {
    "line": np.int64,
    "timestamp": np.float64,
    "delay_ms": np.float64,
    "session": np.uint64,
    "input_tokens": np.int64,
    "output_tokens": np.int64,
    "block_id": np.uint64,
}


class Spool:
    """Columns as files of a folder, in file order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_rows = 0
        self.num_ids = 0
        self.has_sessions = False
        self._files: dict[str, IO[bytes]] = {name: (folder / name).open("wb") for name in _SPOOLED}

    def append(self, columns: Columns) -> None:
        """Add rows at the end."""
        for name, file in self._files.items():
            file.write(getattr(columns, name).data)
        self.num_rows += columns.line.size
        self.num_ids += columns.block_id.size
        self.has_sessions = self.has_sessions or bool(columns.session.any())

    def close(self) -> None:
        """No more rows."""
        for file in self._files.values():
            file.close()

    def column(self, name: str) -> NDArray[Any]:
        """One column, whole."""
        return np.fromfile(self.folder / name, dtype=_SPOOLED[name])

    def path(self, name: str) -> Path:
        """Where a column lies."""
        return self.folder / name


@dataclass(frozen=True, slots=True)
class Order:
    """How rows stand in order of arrival.

    rows: int64 [R], file index of each, None if the file was in order. start: the first stamp, in the clock's unit.
    """

    rows: NDArray[np.int64] | None
    start: float
    num_moved: int = 0
    first_moved_line: int | None = None
    first_backward_line: int | None = None
    largest_step_back_ms: float = 0.0


def arrival_order(spool: Spool, clock: Clock, faults: Faults) -> Order | None:
    """The stable order by arrival; a later turn without a stamp stays behind the turn before it.

    None if a session begins with a row that has no stamp (noted in `faults`).
    """
    stamps = spool.column("timestamp")
    if spool.has_sessions and not _fill_from_turn_before(stamps, spool, faults):
        return None
    start = float(stamps.min())
    if not (np.diff(stamps) < 0).any():
        return Order(None, start)
    step_back = np.maximum.accumulate(stamps)
    step_back -= stamps
    first_backward, largest = int(np.argmax(step_back > 0)), float(step_back.max()) / clock.divisor
    del step_back
    order = np.argsort(stamps, kind="stable")
    del stamps
    moved = np.flatnonzero(order != np.arange(order.size))
    lines = spool.column("line")
    return Order(order, start, moved.size, int(lines[moved[0]]), int(lines[first_backward]), largest)


def _fill_from_turn_before(stamps: NDArray[np.float64], spool: Spool, faults: Faults) -> bool:
    """Write into NaN stamps that of the turn before; False if there is none."""
    if not np.isnan(stamps).any():
        return True
    turns, is_first = turns_of(spool.column("session"))
    known = stamps[turns]
    missing = np.isnan(known)
    bad = np.flatnonzero(missing & is_first)
    if bad.size:
        lines = np.sort(spool.column("line")[turns[bad]])
        remedy = "give the arrival of each session's first turn"
        reason = "is missing in the first turn of its session"
        faults.add((RowFault(int(line), "timestamp", reason, remedy) for line in lines), bad.size)
        return False
    at = np.where(missing, 0, np.arange(known.size))
    np.maximum.accumulate(at, out=at)
    stamps[turns] = known[at]
    return True


def turns_of(session: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Rows of named sessions, session by session in order of rows, and which are a session's first."""
    named = np.flatnonzero(session)
    turns = named[np.argsort(session[named], kind="stable")]
    return turns, np.diff(session[turns], prepend=np.uint64(0)) != 0


def check_turns(spool: Spool, order: Order, faults: Faults) -> None:
    """Note a think time before a session's first turn, in order of arrival."""
    if not spool.has_sessions:
        return
    session = spool.column("session")
    if order.rows is not None:
        session = session[order.rows]
    turns, is_first = turns_of(session)
    firsts = turns[is_first] if order.rows is None else order.rows[turns[is_first]]
    delays = spool.column("delay_ms")[firsts]
    bad = np.sort(firsts[np.nan_to_num(delays) != 0])
    if bad.size:
        lines = spool.column("line")[bad]
        remedy = "a session's first turn arrives at its timestamp; leave its delay out"
        found = (RowFault(int(line), "delay", "is given on the first turn of its session", remedy) for line in lines)
        faults.add(found, bad.size)


def write_content(spool: Spool, order: Order, clock: Clock, block_size: int, *, has_ids: bool) -> tuple[Path, str]:
    """The content file (see app.schemas.trace_file) beside the spool, and its SHA-256."""
    header = TraceHeader(spool.num_rows, spool.num_ids, block_size, has_ids)
    path, digest = spool.folder / "content", hashlib.sha256()
    with path.open("wb") as file:
        for part in _parts(spool, order, clock, header):
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return path, digest.hexdigest()


def _parts(spool: Spool, order: Order, clock: Clock, header: TraceHeader) -> Iterator[Any]:
    yield header.pack()
    for name, kind in ROW_COLUMNS:
        values = spool.column("timestamp" if name == "timestamp_ms" else name)
        if name == "timestamp_ms":
            values -= order.start
            values /= clock.divisor
        if order.rows is not None:
            values = values[order.rows]
        yield values.astype(kind, copy=False).data
        del values
    if header.has_block_ids:
        yield from _block_ids(spool, order, header.block_size)


def _block_ids(spool: Spool, order: Order, block_size: int) -> Iterator[bytes]:
    with spool.path("block_id").open("rb", buffering=0) as file:
        if order.rows is None:
            while piece := file.read(_COPY_BYTES):
                yield piece
            return
        counts = spool.column("input_tokens")
        counts += block_size - 1
        counts //= block_size
        ends = np.cumsum(counts)
        for first, last in _runs(order.rows):
            start = int(ends[first]) - int(counts[first])
            yield from _range(file, start * VALUE_BYTES, int(ends[last]) * VALUE_BYTES)


def _runs(rows: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First and last file index of each stretch of rows that stayed together."""
    for at in range(0, rows.size, _GATHER_IDS):
        part = rows[at : at + _GATHER_IDS]
        cuts = np.flatnonzero(np.diff(part) != 1)
        firsts, lasts = part[np.append(0, cuts + 1)], part[np.append(cuts, part.size - 1)]
        yield from zip(firsts.tolist(), lasts.tolist(), strict=True)


def _range(file: Any, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        piece = os.pread(file.fileno(), min(_COPY_BYTES, end - start), start)
        yield piece
        start += len(piece)
