"""From a validation error to faults: pointer, value, what is wrong, and what would be right."""

import math
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from app.schemas.adapters import ADAPTERS
from app.schemas.baseline import Baseline, BaselineRole, BaselineRouter
from app.schemas.block import Loc, nearest
from app.schemas.goal import Goal, Sla
from app.schemas.parallel import PinnedPair, PinnedRole
from app.schemas.presets import FpmSampling, LoadPredictor, LoadSensitivity, ScalingPolicy
from app.schemas.search_space import SearchSpace
from app.schemas.study import SmartSearchConfig, pointer_of
from app.schemas.sweep import Sweep
from app.schemas.workload import Workload

MAX_FAULTS = 100
"""Faults listed in one answer; the last one then counts the rest."""

_MAX_TEXT = 200
_MAX_ITEMS = 20


class Fault(BaseModel):
    """One fault of a document.

    pointer: RFC 6901, empty for the document itself. caused_by: pointer of the misspelled key that explains it.
    """

    model_config = ConfigDict(frozen=True)

    pointer: str
    value: Any
    fault: str
    remedy: str
    caused_by: str | None = None


def faults(error: ValidationError) -> list[Fault]:
    """Every fault, misspelled keys first, faults that they caused last."""
    lines = error.errors(include_url=False)
    unknown = [line for line in lines if line["type"] in _UNKNOWN][:MAX_FAULTS]
    meant = {(*line["loc"][:-1], name): line["loc"] for line in unknown if (name := _meant(line["loc"])) is not None}
    found = [
        _fault(line, meant)
        for line in [*unknown, *(each for each in lines if each["type"] not in _UNKNOWN)][:MAX_FAULTS]
    ]
    ordered = sorted(_distinct(found), key=lambda fault: fault.caused_by is not None)
    if len(lines) <= MAX_FAULTS:
        return ordered
    remedy = "correct those listed and submit again"
    return [*ordered, Fault(pointer="", value=None, fault=f"{len(lines) - MAX_FAULTS} more faults", remedy=remedy)]


def _distinct(found: Iterable[Fault]) -> list[Fault]:
    return list({(fault.pointer, fault.fault): fault for fault in found}.values())


_UNKNOWN = frozenset({"extra_forbidden"})

_BLOCKS: dict[Loc, tuple[type[BaseModel], ...]] = {
    (): (SmartSearchConfig,),
    ("search_space",): (SearchSpace,),
    ("search_space", "parallel_configs"): (PinnedRole, PinnedPair),
    ("search_space", "parallel_configs", "prefill"): (PinnedRole,),
    ("search_space", "parallel_configs", "decode"): (PinnedRole,),
    ("search_space", "planner_scaling_policy"): (ScalingPolicy,),
    ("search_space", "planner_fpm_sampling"): (FpmSampling,),
    ("search_space", "planner_load_sensitivity"): (LoadSensitivity,),
    ("search_space", "load_predictor_candidates"): (LoadPredictor,),
    ("workload",): (Workload,),
    ("goal",): (Goal,),
    ("goal", "sla"): (Sla,),
    ("sweep",): (Sweep,),
    ("baseline",): (Baseline,),
    ("baseline", "agg"): (BaselineRole,),
    ("baseline", "prefill"): (BaselineRole,),
    ("baseline", "decode"): (BaselineRole,),
    ("baseline", "router"): (BaselineRouter,),
}


def _block(loc: Loc) -> Loc:
    """The block that a key at `loc` sits in: list indices and the adapter's own path removed."""
    parent = tuple(part for part in loc[:-1] if isinstance(part, str))
    if parent[:1] == ("adapters",) and len(parent) >= 4:
        flat = ADAPTERS.get(parent[1], {}).get(parent[3], parent[3])
        return ("search_space", flat)
    return parent


def _names(block: Loc) -> list[str]:
    names = [name for model in _BLOCKS.get(block, ()) for name in model.model_fields]
    return [*names, "adapters"] if block == () else names


