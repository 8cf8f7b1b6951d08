"""Readers of the public trace formats: one line of a file to one row in mooncake's names.

Each says what block size its ids have and what unit its stamps are in. docs/traces.md describes the layouts.
"""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from app.traces.row_faults import Row, kind, repeated_names

TraceFormat = Literal["mooncake", "azure", "burstgpt", "bailian", "dynamo"]
TimeUnit = Literal["ms", "s"]

DEFAULT_BLOCK_SIZE = 512
_DAY_TICKS = 86_400 * 10**7


class LineFaultError(Exception):
    """A line that is no row: field (empty for the whole line), reason, remedy, value.

    is_final: no line after it can be one.
    """

    is_final = False

    def __init__(self, field_name: str, reason: str, remedy: str, value: object = None) -> None:
        super().__init__(reason)
        self.field, self.reason, self.remedy, self.value = field_name, reason, remedy, value


class HeaderFaultError(LineFaultError):
    """The line that names the columns is not as it should be."""

    is_final = True


class Clock(NamedTuple):
    """ms = (stamp * scale - the first one) / divisor. Integer stamps stay exact until the division."""

    scale: float = 1.0
    divisor: float = 1.0


class Reader(Protocol):
    """Reads a file line by line, in order. skips: lines without a request are expected."""

    block_size: int | None
    clock: Clock
    num_skipped: int

    def read(self, line: bytes) -> Row | None:
        """The row of a line, None if it holds no request. Raises: LineFaultError."""


def reader(trace_format: TraceFormat, time_unit: TimeUnit | None) -> Reader:
    """A fresh reader of a format; `time_unit` overrides the format's own."""
    return _READERS[trace_format](time_unit)


