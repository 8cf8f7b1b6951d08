"""Strict YAML: the same documents as JSON, never a tag, never a scalar on which YAML 1.1 and 1.2 disagree.

The tree is built from the parser's events, so that depth, size and aliases are bounded before anything grows, and no
constructor of any class exists.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from app.routes.faults import json_safe
from app.routes.strict_json import MAX_DEPTH, Reading, UnreadableError, check_text

MAX_NODES = 100_000
"""Nodes after aliases are expanded; an alias counts as much as what it stands for."""

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)\.[0-9]*([eE][-+][0-9]+)?|\.[0-9]+[eE][-+][0-9]+)")
_SPECIAL = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

_TRAPS = (
    (re.compile(r"[-+]?0[0-9_]+"), "a leading zero means octal in YAML 1.1 and decimal in YAML 1.2"),
    (re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0o[0-7]+|0b[01_]+)"), "is a number in another base to some readers"),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"),
        "is a base-60 number in YAML 1.1 and text in YAML 1.2",
    ),
    (
        re.compile(r"[-+]?(?=[0-9.,_]*_)[0-9][0-9_]*(\.[0-9_]*)?"),
        "underscores group digits in YAML 1.1 and make text in YAML 1.2",
    ),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+"), "is text in YAML 1.1 and a fraction in YAML 1.2"),
    (re.compile(r"(?i:y|n|yes|no|on|off)"), "is a boolean in YAML 1.1 and text in YAML 1.2"),
)


def read_yaml(text: str) -> Reading:
    """Reads one YAML document.

    Raises: UnreadableError if it is not YAML, too deep, too large once aliases are expanded, or several documents.
    """
    try:
        return _Builder(iter(yaml.parse(text, Loader=_PARSER))).build()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UnreadableError(f"is not YAML: {error.problem}{where}", "correct the YAML text") from error
    except yaml.YAMLError as error:
        raise UnreadableError("is not YAML: it holds a character that YAML forbids", "remove it") from error


@dataclass(slots=True)
class _Builder:
    """Nodes of one document; `size` counts them with aliases expanded."""

    events: Iterator[Any]
    reading: Reading = field(default_factory=Reading)
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    size: int = 0

    def build(self) -> Reading:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                break
        else:
            return self.reading
        self.reading.document = self._node(next(self.events), ())
        next(self.events)
        if isinstance(next(self.events), yaml.DocumentStartEvent):
            raise UnreadableError("holds more than one YAML document", "submit one document, without ---")
        return self.reading

    def _node(self, event: Any, at: tuple[str | int, ...]) -> Any:
        if len(at) > MAX_DEPTH:
            raise UnreadableError(f"is nested more than {MAX_DEPTH} levels deep", "flatten it")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, at)
        before = self.size
        self._grow(1)
        if event.tag is not None and event.tag != "!":
            self.reading.blame(
                at, json_safe(event.tag), "carries a YAML tag; tags are never followed", "remove the tag"
            )
        if isinstance(event, yaml.ScalarEvent):
            value: Any = self._scalar(event, at)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(at)
        else:
            value = self._mapping(at)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.size - before)
        return value

    def _grow(self, nodes: int) -> None:
        self.size += nodes
        if self.size > MAX_NODES:
            raise UnreadableError(f"expands to more than {MAX_NODES} values", "write fewer values or aliases")

    def _alias(self, event: Any, at: tuple[str | int, ...]) -> Any:
        if event.anchor not in self.anchors:
            raise UnreadableError("an alias refers to itself or to no anchor", "write the value out", "")
        value, size = self.anchors[event.anchor]
        self._grow(size)
        if len(at) + _depth(value) > MAX_DEPTH:
            raise UnreadableError(f"is nested more than {MAX_DEPTH} levels deep", "flatten it")
        return value

    def _sequence(self, at: tuple[str | int, ...]) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*at, len(items))))
        return items

    def _mapping(self, at: tuple[str | int, ...]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise UnreadableError("a key is not a plain name", "write names as keys", "")
            key = event.value
            check_text(key, at, self.reading)
            if key == "<<" and event.implicit[0]:
                self.reading.blame((*at, key), None, "merge keys are not part of YAML 1.2", "write the fields out")
                self._node(next(self.events), (*at, key))
                continue
            if key in members:
                self.reading.blame((*at, key), None, "is written twice", "keep one of them")
            members[key] = self._node(next(self.events), (*at, key))
        return members

    def _scalar(self, event: Any, at: tuple[str | int, ...]) -> Any:
        text = event.value
        check_text(text, at, self.reading)
        return self._plain_scalar(text, at) if event.implicit[0] else text

    def _plain_scalar(self, text: str, at: tuple[str | int, ...]) -> Any:
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text):
            return int(text) if len(text) <= 40 else float(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if text.lower() in _SPECIAL:
            return float(_SPECIAL[text.lower()])
        if len(text) <= 64:
            for pattern, why in _TRAPS:
                if pattern.fullmatch(text):
                    remedy = "write the number in plain decimal digits, true or false; or quote it if text is meant"
                    self.reading.blame(at, text, f"is ambiguous: {why}", remedy)
                    break
        return text


def _depth(value: Any) -> int:
    """Levels below a built value, which is itself within the limit."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((1 + _depth(child) for child in children), default=0)
