"""What an optimizer sees of one branch, and the candidate that its wish stands for.

Source: search.md, sections 2.5 and 4.2. Latent parameters stand for the parallel configurations; every other knob with
a choice is a parameter of its own. Text is categorical, numbers are discrete, composite knobs go by their index, and a
range of KV loads is a float. A knob without a choice is none.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from app.schemas.deployment import RouterConfig
from app.schemas.presets import FpmSampling, LoadSensitivity, ScalingPolicy
from workers.search.knobs import ROLES, distinct
from workers.search.latent import Entry, LatentSpace, Value
from workers.search.space import Space

_BACKEND, _ROUTER_MODE, _KV_LOAD = "backend", "router_mode", "kv_load_ratio"
_LIMITS = ("max_num_batched_tokens", "max_num_seqs")
_WEIGHTS = {
    "overlap_score_credit": "overlap_score_credit",
    "prefill_load_scale": "prefill_load_scale",
    "router_temperature": "temperature",
    "host_cache_hit_weight": "host_cache_hit_weight",
    "disk_cache_hit_weight": "disk_cache_hit_weight",
}
_PLANNER_PARTS = {
    "planner_scaling_policy": tuple(ScalingPolicy.model_fields),
    "planner_fpm_sampling": tuple(FpmSampling.model_fields),
    "planner_load_sensitivity": tuple(LoadSensitivity.model_fields),
}


class Place(NamedTuple):
    """A candidate of the branch: its number without the load, and the KV load ratio where a range is searched."""

    number: int
    ratio: float | None


class Parameters:
    """The parameters of one branch."""

    def __init__(self, space: Space, number: int, is_moe: bool) -> None:
        self._branch, self._range = space.branches[number], space.config.workload.kv_load_range
        branch = self._branch
        self._pool: list[Entry] = [tuple(branch.roles[at] for at in entry) for entry in branch.entries.tolist()]
        self._latent = LatentSpace(branch.mode, self._pool, space.config.search_space.gpu_budget, is_moe)
        self._cells = {(self._pool[entry], int(kind)): at for at, (entry, kind) in enumerate(branch.cells.tolist())}
        self._planners = [_planner_parts(planner) for planner in branch.planners]
        self._parts = {
            part: distinct(parts[at] for parts in self._planners if parts[at] is not None or part == _POLICY)
            for at, part in enumerate(_PLANNER_PARTS)
        }

    def described(self) -> list[dict[str, Any]]:
        """Every parameter as the optimizer's process reads it."""
        found = [self._backends(), *map(_latent_document, self._latent.parameters), *self._limits(), *self._routing()]
        found += [_categorical(name, [str(at) for at in range(len(parts))]) for name, parts in self._parts.items()]
        if self._range is not None:
            found.append(_float(_KV_LOAD, *self._range, sum(self._range) / 2))
        return [each for each in found if each is not None]

    def place(self, wish: Mapping[str, Value]) -> Place:
        """The candidate nearest to a wish; what it leaves out takes its default."""
        branch = self._branch
        kind = branch.backends.index(wish.get(_BACKEND, self._known_backends()[0]))
        allowed = [self._pool[entry] for entry, backend in branch.cells.tolist() if backend == kind]
        entry = self._latent.project(wish, allowed).entry
        digits = (self._cells[entry, kind], self._batching(wish), self._router(wish), self._planner(wish))
        index = 0
        for digit, count in zip(digits, branch.radix, strict=False):
            index = index * count + digit
        return Place(index, None if self._range is None else float(wish.get(_KV_LOAD, sum(self._range) / 2)))

    def _known_backends(self) -> tuple[str, ...]:
        return distinct(self._branch.backends[kind] for _, kind in self._branch.cells.tolist())

    def _backends(self) -> dict[str, Any] | None:
        return _categorical(_BACKEND, self._known_backends())

    def _limits(self) -> list[dict[str, Any] | None]:
        found = []
        for at, role in enumerate(ROLES[self._branch.mode]):
            limits = [each[at] for each in self._branch.batching]
            found += [_discrete(f"{role}_{name}", [getattr(one, name) for one in limits]) for name in _LIMITS]
        return found

    def _batching(self, wish: Mapping[str, Value]) -> int:
        roles = ROLES[self._branch.mode]
        first = self._branch.batching[0]
        wanted = [
            int(wish.get(f"{role}_{name}", getattr(own, name)))
            for role, own in zip(roles, first, strict=True)
            for name in _LIMITS
        ]
        flat = [[getattr(own, name) for own in each for name in _LIMITS] for each in self._branch.batching]
        return flat.index(wanted)

    def _weights(self) -> list[RouterConfig]:
        return [router for router in self._branch.routers if router.mode == "kv_router"]

    def _routing(self) -> list[dict[str, Any] | None]:
        modes = distinct(router.mode for router in self._branch.routers)
        values = {name: [getattr(router, field) for router in self._weights()] for name, field in _WEIGHTS.items()}
        known = [_discrete(name, found) for name, found in values.items() if None not in found]
        return [_categorical(_ROUTER_MODE, modes), *known]

    def _router(self, wish: Mapping[str, Value]) -> int:
        """A round robin emits no weights, whatever was wished."""
        routers = self._branch.routers
        mode = wish.get(_ROUTER_MODE, routers[0].mode)
        kept = [router for router in routers if router.mode == mode]
        for name, field in _WEIGHTS.items():
            if mode == "kv_router" and name in wish:
                kept = [router for router in kept if getattr(router, field) == wish[name]]
        return routers.index(kept[0])

    def _planner(self, wish: Mapping[str, Value]) -> int:
        """The first planner of the wished policy that has the other wished parts; a static policy has none."""
        wanted = [parts[int(wish.get(name, 0))] if parts else None for name, parts in self._parts.items()]
        agreeing = [
            (parts[0] != wanted[0], -sum(one == other for one, other in zip(parts, wanted, strict=True)))
            for parts in self._planners
        ]
        return agreeing.index(min(agreeing))


_POLICY = next(iter(_PLANNER_PARTS))


def _planner_parts(planner: Mapping[str, Any] | None) -> tuple[Hashable, ...]:
    """Policy, sampling and sensitivity of a planner, None each for a static one."""
    if planner is None:
        return (None,) * len(_PLANNER_PARTS)
    return tuple(tuple(planner.get(field) for field in fields) for fields in _PLANNER_PARTS.values())


def _latent_document(parameter: Any) -> dict[str, Any] | None:
    if parameter.log:
        return _discrete(parameter.name, parameter.choices, parameter.default, log=True)
    if parameter.choices:
        return _categorical(parameter.name, parameter.choices)
    return _float(parameter.name, parameter.low, parameter.high, parameter.default)


def _categorical(name: str, values: Sequence[str]) -> dict[str, Any] | None:
    if len(values) < 2:
        return None
    return {"name": name, "kind": "categorical", "values": list(values), "default": values[0]}


def _discrete(
    name: str, values: Sequence[float], default: float | None = None, log: bool = False
) -> dict[str, Any] | None:
    kept = sorted({float(value) for value in values})
    if len(kept) < 2:
        return None
    first = float(values[0] if default is None else default)
    return {"name": name, "kind": "discrete", "values": kept, "default": first, "log": log}


def _float(name: str, low: float, high: float, default: float) -> dict[str, Any] | None:
    return None if low == high else {"name": name, "kind": "float", "low": low, "high": high, "default": default}