def json_object(line: bytes) -> Row:
    """The object of a line. Raises: LineFaultError."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _broken_json(line, error) from error
    if not isinstance(row, dict):
        raise LineFaultError("", f"is {kind(row)}", "write one JSON object per line", row)
    return row


def _broken_json(line: bytes, error: ValueError) -> LineFaultError:
    said = str(error).partition(": line 1")[0]
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as fault:
        where = f"is not UTF-8: byte {fault.start + 1} is {line[fault.start]:#04x}"
        return LineFaultError("", where, "encode the file as UTF-8")
    if "end of data" in said:
        return LineFaultError("", "is cut off in the middle", "upload the whole file", line)
    if re.search(rb"[:\[,]\s*-?(NaN|Infinity)\b", line):
        name = re.findall(rb'"([^"]{1,40})"\s*:\s*\[?[^"{}]*-?(?:NaN|Infinity)\b', line)
        place = name[-1].decode("utf-8", "replace") if name else ""
        return LineFaultError(place, "is NaN or Infinity, which JSON does not have", "write a finite number", line)
    if "infinity" in said:
        return LineFaultError("", "holds a number too large for a float", "write a finite number", line)
    return LineFaultError("", f"is not JSON: {said}", "write one JSON object per line", line)


@dataclass(slots=True)
class Mooncake:
    """Mooncake: the format of a replay itself."""

    clock: Clock = field(default_factory=Clock)
    block_size: int | None = None
    num_skipped: int = 0

    def read(self, line: bytes) -> Row | None:
        """The object as it is; a name given twice is refused, for a JSON reader would take the last in silence."""
        row = json_object(line)
        if line.count(b'":') + line.count(b'" :') > len(row):
            for name in repeated_names(line):
                raise LineFaultError(name, "is given twice", "give it once", line)
        return row


@dataclass(slots=True)
class Bailian:
    """Alibaba Bailian (Qwen) usage traces: mooncake rows in seconds, 16-token blocks, chats as single requests.

    Every turn of a chat has its own arrival in the log, so turns stay requests of their own.
    """

    clock: Clock
    block_size: int | None = 16
    num_skipped: int = 0

    def read(self, line: bytes) -> Row | None:
        """Arrival, lengths and ids; chat_id, parent_chat_id, turn and type are left out."""
        row = json_object(line)
        names = ("timestamp", "input_length", "output_length", "hash_ids")
        return {name: row[name] for name in names if name in row}


@dataclass(slots=True)
class DynamoRequests:
    """`dynamo.request.trace.v1` events, bare or under `event`: one row per `request_end` that can be replayed."""

    clock: Clock
    block_size: int | None = None
    num_skipped: int = 0

    def read(self, line: bytes) -> Row | None:
        """The arrival is the request's own time, not the event's; the block size is what the events say."""
        row = json_object(line)
        event = row.get("event", row)
        if not isinstance(event, dict) or event.get("event_type") != "request_end":
            self.num_skipped += 1
            return None
        request = _member(event, "request", dict, "request")
        replay = _member(request, "replay", dict, "request.replay")
        size = _member(replay, "trace_block_size", int, "request.replay.trace_block_size")
        if size < 1 or (self.block_size is not None and size != self.block_size):
            reason = f"is {size}, and the trace's block size is {self.block_size}" if size > 0 else "is not positive"
            raise LineFaultError("request.replay.trace_block_size", reason, "upload one trace per block size", size)
        self.block_size = size
        return {
            "timestamp": _member(request, "request_received_ms", (int, float), "request.request_received_ms"),
            "input_length": replay.get("input_length"),
            "output_length": request.get("output_tokens"),
            "hash_ids": replay.get("input_sequence_hashes"),
        }


def _member(parent: Row, name: str, types: Any, place: str) -> Any:
    value = parent.get(name)
    if not isinstance(value, types) or isinstance(value, bool):
        reason = "is missing" if value is None else f"is {kind(value)}"
        raise LineFaultError(place, reason, "give it as dynamo.request.trace.v1 does", value)
    return value


@dataclass(slots=True)
class Table:
    """A CSV file whose first line names its columns; what else it holds is left out.

    stamp: column and reader of the arrival; inputs, outputs: columns of the lengths.
    """

    clock: Clock
    stamp: tuple[str, Callable[[str], float | int]]
    inputs: str
    outputs: str
    block_size: int | None = None
    num_skipped: int = 0
    _places: tuple[int, int, int] | None = None
    _num_columns: int = 0

    def read(self, line: bytes) -> Row | None:
        """The arrival and the lengths."""
        cells = _cells(line)
        if self._places is None:
            self._read_names(cells)
            return None
        if len(cells) != self._num_columns:
            reason = f"has {len(cells)} columns, the first line names {self._num_columns}"
            raise LineFaultError("", reason, "give every column, or upload the whole file", line)
        at, inputs, outputs = self._places
        name, read = self.stamp
        try:
            stamp = read(cells[at])
        except ValueError as error:
            raise LineFaultError(name, str(error), "write it as in the published trace", cells[at]) from error
        return {
            "timestamp": stamp,
            "input_length": _whole(cells[inputs], self.inputs),
            "output_length": _whole(cells[outputs], self.outputs),
        }

    def _read_names(self, cells: Sequence[str]) -> None:
        wanted = (self.stamp[0], self.inputs, self.outputs)
        names = [cell.strip() for cell in cells]
        missing = [name for name in wanted if name not in names]
        if missing:
            raise HeaderFaultError(
                missing[0], "is not among the columns that the first line names", f"name {', '.join(wanted)}", names
            )
        at, inputs, outputs = (names.index(name) for name in wanted)
        self._places, self._num_columns = (at, inputs, outputs), len(names)


def _cells(line: bytes) -> list[str]:
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise LineFaultError("", "is not UTF-8", "encode the file as UTF-8") from error
    return next(csv.reader([text]), []) if '"' in text else text.split(",")


def _whole(cell: str, name: str) -> int:
    text = cell.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        reason = "is missing" if not text else "is not a whole number"
        raise LineFaultError(name, reason, "write a whole number of tokens", cell[:100])
    return int(text)


def _seconds(cell: str) -> float:
    value = float(cell)
    if not -(2.0**53) <= value <= 2.0**53:
        raise ValueError("is not a finite number of seconds")
    return value


_WALL_CLOCK = re.compile(
    r"\s*(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(?:Z|([+-])(\d\d):?(\d\d))?\s*"
)


@dataclass(slots=True)
class WallClock:
    """Wall-clock strings to ticks of 100 ns since the first one's midnight: whole numbers, exact for decades."""

    _anchor: int | None = None

    def __call__(self, cell: str) -> int:
        """Raises: ValueError."""
        found = _WALL_CLOCK.fullmatch(cell)
        if found is None:
            raise ValueError("is not a time such as 2023-11-16 18:15:46.6805900")
        year, month, day, hour, minute, second = map(int, found.groups()[:6])
        if hour > 23 or minute > 59 or second > 60:
            raise ValueError("is not a time of day")
        ordinal = date(year, month, day).toordinal()
        if self._anchor is None:
            self._anchor = ordinal
        minutes = hour * 60 + minute
        if found[8]:
            shift = int(found[9]) * 60 + int(found[10])
            minutes -= shift if found[8] == "+" else -shift
        ticks = int((found[7] or "0").ljust(9, "0")[:7])
        return (ordinal - self._anchor) * _DAY_TICKS + (minutes * 60 + second) * 10**7 + ticks


def _clock(unit: TimeUnit | None, default: TimeUnit) -> Clock:
    return Clock(1000.0 if (unit or default) == "s" else 1.0)


_READERS: dict[TraceFormat, Callable[[TimeUnit | None], Reader]] = {
    "mooncake": lambda unit: Mooncake(_clock(unit, "ms")),
    "bailian": lambda unit: Bailian(_clock(unit, "s")),
    "dynamo": lambda unit: DynamoRequests(_clock(unit, "ms")),
    "burstgpt": lambda unit: Table(_clock(unit, "s"), ("Timestamp", _seconds), "Request tokens", "Response tokens"),
    # The stamps say their own unit: a day of 24 hours, to 100 ns.
    "azure": lambda _unit: Table(Clock(1.0, 1e4), ("TIMESTAMP", WallClock()), "ContextTokens", "GeneratedTokens"),
}
