"""A trace on its way in: bytes as they arrive, to a checked file of columns and a report. Bounded memory throughout.

intake = open_intake(IntakeOptions())
intake.feed(data); ...; found = intake.finish(); intake.close()      # close removes the folder and all in it
"""

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from app.config import settings
from app.errors import TooLargeError
from app.traces.check import RowChecker
from app.traces.content import intake_folder
from app.traces.convert import (
    DEFAULT_BLOCK_SIZE,
    LineFaultError,
    Mooncake,
    TimeUnit,
    TraceFormat,
    reader,
)
from app.traces.faults import Faults, RowFault
from app.traces.inflate import Inflater
from app.traces.report import TextNotes, content_report, upload_report, upload_warnings
from app.traces.row_faults import Row
from app.traces.spool import Spool, arrival_order, check_turns, write_content

_BATCH_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 22
_BOM = b"\xef\xbb\xbf"


class IntakeOptions(NamedTuple):
    """How the client says the trace is to be read. block_size: None for the format's own, or 512."""

    trace_format: TraceFormat = "mooncake"
    time_unit: TimeUnit | None = None
    block_size: int | None = None


class Limits(NamedTuple):
    """The most that is taken in: rows, bytes as sent, bytes once decompressed."""

    rows: int
    bytes: int
    decompressed_bytes: int


@dataclass(frozen=True, slots=True)
class CheckedTrace:
    """A trace that can be stored. path: its content file, which goes when the intake is closed.

    summary: what the content says about itself; upload: what this upload was like.
    """

    path: Path
    sha256: str
    block_size: int
    num_requests: int
    num_bytes: int
    summary: dict[str, Any]
    upload: dict[str, Any]


