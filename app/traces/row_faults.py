"""What can be wrong with one row by itself, said field by field.

Source: traffic spec, sections 3.1 and 3.5; service contract, section 8.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from app.traces.faults import RowFault

Row = dict[str, Any]

ALIASES = {
    "timestamp": "created_time",
    "input_length": "input_tokens",
    "output_length": "output_tokens",
    "delay": "delay_ms",
}
MAX_TOKENS = 2**31 - 1
MAX_STAMP = 2.0**53
_MAX_ID = 2**64 - 1
_NONE = type(None)


def row_faults(line: int, row: Row, block_size: int) -> Iterator[RowFault]:
    """Every fault that a row has by itself; how many ids it should have is checked for whole batches."""
    for name, alias in ALIASES.items():
        if name in row and alias in row:
            yield RowFault(line, name, f"is given together with its other name {alias}", "give one of them")
    yield from _stamp_faults(line, row)
    lists = row.get("hash_ids")
    full = len(lists) * block_size if isinstance(lists, list) else None
    yield from _length_faults(line, row, "input_length", 1, full or None)
    yield from _length_faults(line, row, "output_length", 0, None)
    if lists is not None:
        yield from _id_faults(line, lists)
    session = row.get("session_id")
    if session is not None and not isinstance(session, str):
        yield RowFault(line, "session_id", f"is {kind(session)}", "write a string", session)
    tokens = row.get("output_token_ids")
    if tokens is not None:
        yield from _token_faults(line, row, tokens)


def _given(row: Row, name: str) -> tuple[str, Any]:
    alias = ALIASES[name]
    return (alias, row[alias]) if row.get(name) is None and row.get(alias) is not None else (name, row.get(name))


def _stamp_faults(line: int, row: Row) -> Iterator[RowFault]:
    name, stamp = _given(row, "timestamp")
    if stamp is None and row.get("session_id") is None:
        yield RowFault(line, "timestamp", "is missing", "give the arrival in ms; only later turns may leave it out")
    elif stamp is not None:
        yield from _number_faults(line, name, stamp)
    for each in ("delay", "delay_ms"):
        delay = row.get(each)
        if delay is None:
            continue
        flaws = list(_number_faults(line, each, delay))
        yield from flaws
        if flaws:
            continue
        if delay < 0:
            yield RowFault(line, each, "is negative", "a think time is at least 0", delay)
        elif delay > 0 and row.get("session_id") is None:
            yield RowFault(line, each, "is given for a row without session_id", "name its session", delay)


def _number_faults(line: int, name: str, value: object) -> Iterator[RowFault]:
    if type(value) not in (int, float):
        yield RowFault(line, name, f"is {kind(value)}", "write a number without quotes", value)
    elif not math.isfinite(value) or abs(value) > MAX_STAMP:  # type: ignore[arg-type]
        yield RowFault(line, name, "is beyond 2^53, where ms lose their precision", "give milliseconds", value)


def _length_faults(line: int, row: Row, field_name: str, least: int, default: int | None) -> Iterator[RowFault]:
    name, value = _given(row, field_name)
    remedy = f"write a whole number of tokens, at least {least}"
    value = default if value is None else value
    if value is None:
        yield RowFault(line, field_name, "is missing", remedy)
    elif type(value) is not int:
        yield RowFault(line, name, f"is {kind(value)}", remedy, value)
    elif value < least:
        yield RowFault(line, name, "is zero" if value == 0 else "is negative", remedy, value)
    elif value > MAX_TOKENS:
        yield RowFault(line, name, f"is more than {MAX_TOKENS} tokens", remedy, value)


def _id_faults(line: int, lists: object) -> Iterator[RowFault]:
    remedy = "write a list of whole numbers from 0 to 2^64 - 1"
    if not isinstance(lists, list):
        yield RowFault(line, "hash_ids", f"is {kind(lists)}", remedy, lists)
        return
    for each in lists:
        if type(each) is float and each >= _MAX_ID:
            yield RowFault(line, "hash_ids", "holds a number above 2^64 - 1", remedy, each)
            return
        if type(each) is not int or each < 0:
            what = "a negative number" if type(each) is int else kind(each)
            yield RowFault(line, "hash_ids", f"holds {what}", remedy, each)
            return


def _token_faults(line: int, row: Row, tokens: object) -> Iterator[RowFault]:
    length = _given(row, "output_length")[1]
    if not isinstance(tokens, list):
        yield RowFault(line, "output_token_ids", f"is {kind(tokens)}", "write a list", tokens)
    elif type(length) is int and len(tokens) != length:
        reason = f"has {len(tokens)} tokens, output_length says {length}"
        yield RowFault(line, "output_token_ids", reason, "give as many as output_length, or leave it out")


_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number with a fraction",
    str: "a string",
    list: "a list",
    dict: "an object",
    _NONE: "null",
}


def kind(value: object) -> str:
    """What a JSON value is, in words."""
    return _KINDS.get(type(value), "no JSON value")


def repeated_names(text: bytes) -> Iterator[str]:
    """Names that one object gives twice; JSON readers would silently take the last."""
    seen: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        seen.extend(sorted({name for name in names if names.count(name) > 1}))
        return dict(pairs)

    json.loads(text, object_pairs_hook=note)
    yield from seen
