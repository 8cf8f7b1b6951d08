"""Rows of a trace to columns, checked: whole batches at once, and row by row only where a batch has a fault.

Source: traffic spec, sections 3.1 and 3.5; service contract, section 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.traces.faults import MAX_NAMED, Faults, RowFault
from app.traces.row_faults import ALIASES, MAX_STAMP, MAX_TOKENS, Row, row_faults

_OTHERS = ("hash_ids", "session_id", "output_token_ids", "request_id", "priority", "strict_priority", "policy_class")
KNOWN_FIELDS = frozenset((*ALIASES, *ALIASES.values(), *_OTHERS))

_MAX_UNKNOWN_NAMES = 20
_NONE = type(None)


@dataclass(frozen=True, slots=True)
class Columns:
    """R checked rows in file order. NaN: absent. session: 0 for none.

    num_ids: per row, None if no row has any. block_id: of all rows, one after the other.
    """

    line: NDArray[np.int64]
    timestamp: NDArray[np.float64]
    delay_ms: NDArray[np.float64]
    session: NDArray[np.uint64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    num_ids: NDArray[np.int64] | None
    block_id: NDArray[np.uint64]


@dataclass(slots=True)
class RowChecker:
    """Checks batches of rows one after the other and remembers what only the whole file can tell.

    stamp_scale: ms of one unit of `timestamp` and `delay`; `delay_ms` is in ms whatever the unit.
    unknown: rows per field that no replay reads. least_block, most_block: block sizes that cover every row so far.
    """

    block_size: int
    faults: Faults
    stamp_scale: float = 1.0
    unknown: dict[str, int] = field(default_factory=dict)
    least_block: int = 1
    most_block: int = MAX_TOKENS
    _with_ids: int = 0
    _without_ids: int = 0
    _first_without: list[int] = field(default_factory=list)
    _num_uncovered: int = 0

    def check(self, lines: Sequence[int], rows: Sequence[Row]) -> Columns | None:
        """The columns of a batch, None if any of its rows has a fault (which is then noted)."""
        names = set().union(*rows)
        if not names <= KNOWN_FIELDS:
            self._note_unknown(rows, names)
        self._note_ids(lines, rows)
        columns = self._columns(lines, rows, names)
        if columns is not None:
            return columns if self._covers(columns) else None
        good = [(line, row) for line, row in zip(lines, rows, strict=True) if not self._refuse(line, row)]
        if good:
            columns = self._columns([line for line, _ in good], [row for _, row in good], names, is_checked=True)
            assert columns is not None, "a batch was refused although none of its rows has a fault"
            self._covers(columns)
        return None

    def finish(self) -> None:
        """Note the faults that only the whole file shows."""
        if self._with_ids and self._without_ids:
            remedy = "give hash_ids in every row, or in none if sharing is unknown"
            reason = f"is missing, while {self._with_ids} rows have it"
            found = (RowFault(line, "hash_ids", reason, remedy) for line in self._first_without)
            self.faults.add(found, self._without_ids)
        if self._num_uncovered:
            fits = fitting_block_size(self.least_block, self.most_block)
            self.faults.about |= {
                "block_size": self.block_size,
                "num_rows_not_covered": self._num_uncovered,
                "block_size_that_fits": fits,
            }
            if fits is not None:
                self._name_fitting(fits)

    @property
    def has_ids(self) -> bool:
        """Whether the rows say which blocks they share."""
        return self._with_ids > 0

    def _name_fitting(self, fits: int) -> None:
        remedy = f"block_size={fits} covers every row exactly: upload with it"
        named = self.faults.named
        named[:] = [each._replace(remedy=remedy) if "expected" in each.about else each for each in named]

    def _note_unknown(self, rows: Sequence[Row], names: set[str]) -> None:
        for name in sorted(names - KNOWN_FIELDS):
            if name in self.unknown or len(self.unknown) < _MAX_UNKNOWN_NAMES:
                self.unknown[name] = self.unknown.get(name, 0) + sum(name in row for row in rows)

    def _columns(
        self, lines: Sequence[int], rows: Sequence[Row], names: set[str], *, is_checked: bool = False
    ) -> Columns | None:
        """The batch as arrays, or None if a row needs a closer look."""
        if not is_checked and _needs_close_look(names):
            return (
                None
                if any(True for row in rows for _ in row_faults(0, row, self.block_size))
                else self._columns(lines, rows, names, is_checked=True)
            )
        stamps = _numbers(_values(rows, "timestamp", names), self.stamp_scale)
        delays = self._delays(rows, names)
        outputs = _lengths(_values(rows, "output_length", names), 0)
        inputs, counts, ids = self._prompts(rows, names)
        session = _session_keys(rows, names)
        if stamps is None or delays is None or outputs is None or inputs is None or session is None:
            return None
        alone = session == 0
        if (np.isnan(stamps) & alone).any() or (alone & (np.nan_to_num(delays) != 0)).any() or (delays < 0).any():
            return None
        return Columns(np.array(lines, dtype=np.int64), stamps, delays, session, inputs, outputs, counts, ids)

    def _delays(self, rows: Sequence[Row], names: set[str]) -> NDArray[np.float64] | None:
        if "delay" not in names and "delay_ms" not in names:
            return np.full(len(rows), np.nan)
        scaled = _numbers([row.get("delay") for row in rows], self.stamp_scale)
        plain = _numbers([row.get("delay_ms") for row in rows], 1.0)
        if scaled is None or plain is None:
            return None
        return np.where(np.isnan(scaled), plain, scaled)

    def _prompts(
        self, rows: Sequence[Row], names: set[str]
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None, NDArray[np.uint64]]:
        """Input lengths (None: faulty), ids per row (None: no row has any), and all ids."""
        no_ids = np.empty(0, dtype=np.uint64)
        lengths = _values(rows, "input_length", names)
        lists: list[Any] = [row.get("hash_ids") for row in rows] if "hash_ids" in names else [None]
        kinds = set(map(type, lists))
        if kinds == {_NONE}:
            return _lengths(lengths, 1), None, no_ids
        if not kinds <= {list, _NONE}:
            return None, None, no_ids
        if None in lengths:
            lengths = [
                len(ids) * self.block_size if value is None and ids is not None else value
                for value, ids in zip(lengths, lists, strict=True)
            ]
        ids = _ids(list(chain.from_iterable(each for each in lists if each is not None)))
        if ids is None:
            return None, None, no_ids
        if _NONE in kinds:  # Rows without ids among rows with ids: refused in the end, and covered or not is moot.
            return _lengths(lengths, 1), None, no_ids
        return _lengths(lengths, 1), np.fromiter(map(len, lists), dtype=np.int64, count=len(lists)), ids

    def _covers(self, columns: Columns) -> bool:
        """Whether each prompt has exactly the ids it needs; the others are noted."""
        lines, inputs, counts = columns.line, columns.input_tokens, columns.num_ids
        if counts is None:
            return True
        least = np.where(counts > 0, -(-inputs // np.maximum(counts, 1)), MAX_TOKENS + 1)
        most = np.where(counts > 1, (inputs - 1) // np.maximum(counts - 1, 1), MAX_TOKENS)
        self.least_block = max(self.least_block, int(least.max()))
        self.most_block = min(self.most_block, int(most.min()))
        expected = -(-inputs // self.block_size)
        wrong = np.flatnonzero(expected != counts)
        if not wrong.size:
            return True
        self._num_uncovered += int(wrong.size)
        room = wrong[: max(0, MAX_NAMED - len(self.faults.named))]
        named = [
            _uncovered(int(lines[at]), int(inputs[at]), int(expected[at]), int(counts[at]), self.block_size)
            for at in room
        ]
        self.faults.add(named, int(wrong.size))
        return False

    def _refuse(self, line: int, row: Row) -> bool:
        found = list(row_faults(line, row, self.block_size))
        if found:
            self.faults.add_row(found)
        return bool(found)

    def _note_ids(self, lines: Sequence[int], rows: Sequence[Row]) -> None:
        """Remember which rows have ids at all."""
        without = [line for line, row in zip(lines, rows, strict=True) if row.get("hash_ids") is None]
        self._without_ids += len(without)
        self._with_ids += len(rows) - len(without)
        self._first_without += without[: MAX_NAMED - len(self._first_without)]


def _needs_close_look(names: set[str]) -> bool:
    """Whether rows may hold what is checked one by one: a field under both its names, or authored tokens."""
    return "output_token_ids" in names or any({name, alias} <= names for name, alias in ALIASES.items())


def fitting_block_size(least: int, most: int) -> int | None:
    """A block size within the bounds, a power of two if there is one; None if they exclude each other."""
    if least > most:
        return None
    power = 1 << (least - 1).bit_length()
    return power if power <= most else least


def _uncovered(line: int, tokens: int, expected: int, found: int, block_size: int) -> RowFault:
    reason = f"has {found} ids; input_length {tokens} needs {expected} at block size {block_size}"
    about = {"expected": expected, "found": found, "block_size": block_size}
    remedy = "give ceil(input_length / block_size) ids, or the block size of the trace as block_size"
    return RowFault(line, "hash_ids", reason, remedy, found, about)


def _values(rows: Sequence[Row], name: str, names: set[str]) -> list[Any]:
    alias = ALIASES[name]
    if alias in names:
        return [value if (value := row.get(name)) is not None else row.get(alias) for row in rows]
    return [row.get(name) for row in rows]


def _numbers(values: list[Any], scale: float) -> NDArray[np.float64] | None:
    """float64, NaN where absent; None if one is no number that keeps its precision."""
    if not set(map(type, values)) <= {int, float, _NONE}:
        return None
    array = np.array(values, dtype=np.float64)
    if (np.abs(array) > MAX_STAMP).any():
        return None
    return array if scale == 1.0 else array * scale


def _lengths(values: list[Any], least: int) -> NDArray[np.int64] | None:
    if set(map(type, values)) != {int} or not least <= min(values) <= max(values) <= MAX_TOKENS:
        return None
    return np.array(values, dtype=np.int64)


def _ids(flat: list[Any]) -> NDArray[np.uint64] | None:
    if not flat:
        return np.empty(0, dtype=np.uint64)
    if set(map(type, flat)) != {int} or min(flat) < 0:
        return None
    return np.array(flat, dtype=np.uint64)


def _session_keys(rows: Sequence[Row], names: set[str]) -> NDArray[np.uint64] | None:
    """uint64, 64 bits of each name's hash: names can be as many as rows, and memory is bounded."""
    if "session_id" not in names:
        return np.zeros(len(rows), dtype=np.uint64)
    values = [row.get("session_id") for row in rows]
    if not set(map(type, values)) <= {str, _NONE}:
        return None
    return np.fromiter(
        (0 if name is None else session_key(name) for name in values), dtype=np.uint64, count=len(values)
    )


def session_key(name: str) -> int:
    """64 bits of the name's hash, never 0."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1