def _meant(loc: Loc) -> str | None:
    close = nearest(loc[-1], _names(_block(loc)), 1)
    return close[0] if close else None


def _elsewhere(name: object) -> str | None:
    """The dotted place of a field of that very name in another block."""
    for block in _BLOCKS:
        if len(block) <= 2 and name in _names(block):
            return ".".join(str(part) for part in (*block, name))
    return None


def _fault(line: Any, meant: dict[Loc, Loc]) -> Fault:
    loc, context = line["loc"], line.get("ctx", {})
    if line["type"] in _UNKNOWN:
        text, remedy = "is not a known field", _unknown_remedy(loc)
        return Fault(pointer=pointer_of(loc), value=json_safe(line["input"]), fault=text, remedy=remedy)
    value = None if line["type"] == "missing" else json_safe(line["input"])
    about = context.get("about", ()) or ((loc,) if line["type"] == "missing" else ())
    cause = next((meant[each] for each in about if each in meant), None)
    return Fault(
        pointer=pointer_of(loc),
        value=value,
        fault=_text(line),
        remedy=context.get("remedy") or _remedy(line["type"], context, loc, line["input"]),
        caused_by=None if cause is None else pointer_of(cause),
    )


def _unknown_remedy(loc: Loc) -> str:
    home = _elsewhere(loc[-1])
    if home is not None:
        return f"did you mean {home!r}?"
    close = _meant(loc)
    if close is not None:
        return f"did you mean {close!r}?"
    names = _names(_block(loc))
    return f"remove it; known here: {', '.join(names[:_MAX_ITEMS])}" if names else "remove it"


def _text(line: Any) -> str:
    fixed = {"missing": "is required", "too_short": "is empty", "model_type": "is not an object"}.get(line["type"])
    return fixed or str(line["msg"]).replace("Input should be", "should be", 1)


_REMEDIES = {
    "missing": "give it",
    "int_type": "write a whole number without quotes, fraction or exponent",
    "float_type": "write a number without quotes",
    "bool_type": "write true or false",
    "string_type": "write a string",
    "list_type": "write a list, in brackets",
    "finite_number": "write a finite number; NaN and Infinity are not JSON",
    "too_short": "name at least one",
    "model_type": "write an object",
    "model_attributes_type": "write an object",
    "dict_type": "write an object",
}


def _remedy(kind: str, context: dict[str, Any], loc: Loc, value: Any) -> str:
    """What would be right, from pydantic's own kind of error."""
    if kind == "list_type" and isinstance(value, str | int | float):
        return f"write a list: [{json_safe(value)}]"
    if kind == "int_type" and isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return f"write {int(value)}"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return f"write the number without quotes; got the string {json_safe(value)!r}"
    limits = {
        "gt": "above",
        "ge": "at least",
        "lt": "below",
        "le": "at most",
        "max_length": "at most",
        "min_length": "at least",
    }
    said = [f"{word} {context[key]}" for key, word in limits.items() if key in context]
    if kind in _REMEDIES:
        return _REMEDIES[kind]
    return f"use {' and '.join(said)}" if said else f"correct {loc[-1] if loc else 'the document'}"


def json_safe(value: Any, depth: int = 3) -> Any:
    """The value as strict JSON can carry it: non-finite numbers as text, long things cut, deep things abridged."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()
        return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
    if isinstance(value, dict):
        return {str(key)[:_MAX_TEXT]: _inner(each, depth) for key, each in list(value.items())[:_MAX_ITEMS]}
    if isinstance(value, list | tuple):
        return [_inner(each, depth) for each in value[:_MAX_ITEMS]]
    return json_safe(str(value))


def _inner(value: Any, depth: int) -> Any:
    if depth <= 0 and isinstance(value, dict | list | tuple):
        return "…"
    return json_safe(value, depth - 1)
