"""What an optimizer sees of a pool of parallel configurations, and how its wish becomes a configuration.

Source: search.md, section 2.5; probes S05 to S07. A request names continuous or categorical parameters; projection
picks the pool's nearest entry. History never matters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workers.search.shapes import RoleConfig

Entry = tuple[RoleConfig, ...]
"""One role for agg, (prefill, decode) for disagg."""

Value = float | str


@dataclass(frozen=True, slots=True)
class Latent:
    """One parameter. Numeric ones have `low` and `high`; `choices` are the sizes or the categories of the pool."""

    name: str
    default: Value
    choices: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether the pool leaves nothing to choose."""
        return len(self.choices) == 1 or (not self.choices and self.low == self.high)


@dataclass(frozen=True, slots=True)
class Projection:
    """The chosen entry, its squared distance from the request, and whether a wished mode was not to be had."""

    entry: Entry
    distance: float
    mode_projected: bool


class LatentSpace:
    """Latent parameters of one branch's pool."""

    def __init__(self, mode: str, pool: Sequence[Entry], gpu_budget: int, is_moe: bool) -> None:
        self._pool = list(pool)
        roles = ("agg",) if mode == "agg" else ("prefill", "decode")
        self._measures = _numeric(roles, gpu_budget)
        self._modes = _categorical(roles, is_moe)
        self.parameters = [
            *(_latent(name, measure, self._pool) for name, measure in self._measures.items()),
            *(_category(name, mode_of, order, self._pool) for name, (mode_of, order) in self._modes.items()),
        ]

    @property
    def defaults(self) -> dict[str, Value]:
        """Every parameter at its default."""
        return {parameter.name: parameter.default for parameter in self.parameters}

    @property
    def constants(self) -> dict[str, Value]:
        """Parameters with a single value, which no optimizer needs to see."""
        return {parameter.name: parameter.default for parameter in self.parameters if parameter.is_constant}

    def project(self, request: Mapping[str, Value], allowed: Sequence[Entry] | None = None) -> Projection:
        """The entry nearest to the request, missing parameters at their defaults.

        Args: allowed, the entries of the chosen backend (the whole pool if None); spans are taken over it.
        Raises: ValueError if `allowed` is empty.
        """
        pool = self._pool if allowed is None else list(allowed)
        if not pool:
            raise ValueError("no configuration to project to")
        wish = {**self.defaults, **request}
        mismatches = [self._mismatches(entry, wish) for entry in pool]
        fewest = min(mismatches)
        spans = {name: _span(measure, pool, name) for name, measure in self._measures.items()}
        kept = [entry for entry, count in zip(pool, mismatches, strict=True) if count == fewest]
        best = min(kept, key=lambda entry: (self._distance(entry, wish, spans), entry))
        return Projection(best, self._distance(best, wish, spans), fewest > 0)

    def _mismatches(self, entry: Entry, wish: Mapping[str, Value]) -> int:
        return sum(mode_of(entry) != wish[name] for name, (mode_of, _) in self._modes.items())

    def _distance(self, entry: Entry, wish: Mapping[str, Value], spans: Mapping[str, float]) -> float:
        total = 0.0
        for name, measure in self._measures.items():
            if spans[name] > 0:
                total += ((_scaled(name, measure(entry)) - _scaled(name, float(wish[name]))) / spans[name]) ** 2
        return total


Measure = Callable[[Entry], float]
ModeOf = Callable[[Entry], str]


def _numeric(roles: Sequence[str], gpu_budget: int) -> dict[str, Measure]:
    def used_ratio(entry: Entry) -> float:
        return sum(role.gpus for role in entry) / gpu_budget

    def prefill_share(entry: Entry) -> float:
        return entry[0].gpus / sum(role.gpus for role in entry)

    def engine_gpus(index: int) -> Measure:
        return lambda entry: float(entry[index].engine_gpus)

    measures: dict[str, Measure] = {"used_gpu_ratio": used_ratio}
    if len(roles) == 2:
        measures["prefill_gpu_share"] = prefill_share
    for index, role in enumerate(roles):
        measures[f"{role}_num_gpus_per_engine_target"] = engine_gpus(index)
    return measures


def _categorical(roles: Sequence[str], is_moe: bool) -> dict[str, tuple[ModeOf, tuple[str, str]]]:
    def attention(index: int) -> ModeOf:
        return lambda entry: "dp" if entry[index].attention_dp > 1 else "tp"

    def ffn(index: int) -> ModeOf:
        return lambda entry: "ep" if entry[index].moe_ep > 1 else "tp"

    modes: dict[str, tuple[ModeOf, tuple[str, str]]] = {}
    for index, role in enumerate(roles):
        modes[f"{role}_attention_mode"] = (attention(index), ("tp", "dp"))
        if is_moe:
            modes[f"{role}_ffn_mode"] = (ffn(index), ("ep", "tp"))
    return modes


def _is_size(name: str) -> bool:
    return name.endswith("_num_gpus_per_engine_target")


def _scaled(name: str, value: float) -> float:
    return math.log2(value) if _is_size(name) else value


def _span(measure: Measure, pool: Sequence[Entry], name: str) -> float:
    values = [_scaled(name, measure(entry)) for entry in pool]
    return max(values) - min(values)


def _latent(name: str, measure: Measure, pool: Sequence[Entry]) -> Latent:
    values = sorted({measure(entry) for entry in pool})
    low, high = values[0], values[-1]
    if _is_size(name):
        # Natural logarithms, so that rounding settles ties as the reference does: among 1, 2, 4, 8 it is 4 (S05).
        middle = math.log(math.sqrt(low * high))
        default = min(values, key=lambda size: (abs(math.log(size) - middle), size))
        return Latent(name, default, tuple(values), low, high, log=True)
    wanted = 1.0 if name == "used_gpu_ratio" else 0.5
    return Latent(name, min(max(wanted, low), high), (), low, high)


def _category(name: str, mode_of: ModeOf, order: tuple[str, str], pool: Sequence[Entry]) -> Latent:
    present = {mode_of(entry) for entry in pool}
    choices = tuple(choice for choice in order if choice in present)
    return Latent(name, choices[0], choices)
