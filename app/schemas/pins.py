"""Rules for a pinned menu: one mode, shapes that a backend can run, and room in the GPU budget.

Source: search.md, section 2.4.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from app.catalog.snapshot import MODELS
from app.schemas.block import Document, Flaw, mapping_at
from app.schemas.deployment import ParallelShape
from app.schemas.parallel import Pin, PinnedPair, PinnedRole
from app.schemas.search_space import SearchSpace

_AT = ("search_space", "parallel_configs")
_PIN: TypeAdapter[PinnedRole | PinnedPair] = TypeAdapter(Pin)
_OTHER_MODE = {
    "agg": "write {tp: …, replicas: …}",
    "disagg": "write {prefill: {tp: …}, decode: {tp: …}}",
}
_SHAPES = "tp * attention_dp must equal moe_tp * moe_ep for a MoE model; a dense model has tp (and pp) only"


def pin_flaws(document: Document) -> list[Flaw]:
    """A pinned menu belongs to exactly one mode, every entry to that mode; some backend can run it, the budget holds it."""
    space = mapping_at(document, "search_space")
    pins = _value(space, "parallel_configs")
    if not isinstance(pins, list) or not pins:
        return []
    return [
        *_mode_flaws(_value(space, "deployment_mode"), pins),
        *(flaw for index, pin in enumerate(pins) for flaw in _entry_flaws(space, index, pin)),
    ]


def _value(space: Document, field: str) -> Any:
    """What the client wrote, or the default."""
    return space.get(field, SearchSpace.model_fields[field].default)


def _mode_flaws(modes: Any, pins: list[Any]) -> list[Flaw]:
    if not isinstance(modes, list):
        return []
    distinct = {mode for mode in modes if isinstance(mode, str)}
    if len(distinct) != 1:
        remedy = "name exactly one mode in deployment_mode, or leave parallel_configs out"
        return [Flaw(_AT, "pins_need_one_mode", "pinned shapes need exactly one deployment mode", remedy, pins)]
    mode = distinct.pop()
    return [
        Flaw((*_AT, index), "pin_of_other_mode", f"is a shape of the other mode than {mode}", _OTHER_MODE[mode], pin)
        for index, pin in enumerate(pins)
        if isinstance(pin, dict)
        and mode in _OTHER_MODE
        and (("prefill" in pin or "decode" in pin) != (mode == "disagg"))
    ]


def _entry_flaws(space: Document, index: int, pin: Any) -> Iterator[Flaw]:
    try:
        entry = _PIN.validate_python(pin)
    except ValidationError:
        return  # Its own fields are refused elsewhere.
    roles = [entry] if isinstance(entry, PinnedRole) else [entry.prefill, entry.decode]
    gpus = sum(role.shape.gpus * role.replicas for role in roles)
    most, least = _value(space, "gpu_budget"), _value(space, "min_gpu_budget")
    if type(most) is int and most > 0 and gpus > most:
        remedy = f"use fewer replicas or a smaller shape, or set gpu_budget to {gpus} or more"
        yield Flaw((*_AT, index), "pin_over_budget", f"takes {gpus} GPUs; gpu_budget is {most}", remedy, pin)
    elif type(least) is int and gpus < least:
        remedy = f"use more replicas or a larger shape, or set min_gpu_budget to {gpus} or less"
        yield Flaw((*_AT, index), "pin_under_budget", f"takes {gpus} GPUs; min_gpu_budget is {least}", remedy, pin)
    model, backends = _value(space, "model_name"), _value(space, "backend")
    if not isinstance(model, str) or model not in MODELS or not isinstance(backends, list):
        return
    is_moe, names = MODELS[model].is_moe, [name for name in backends if isinstance(name, str)]
    if names and not any(all(can_run(name, role.shape, is_moe) for role in roles) for name in names):
        fault = f"is a shape that none of {', '.join(names)} can run with this model"
        yield Flaw((*_AT, index), "pin_without_backend", fault, _SHAPES, pin)


def can_run(backend: str, shape: ParallelShape, is_moe: bool) -> bool:
    """Whether a backend can run a shape at all, with a model of this kind."""
    return backend_can_run(backend, shape) and _is_consistent(shape, is_moe)


def backend_can_run(backend: str, shape: ParallelShape) -> bool:
    """The backends' own rules; enumerated shapes break none of them, pinned ones may."""
    if backend == "trtllm":
        return not (shape.tp > 1 and shape.attention_dp > 1)
    if backend == "vllm":
        return not (shape.moe_tp > 1 and shape.moe_ep > 1)
    return True


def _is_consistent(shape: ParallelShape, is_moe: bool) -> bool:
    """Attention and experts use the same GPUs; a dense model has no experts to spread and no attention DP."""
    if not is_moe:
        return shape.attention_dp == shape.moe_tp == shape.moe_ep == 1
    return shape.tp * shape.attention_dp == shape.moe_tp * shape.moe_ep or shape.moe_tp == shape.moe_ep == 1
