"""Mooncake trace files to checked columns: one JSON object per line, read once, faults named with their line.

Source: traffic spec, sections 3.1 and 3.5.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

_ALIASES = {
    "timestamp": "created_time",
    "input_length": "input_tokens",
    "output_length": "output_tokens",
    "delay": "delay_ms",
}
_MAX_ID = (1 << 64) - 1
_FIRST_INTERNED_ID = 1 << 62


class TraceFaultError(ValueError):
    """A trace that cannot be read; `line` is 1-based, None when the fault is the whole file's."""

    def __init__(self, detail: str, line: int | None = None) -> None:
        super().__init__(detail if line is None else f"line {line}: {detail}")
        self.line = line


@dataclass(frozen=True, slots=True)
class TraceRows:
    """R rows in file order; H block ids in all.

    line: int64 [R], 1-based. timestamp_ms, delay_ms: float64 [R], NaN where absent.
    input_tokens, output_tokens: int64 [R].
    session: int64 [R], index by first appearance; session_names: name of each.
    block_offset: int64 [R + 1] into block_id: int64 [H], equal ids are equal content.
    """

    line: NDArray[np.int64]
    timestamp_ms: NDArray[np.float64]
    delay_ms: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    session: NDArray[np.int64]
    session_names: tuple[str, ...]
    block_offset: NDArray[np.int64]
    block_id: NDArray[np.int64]


def parse_lines(content: bytes) -> list[tuple[int, dict[str, Any]]]:
    """(line number, object) of every non-blank line.

    Raises: TraceFaultError when a line is no JSON object, the text is not UTF-8, or no line is left.
    """
    rows = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise TraceFaultError(_broken_line(line, error), number) from error
        if not isinstance(row, dict):
            raise TraceFaultError(f"invalid type: {_kind(row)}, expected a trace row object", number)
        rows.append((number, row))
    if not rows:
        raise TraceFaultError("trace did not contain any requests")
    return rows


def read_rows(content: bytes, trace_block_size: int = 512) -> TraceRows:
    """The checked rows of a mooncake file; `trace_block_size` is the tokens of one hash id.

    Raises: TraceFaultError for every fault of section 3.5 that does not depend on how the trace is driven.
    """
    if trace_block_size < 1:
        raise ValueError(f"trace_block_size must be at least 1, got {trace_block_size}")
    parsed = parse_lines(content)
    lines = [number for number, _ in parsed]
    objects = [row for _, row in parsed]
    columns = {name: _column(lines, objects, name) for name in _ALIASES}
    blocks = _block_lists(lines, objects)
    counts = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    capacity = counts * trace_block_size
    lengths = _lengths(lines, columns["input_length"], "input_length", capacity)
    outputs = _lengths(lines, columns["output_length"], "output_length", None)
    _check_coverage(lines, lengths, capacity)
    _check_output_ids(lines, objects, outputs)
    session, names = _sessions(lines, objects)
    return TraceRows(
        line=np.array(lines, dtype=np.int64),
        timestamp_ms=_numbers(lines, columns["timestamp"], "timestamp"),
        delay_ms=_numbers(lines, columns["delay"], "delay"),
        input_tokens=lengths,
        output_tokens=outputs,
        session=session,
        session_names=names,
        block_offset=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        block_id=_block_ids(lines, blocks),
    )


def _broken_line(line: bytes, error: ValueError) -> str:
    """What is wrong with a line that is no JSON; NaN literals and byte-order marks end here too."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return "stream did not contain valid UTF-8"
    return f"expected value or EOF while parsing: {error}"


def _kind(value: object) -> str:
    """JSON name of a value's type."""
    names = {bool: "boolean", int: "integer", float: "floating point", str: "string", list: "sequence", dict: "map"}
    return names.get(type(value), "null")


def _column(lines: list[int], rows: list[dict[str, Any]], name: str) -> list[Any]:
    """The values of a field or its alias, None where absent or null."""
    alias = _ALIASES[name]
    if any(alias in row for row in rows):
        for line, row in zip(lines, rows, strict=True):
            if alias in row and name in row:
                raise TraceFaultError(f"duplicate field `{name}`", line)
        return [row.get(name, row.get(alias)) for row in rows]
    return [row.get(name) for row in rows]


def _first_bad(lines: list[int], values: Iterable[Any], is_good: Callable[[Any], bool]) -> tuple[int, Any]:
    """Line and value of the first value that is not good; the caller knows there is one."""
    return next((line, value) for line, value in zip(lines, values, strict=True) if not is_good(value))


