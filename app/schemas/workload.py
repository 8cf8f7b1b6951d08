"""`workload`: the traffic that every candidate is replayed against.

Source: the traffic page (`Workload`), search.md section 1.4.
"""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from app.schemas.block import Block, Checked, Document, Flaw, OneOf, is_set, mapping_at, refuse

LOAD_FIELDS = ("request_rate", "concurrency", "kv_load_ratio")
REQUIRED_SYNTHETIC = ("isl", "osl", "num_request_ratio")
SYNTHETIC_FIELDS = ("isl", "osl", "request_rate", "concurrency", "kv_load_ratio", "num_request_ratio")
SHARED_SYNTHETIC_FIELDS = ("shared_prefix_ratio", "num_prefix_groups", "turns_per_session", "inter_turn_delay_ms")
ARRIVAL_FIELDS = ("arrival", "arrival_seed")

MAX_REQUESTS = 5_000_000
"""Limit of the service: requests in one replay (service.md, section 5)."""

_Tokens = Annotated[int, Field(gt=0, le=10_000_000)]
_InFlight = Annotated[int, Field(gt=0, le=MAX_REQUESTS)]
_Positive = Annotated[float, Field(gt=0)]


def _ratio(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse("not_a_number", "is not a number", "give a ratio such as 0.75, or a range [0.0, 1.0] under pareto")
    try:
        ratio = float(value)
    except OverflowError:
        ratio = float("inf")
    if not 0 <= ratio <= 1e6:
        raise refuse(
            "out_of_range",
            "is not a finite number from 0 upwards",
            "use a ratio from 0 to 1, or above 1 to oversubscribe",
        )
    return ratio


def _kv_load_ratio(value: Any) -> float | list[float] | None:
    """A ratio, or a range [min, max] with min < max."""
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        return _ratio(value)
    if len(value) != 2:
        raise refuse(
            "not_a_range", f"a range has exactly two values, not {len(value)}", "write [min, max], or one number"
        )
    low, high = _ratio(value[0]), _ratio(value[1])
    if not low < high:
        raise refuse("empty_range", "a range needs min < max", "write [min, max] in ascending order, or one number")
    return [low, high]


def _kv_load_schema() -> dict[str, Any]:
    number = {"type": "number", "minimum": 0}
    return {"anyOf": [number, {"type": "array", "items": number, "minItems": 2, "maxItems": 2}, {"type": "null"}]}


KvLoadRatio = Annotated[float | list[float] | None, Checked(_kv_load_ratio, _kv_load_schema)]


class Workload(Block):
    """Exactly one of four load shapes: a trace, a request rate, a concurrency, or a KV load."""

    isl: _Tokens | None = None
    osl: _Tokens | None = None
    concurrency: _InFlight | None = None
    kv_load_ratio: KvLoadRatio = None
    request_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    num_request_ratio: Annotated[float, Field(gt=0, le=1e9)] | None = None
    shared_prefix_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    num_prefix_groups: Annotated[int, Field(ge=0, le=MAX_REQUESTS)] = 0
    turns_per_session: Annotated[int, Field(gt=0, le=10_000)] = 1
    inter_turn_delay_ms: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    arrival: Annotated[str, OneOf(("constant", "poisson"))] = "constant"
    arrival_seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 42
    trace_path: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    trace_format: Annotated[str, StringConstraints(min_length=1, max_length=64)] = "mooncake"
    arrival_speedup_ratio: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    replay_concurrency: _InFlight | None = None

    @property
    def is_trace_based(self) -> bool:
        """Whether a recorded trace is replayed."""
        return self.trace_path is not None

    @property
    def kv_load_range(self) -> tuple[float, float] | None:
        """The searched range of `kv_load_ratio`, if it is one."""
        ratio = self.kv_load_ratio
        return (ratio[0], ratio[1]) if isinstance(ratio, list) else None


def with_default_load(document: Document) -> Document:
    """The document with `kv_load_ratio: [0.0, 1.0]` where a Pareto goal comes without any load."""
    workload = mapping_at(document, "workload")
    if mapping_at(document, "goal").get("target") != "pareto" or not isinstance(document.get("workload"), dict):
        return document
    if any(is_set(workload, field) for field in (*LOAD_FIELDS, "trace_path")):
        return document
    return {**document, "workload": {**workload, "kv_load_ratio": [0.0, 1.0]}}


def load_flaws(document: Document) -> list[Flaw]:
    """Exactly one load shape, with what it needs and nothing of the others."""
    workload = document.get("workload")
    if not isinstance(workload, dict):
        return []
    return _trace_flaws(workload) if is_set(workload, "trace_path") else _synthetic_flaws(workload)


def _trace_flaws(workload: Document) -> list[Flaw]:
    offenders = [field for field in SYNTHETIC_FIELDS if is_set(workload, field)]
    if not offenders:
        return []
    inert = [field for field in SHARED_SYNTHETIC_FIELDS if is_set(workload, field)]
    fault = f"trace_path selects a trace, which forbids the synthetic fields {', '.join(offenders)}"
    if inert:
        fault += f" (and {', '.join(inert)} would have no effect)"
    value = {field: workload[field] for field in ("trace_path", *offenders)}
    return [Flaw(("workload",), "trace_with_synthetic", fault, _removals(workload), value)]


def _synthetic_flaws(workload: Document) -> list[Flaw]:
    loads = [field for field in LOAD_FIELDS if is_set(workload, field)]
    flaws = []
    if len(loads) > 1:
        fault = f"{', '.join(loads)} are set together; exactly one of them is the load"
        value = {field: workload[field] for field in loads}
        flaws.append(Flaw(("workload",), "several_loads", fault, _removals(workload), value))
    elif not loads:
        about = tuple(("workload", field) for field in (*LOAD_FIELDS, "trace_path"))
        remedy = "set one of request_rate (open loop), concurrency or kv_load_ratio (closed loop), or trace_path"
        flaws.append(Flaw(("workload",), "no_load", "no load is set", remedy, None, about))
    flaws += [_missing(field) for field in REQUIRED_SYNTHETIC if not is_set(workload, field)]
    if is_set(workload, "replay_concurrency"):
        flaws.append(
            Flaw(
                ("workload", "replay_concurrency"),
                "trace_only",
                "caps a trace; this workload is synthetic",
                "use concurrency for a synthetic closed loop, or set trace_path",
                workload["replay_concurrency"],
            )
        )
    return flaws


def _missing(field: str) -> Flaw:
    at = ("workload", field)
    return Flaw(at, "missing", "is required for a synthetic workload", f"give {field}", None, (at,))


def _removals(workload: Document) -> str:
    """What to remove to arrive at each legal shape."""
    present = [field for field in ("trace_path", "replay_concurrency", *SYNTHETIC_FIELDS) if is_set(workload, field)]
    shapes = {
        "a trace": ("trace_path", "replay_concurrency"),
        "a request rate": ("request_rate", *REQUIRED_SYNTHETIC),
        "a concurrency": ("concurrency", *REQUIRED_SYNTHETIC),
        "a KV load": ("kv_load_ratio", *REQUIRED_SYNTHETIC),
    }
    ways = []
    for shape, kept in shapes.items():
        remove = ", ".join(field for field in present if field not in kept)
        add = ", ".join(field for field in kept if field not in present and field != "replay_concurrency")
        ways.append(f"for {shape} remove {remove or 'nothing'}" + (f" and set {add}" if add else ""))
    return "; ".join(ways)


def range_flaws(document: Document) -> list[Flaw]:
    """A range of KV loads is a dimension of a Pareto search only."""
    ratio = mapping_at(document, "workload").get("kv_load_ratio")
    if not isinstance(ratio, list) or mapping_at(document, "goal").get("target") == "pareto":
        return []
    remedy = "give one ratio, or set goal.target to pareto"
    at = ("workload", "kv_load_ratio")
    return [Flaw(at, "range_needs_pareto", "a range is searched only under goal.target pareto", remedy, ratio)]
