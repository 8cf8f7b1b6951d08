"""Strict JSON: a document and everything wrong with its text, each fault at its pointer.

Non-finite numbers are let through as floats, because the models refuse them at their own field, with the others.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from app.routes.faults import MAX_FAULTS, Fault
from app.schemas.study import pointer_of

MAX_DEPTH = 32
"""Levels of nesting; the deepest legal configuration has six."""

_MAX_DIGITS = 40


class UnreadableError(Exception):
    """The text is not a document at all; nothing further can be said about it."""

    def __init__(self, fault: str, remedy: str, pointer: str = "") -> None:
        super().__init__(fault)
        self.fault = Fault(pointer=pointer, value=None, fault=fault, remedy=remedy)


@dataclass(slots=True)
class Reading:
    """What was read: plain dicts, lists and scalars, and the faults of the text."""

    document: Any = None
    faults: list[Fault] = field(default_factory=list)

    def blame(self, at: tuple[str | int, ...], value: Any, fault: str, remedy: str) -> None:
        """Adds a fault; beyond the limit they are dropped, the document is refused all the same."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(pointer=pointer_of(at), value=value, fault=fault, remedy=remedy))


class _Pairs(list[tuple[str, Any]]):
    """An object's members in order, repeated keys included."""


def read_json(text: str) -> Reading:
    """Reads one JSON value.

    Raises: UnreadableError if it is not JSON or nested too deeply.
    """
    try:
        raw = json.loads(text, object_pairs_hook=_Pairs, parse_int=_integer)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UnreadableError(f"is not JSON: {error.msg} at {where}", "correct the JSON text") from error
    except RecursionError as error:
        raise UnreadableError(*_TOO_DEEP) from error
    reading = Reading()
    reading.document = _plain(raw, (), reading)
    return reading


_TOO_DEEP = (f"is nested more than {MAX_DEPTH} levels deep", "flatten it; a configuration has at most six levels")


def _integer(digits: str) -> int | float:
    """An int, or a float where no field can hold so many digits (Python refuses to convert very long ones)."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _plain(raw: Any, at: tuple[str | int, ...], reading: Reading) -> Any:
    if len(at) > MAX_DEPTH:
        raise UnreadableError(*_TOO_DEEP)
    if isinstance(raw, _Pairs):
        plain: dict[str, Any] = {}
        for key, value in raw:
            if key in plain:
                reading.blame((*at, key), None, "is written twice", "keep one of them")
            check_text(key, at, reading)
            plain[key] = _plain(value, (*at, key), reading)
        return plain
    if isinstance(raw, list):
        return [_plain(value, (*at, index), reading) for index, value in enumerate(raw)]
    if isinstance(raw, str):
        check_text(raw, at, reading)
    return raw


def check_text(text: str, at: tuple[str | int, ...], reading: Reading) -> None:
    """Refuses what no database column and no strict JSON text can carry: NUL and lone surrogates."""
    if "\x00" in text or any("\ud800" <= char <= "\udfff" for char in text):
        reading.blame(at, None, "holds a NUL or half of a surrogate pair", "remove the character")
