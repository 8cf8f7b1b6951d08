"""`adapters`: the other spelling of the router and planner knobs, mapped onto the flat one before anything is checked.

Source: search.md, section 1.6.
"""

from dataclasses import dataclass, field
from typing import Any

from app.schemas.block import Document, Flaw, Loc, is_set, mapping_at, nearest

ROUTER_FIELDS = {
    "mode": "router_mode",
    "overlap_score_credit": "overlap_score_credit",
    "prefill_load_scale": "prefill_load_scale",
    "temperature": "router_temperature",
    "prefill_load_model_type": "prefill_load_model_type",
}
PLANNER_FIELDS = {
    "scaling_policy": "planner_scaling_policy",
    "fpm_sampling": "planner_fpm_sampling",
    "load_sensitivity": "planner_load_sensitivity",
    "load_predictor": "load_predictor_candidates",
    "min_endpoint": "min_endpoint",
    "prefill_min_endpoint": "prefill_min_endpoint",
    "decode_min_endpoint": "decode_min_endpoint",
    "max_num_gpus": "gpu_budget",
    "max_throughput_scaling_replicas": "max_throughput_scaling_replicas",
}
ADAPTERS = {"dynamo.router": ROUTER_FIELDS, "dynamo.planner": PLANNER_FIELDS}

_SWITCHED_OFF = {
    "scaling_policy": ["disabled"],
    "fpm_sampling": ["default"],
    "load_sensitivity": ["default"],
    "load_predictor": ["arima_raw"],
}
"""What `false` means: no scaling; for the other composites the planner's own default, not searched."""


@dataclass(slots=True)
class Flattened:
    """A document in flat form.

    homes: where the client wrote a flat field, for pointers into the document as it came.
    """

    document: Document
    homes: dict[Loc, Loc] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)

    def home(self, loc: Loc) -> Loc:
        """The client's own place of a flat location."""
        for length in range(len(loc), 0, -1):
            if (found := self.homes.get(loc[:length])) is not None:
                return found + loc[length:]
        return loc


def flatten(document: Document) -> Flattened:
    """Moves the knobs of `adapters` into `search_space`; a knob given in both forms is a flaw."""
    if "adapters" not in document:
        return Flattened(document)
    rest = {key: value for key, value in document.items() if key != "adapters"}
    result = Flattened(rest)
    adapters = document["adapters"]
    if adapters is None:
        return result
    if not isinstance(adapters, dict):
        remedy = 'write {"dynamo.router": {"search_space": {…}}}'
        result.flaws.append(Flaw(("adapters",), "not_an_object", "is not an object", remedy, adapters))
        return result
    space = dict(mapping_at(rest, "search_space"))
    for name, adapter in adapters.items():
        _one_adapter(str(name), adapter, space, result)
    if isinstance(rest.get("search_space"), dict):
        rest["search_space"] = space
    return result


def _one_adapter(name: str, adapter: Any, space: dict[str, Any], result: Flattened) -> None:
    at: Loc = ("adapters", name)
    fields = ADAPTERS.get(name)
    if fields is None:
        result.flaws.append(_unknown(at, name, ADAPTERS, adapter))
        return
    knobs = adapter.get("search_space", {}) if isinstance(adapter, dict) else None
    if not isinstance(adapter, dict) or not isinstance(knobs, dict):
        result.flaws.append(Flaw(at, "not_an_object", "is not an object", "write {search_space: {…}}", adapter))
        return
    for key in adapter:
        if key != "search_space":
            result.flaws.append(_unknown((*at, str(key)), str(key), ["search_space"], adapter[key]))
    result.flaws += _in_both_forms(name, fields, space)
    for key, value in knobs.items():
        here = (*at, "search_space", str(key))
        if key not in fields:
            result.flaws.append(_unknown(here, str(key), fields, value))
        elif value is not None:
            _move(here, str(key), fields[key], value, space, result)


def _move(here: Loc, key: str, flat: str, value: Any, space: dict[str, Any], result: Flattened) -> None:
    if flat == "gpu_budget" and is_set(space, flat):
        if space[flat] != value:
            fault = f"differs from search_space.gpu_budget ({space[flat]!r})"
            result.flaws.append(Flaw(here, "two_budgets", fault, "give the budget once", value))
        return
    if key in _SWITCHED_OFF and value is False:
        value = _SWITCHED_OFF[key]
    if key in _SWITCHED_OFF and isinstance(value, dict) and set(value) == {"preset"}:
        if value["preset"] == "default":
            return
        here, value = (*here, "preset"), value["preset"]
    if flat not in space:
        space[flat] = value
        result.homes[("search_space", flat)] = here


def _in_both_forms(name: str, fields: dict[str, str], space: Document) -> list[Flaw]:
    flaws = []
    for key, flat in fields.items():
        if flat == "gpu_budget" or not is_set(space, flat) or (name == "dynamo.planner" and flat == "min_endpoint"):
            continue
        home = f"adapters.{name}.search_space.{key}"
        fault = f"is a flat knob beside the adapter {name}; its home is {home}"
        flaws.append(Flaw(("search_space", flat), "two_forms", fault, f"move it to {home}", space[flat]))
    return flaws


def _unknown(at: Loc, name: str, known: Any, value: Any) -> Flaw:
    close = nearest(name, known, 1)
    remedy = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}"
    return Flaw(at, "unknown_field", "is not a known field", remedy, value)