class Intake:
    """Takes one trace in. Calls may come from several threads, one after the other."""

    def __init__(self, folder: Path, options: IntakeOptions, limits: Limits) -> None:
        self._options, self._limits = options, limits
        self._lock = threading.Lock()
        self._is_closed = False
        folder.mkdir(parents=True)
        self._folder = folder
        self._spool = Spool(folder)
        self._inflater = Inflater(limits.decompressed_bytes)
        self._reader = reader(options.trace_format, options.time_unit)
        if options.block_size is not None:
            self._reader.block_size = options.block_size
        self._faults = Faults()
        size = self._reader.block_size or DEFAULT_BLOCK_SIZE
        self._checker = RowChecker(size, self._faults, self._reader.clock.scale)
        self._text = TextNotes()
        self._tail = b""
        self._num_received = 0
        self._num_rows = 0

    def feed(self, data: bytes) -> None:
        """Take in what has arrived. Raises: TooLargeError, TraceRefusedError."""
        with self._lock:
            if self._is_closed:
                return
            self._num_received += len(data)
            if self._num_received > self._limits.bytes:
                raise _too_large("bytes", self._limits.bytes)
            for piece in self._inflater.feed(data):
                self._take(piece)

    def finish(self) -> CheckedTrace:
        """The whole trace, checked. Raises: TooLargeError, TraceRefusedError with every fault."""
        with self._lock:
            for piece in self._inflater.finish():
                self._take(piece)
            self._flush(is_last=True)
            self._spool.close()
            self._checker.finish()
            if not self._faults and not self._spool.num_rows:
                self._faults.add_row([RowFault(None, "", "holds no requests", "upload at least one row")])
            if self._faults:
                raise self._faults.error()
            return self._settle()

    def close(self) -> None:
        """Remove whatever is left in the folder."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._spool.close()
                shutil.rmtree(self._folder, ignore_errors=True)

    def _settle(self) -> CheckedTrace:
        clock, size, has_ids = self._reader.clock, self._checker.block_size, self._checker.has_ids
        order = arrival_order(self._spool, clock, self._faults)
        if order is not None:
            check_turns(self._spool, order, self._faults)
        if self._faults or order is None:
            raise self._faults.error()
        path, sha256 = write_content(self._spool, order, clock, size, has_ids=has_ids)
        summary = content_report(path)
        upload = upload_report(order, clock, self._text, self._inflater, self._checker.unknown)
        upload |= {
            "format": self._options.trace_format,
            "time_unit": self._options.time_unit,
            "num_bytes": self._num_received,
            "num_skipped_lines": self._reader.num_skipped,
        }
        upload["warnings"] = upload_warnings(upload)
        return CheckedTrace(path, sha256, size, self._spool.num_rows, self._num_received, summary, upload)

    def _take(self, piece: bytes) -> None:
        self._tail += piece
        if len(self._tail) >= _BATCH_BYTES:
            self._flush(is_last=False)

    def _flush(self, *, is_last: bool) -> None:
        text = self._tail
        if self._text.num_lines == 0 and text.startswith(_BOM):
            self._text.has_bom, text = True, text[len(_BOM) :]
        end = len(text) if is_last else text.rfind(b"\n") + 1
        self._tail = text[end:]
        if len(self._tail) > _MAX_LINE_BYTES:
            self._faults.add_row([self._too_long(text[:end].count(b"\n") + 1)])
            raise self._faults.error()
        if end:
            self._read(text[:end])

    def _too_long(self, offset: int) -> RowFault:
        line = self._text.num_lines + offset
        return RowFault(line, "", f"is longer than {_MAX_LINE_BYTES} bytes", "write one row per line")

    def _read(self, text: bytes) -> None:
        lines = text.split(b"\n")
        if not lines[-1]:
            lines.pop()
        first = self._text.num_lines + 1
        self._text.num_lines += len(lines)
        self._text.num_crlf_lines += text.count(b"\r\n")
        numbers: Sequence[int] = range(first, first + len(lines))
        kept = [(number, line) for number, line in zip(numbers, lines, strict=True) if line and not line.isspace()]
        if len(kept) < len(lines):
            self._text.num_blank_lines += len(lines) - len(kept)
            numbers, lines = [number for number, _ in kept], [line for _, line in kept]
        # Blank lines count too, or a bomb of newlines would never reach a limit of rows.
        if max(self._num_rows + len(lines), self._text.num_blank_lines) > self._limits.rows:
            raise _too_large("rows", self._limits.rows)
        self._num_rows += len(lines)
        if lines:
            self._check(*self._rows(text, numbers, lines))

    def _rows(self, text: bytes, numbers: Sequence[int], lines: list[bytes]) -> tuple[list[int], list[Row]]:
        """Lines that are rows, by number; the others are noted."""
        if isinstance(self._reader, Mooncake):
            try:
                rows = [orjson.loads(line) for line in lines]
            except orjson.JSONDecodeError:
                rows = []
            # As many pairs as `":` in the text: no name is given twice. Nested objects only cost the closer look.
            if set(map(type, rows)) == {dict} and text.count(b'":') == sum(map(len, rows)):
                return list(numbers), rows
        found: list[int] = []
        read: list[Row] = []
        for number, line in zip(numbers, lines, strict=True):
            try:
                row = self._reader.read(line)
            except LineFaultError as fault:
                self._faults.add_row([RowFault(number, fault.field, fault.reason, fault.remedy, fault.value)])
                if fault.is_final:
                    raise self._faults.error() from fault
                continue
            if row is not None:
                found.append(number)
                read.append(row)
        return found, read

    def _check(self, numbers: list[int], rows: list[Row]) -> None:
        if not rows:
            return
        self._checker.block_size = self._reader.block_size or DEFAULT_BLOCK_SIZE
        columns = self._checker.check(numbers, rows)
        if columns is not None and not self._faults:
            self._spool.append(columns)


def open_intake(options: IntakeOptions) -> Intake:
    """An intake within the limits of this service."""
    limits = Limits(settings().max_trace_rows, settings().max_trace_bytes, settings().max_trace_decompressed_bytes)
    return Intake(intake_folder(), options, limits)


def take_in(file: IO[bytes], intake: Intake) -> CheckedTrace:
    """The checked trace of a whole file. Raises: TooLargeError, TraceRefusedError."""
    while data := file.read(_READ_BYTES):
        intake.feed(data)
    return intake.finish()


def _too_large(what: str, limit: int) -> TooLargeError:
    return TooLargeError(f"The trace has more than {limit} {what}.", limit=limit, limit_name=f"trace_{what}")