def _numbers(lines: list[int], values: list[Any], name: str) -> NDArray[np.float64]:
    """float64 [R], NaN for None."""
    if not set(map(type, values)) <= {int, float, type(None)}:
        line, value = _first_bad(lines, values, lambda v: type(v) in (int, float, type(None)))
        raise TraceFaultError(f"invalid type: {_kind(value)}, {name} must be a number", line)
    return np.array(values, dtype=np.float64)


def _lengths(lines: list[int], values: list[Any], name: str, default: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """int64 [R]; absent values take `default`, or are a fault without one."""
    kinds = set(map(type, values))
    if not kinds <= {int, type(None)}:
        line, value = _first_bad(lines, values, lambda v: type(v) in (int, type(None)))
        raise TraceFaultError(f"invalid type: {_kind(value)}, {name} must be an unsigned integer", line)
    if type(None) in kinds:
        if default is None:
            line, _ = _first_bad(lines, values, lambda v: v is not None)
            raise TraceFaultError(f"row is missing {name}", line)
        values = [int(d) if v is None else v for v, d in zip(values, default, strict=True)]
    if values and not 0 <= min(values) <= max(values) < 1 << 63:
        line, value = _first_bad(lines, values, lambda v: 0 <= v < 1 << 63)
        raise TraceFaultError(f"invalid value: integer {value}, {name} must be an unsigned integer", line)
    return np.array(values, dtype=np.int64)


def _block_lists(lines: list[int], rows: list[dict[str, Any]]) -> list[list[int]]:
    """hash_ids of every row."""
    lists = [row.get("hash_ids") for row in rows]
    if set(map(type, lists)) != {list}:
        line, value = _first_bad(lines, lists, lambda v: type(v) is list)
        detail = "row is missing hash_ids" if value is None else f"invalid type: {_kind(value)}, expected a sequence"
        raise TraceFaultError(detail, line)
    return lists  # type: ignore[return-value]


def _block_ids(lines: list[int], blocks: list[list[int]]) -> NDArray[np.int64]:
    """int64 [H]: equal ids are equal content."""
    flat = list(chain.from_iterable(blocks))
    if not set(map(type, flat)) <= {int}:
        line, row = _first_bad(lines, blocks, lambda b: set(map(type, b)) <= {int})
        value = next(v for v in row if type(v) is not int)
        raise TraceFaultError(f"invalid type: {_kind(value)}, hash_ids must be unsigned integers", line)
    if flat and not 0 <= min(flat) <= max(flat) <= _MAX_ID:
        line, row = _first_bad(lines, blocks, lambda b: all(0 <= v <= _MAX_ID for v in b))
        raise TraceFaultError("invalid value: hash_ids must lie in 0..2^64-1", line)
    return without_large_ids(np.array(flat, dtype=np.uint64))


def without_large_ids(ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """int64 [H]; ids below 2^62 as they are, without a copy, larger ones renumbered from there on."""
    large = ids >= np.uint64(_FIRST_INTERNED_ID)
    if large.any():
        ids = ids.copy()
        renumbered = np.unique(ids[large], return_inverse=True)[1].astype(np.uint64)
        ids[large] = np.uint64(_FIRST_INTERNED_ID) + renumbered
    return ids.view(np.int64)


def _check_coverage(lines: list[int], lengths: NDArray[np.int64], capacity: NDArray[np.int64]) -> None:
    """No prompt may be longer than its hash ids cover."""
    too_long = np.flatnonzero(lengths > capacity)
    if too_long.size:
        row = int(too_long[0])
        raise TraceFaultError(f"input_length {lengths[row]} exceeds hash_ids capacity {capacity[row]}", lines[row])


def _check_output_ids(lines: list[int], rows: list[dict[str, Any]], outputs: NDArray[np.int64]) -> None:
    """Authored output tokens must be as many as output_length says."""
    for line, row, expected in zip(lines, rows, outputs, strict=True):
        ids = row.get("output_token_ids")
        if ids is not None and len(ids) != expected:
            raise TraceFaultError(f"output_length {expected} does not match output_token_ids length {len(ids)}", line)


def _sessions(lines: list[int], rows: list[dict[str, Any]]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Session index of each row and the names by index; a row without session_id is its own session."""
    raw = [row.get("session_id") for row in rows]
    if not set(map(type, raw)) <= {str, type(None)}:
        line, value = _first_bad(lines, raw, lambda v: type(v) in (str, type(None)))
        raise TraceFaultError(f"invalid type: {_kind(value)}, session_id must be a string", line)
    names = [f"request_{line}" if name is None else name for line, name in zip(lines, raw, strict=True)]
    index: dict[str, int] = {}
    session = [index.setdefault(name, len(index)) for name in names]
    return np.array(session, dtype=np.int64), tuple(index)
