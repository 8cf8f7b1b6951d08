"""What every block of the configuration shares: strictness, closed choices, and flaws that teach."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

Loc = tuple[str | int, ...]
Document = Mapping[str, Any]
"""A configuration as the client wrote it: any JSON value may sit at any key."""


class Block(BaseModel):
    """A block of the configuration: unknown fields refused, no conversion between types, numbers finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Flaw:
    """One broken rule that spans fields.

    about: fields that are missing or wrong; a misspelled key that resembles one of them is named as the cause.
    """

    loc: Loc
    code: str
    fault: str
    remedy: str
    value: Any = None
    about: tuple[Loc, ...] = ()

    def line(self) -> InitErrorDetails:
        """The flaw in the form that a validation error carries."""
        context = {"fault": self.fault, "remedy": self.remedy, "about": self.about}
        return InitErrorDetails(type=flaw_error(self.code, context), loc=self.loc, input=self.value)


def flaw_error(code: str, context: dict[str, Any]) -> PydanticCustomError:
    """A validation error whose context holds the `fault` and its `remedy`."""
    return PydanticCustomError(code, "{fault}", context)


def refuse(code: str, fault: str, remedy: str) -> PydanticCustomError:
    """A validation error for the field at hand, to be raised by its validator."""
    return flaw_error(code, {"fault": fault, "remedy": remedy, "about": ()})


def nearest(name: object, known: Any, count: int = 3) -> list[str]:
    """Up to `count` known names that resemble `name`, best first; case, hyphens and underscores do not matter."""
    if not isinstance(name, str):
        return []
    folded: dict[str, str] = {}
    for each in known:
        folded.setdefault(_fold(each), each)
    return [folded[key] for key in get_close_matches(_fold(name[:200]), folded, n=count, cutoff=0.5)]


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotation: the value must be one of `choices`, of the same type (an int may stand for a float)."""

    choices: tuple[Any, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Plain validation in Python, an enum in the JSON schema."""
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The closed list of choices."""
        kind = {str: "string", int: "integer", float: "number"}[type(self.choices[0])]
        return {"type": kind, "enum": list(self.choices)}

    def check(self, value: Any) -> Any:
        """The value in its canonical type.

        Raises: PydanticCustomError that lists the choices and names the nearest.
        """
        for choice in self.choices:
            if value == choice and _same_kind(value, choice):
                return choice
        legal = ", ".join(str(choice) for choice in self.choices)
        raise refuse("not_a_choice", "is none of the choices", self._remedy(value, legal))

    def _remedy(self, value: Any, legal: str) -> str:
        for alias, meant in self.aliases:
            if isinstance(value, str) and _fold(value) == _fold(alias):
                return f"write {meant!r}"
        close = nearest(value, [choice for choice in self.choices if isinstance(choice, str)], 1)
        return f"did you mean {close[0]!r}? Use one of {legal}" if close else f"use one of {legal}"


@dataclass(frozen=True, slots=True)
class Checked:
    """Annotation: the value is what `check` makes of it; `schema` tells readers of the contract what it accepts."""

    check: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Plain validation; serialized as whatever the value is."""
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema as given."""
        return self.schema()


def _same_kind(value: Any, choice: Any) -> bool:
    if isinstance(choice, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(choice)


def mapping_at(document: Document, *path: str) -> Document:
    """The mapping at a path of a raw document; empty where something else is found."""
    here: Any = document
    for key in path:
        here = here.get(key) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else {}


def is_set(block: Document, field: str) -> bool:
    """Whether the client gave the field a value (null means unset)."""
    return block.get(field) is not None


Rule = Callable[[Document], list[Flaw]]
"""A rule over the raw document: it must not fail on any JSON value, however wrong."""
