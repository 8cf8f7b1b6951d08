"""The whole space of a study as index arrays: branches, pools per backend, knobs, and what was left out and why.

A branch is one deployment mode. Its candidates are numbered in mixed radix: cell (a pool entry on a backend), batching,
router, planner, load, the last varying fastest; a candidate becomes a Deployment only when it is asked for.

Source: search.md, section 2; service.md, section 2 (plan).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from app.errors import FieldFault, InvalidRequestError
from app.schemas.deployment import Backend, Deployment, Mode, ParallelShape, RoleDeployment, RouterConfig
from app.schemas.search_space import SearchSpace
from app.schemas.study import SmartSearchConfig
from workers.search.facts import Facts
from workers.search.knobs import (
    ROLES,
    Batching,
    backend_name,
    batchings,
    distinct,
    loads,
    routers,
    searched_modes,
)
from workers.search.pins import pinned_entries, pinned_shapes
from workers.search.planners import PlannerFields, Predictors, planners
from workers.search.shapes import RoleConfig, all_shapes, disagg_pairs, role_configs
from workers.search.sieve import Excluded, Sieve


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Configurations of one branch on one backend after each filter, in this order."""

    backend: Backend
    enumerated: int
    backend_rules: int
    kv_capacity: int
    perf_data: int


@dataclass(frozen=True, slots=True)
class Branch:
    """The candidates of one mode.

    roles:     the distinct role configurations of the pool.
    entries:   int32 [P, 1 or 2], indices into roles; (prefill, decode) if disaggregated.
    cells:     int32 [C, 2], (entry, backend) that may run.
    batching:  one choice per role of every element.
    """

    mode: Mode
    roles: tuple[RoleConfig, ...]
    entries: NDArray[np.int32]
    backends: tuple[Backend, ...]
    cells: NDArray[np.int32]
    batching: tuple[tuple[Batching, ...], ...]
    routers: tuple[RouterConfig, ...]
    planners: tuple[PlannerFields | None, ...]
    loads: tuple[float | None, ...]
    sizes: tuple[PoolSizes, ...]

    @property
    def radix(self) -> tuple[int, int, int, int, int]:
        """Cells, batchings, routers, planners, loads."""
        return (len(self.cells), len(self.batching), len(self.routers), len(self.planners), len(self.loads))

    @property
    def size(self) -> int:
        """Candidates in all."""
        size = 1
        for count in self.radix:
            size *= count
        return size

    def gpus(self) -> NDArray[np.int64]:
        """GPUs of every pool entry: int64 [P]."""
        widths = np.array([role.gpus for role in self.roles], dtype=np.int64)
        return np.asarray(widths[self.entries].sum(axis=1)) if len(self.roles) else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Space:
    """All branches, in the client's order of modes, and what was left out of all of them."""

    config: SmartSearchConfig
    branches: tuple[Branch, ...]
    excluded: tuple[Excluded, ...]

    @property
    def size(self) -> int:
        """Candidates over all branches; a range of KV loads counts with its two ends."""
        return sum(branch.size for branch in self.branches)

    def deployment(self, branch: int, index: int, kv_load_ratio: float | None = None) -> Deployment:
        """Candidate `index` of a branch; a given ratio replaces the one of its index."""
        chosen = self.branches[branch]
        digits: list[int] = []
        for count in reversed(chosen.radix):
            index, digit = divmod(index, count)
            digits.append(digit)
        load, planner, router, batching, cell = digits
        entry, backend = (int(value) for value in chosen.cells[cell])
        space = self.config.search_space
        pools = {
            role: _pool(space, role, chosen.roles[at], limits)
            for role, at, limits in zip(
                ROLES[chosen.mode], chosen.entries[entry], chosen.batching[batching], strict=True
            )
        }
        return Deployment(
            mode=chosen.mode,
            backend=chosen.backends[backend],
            model_name=space.model_name,
            hardware_sku=space.hardware_sku,
            router=chosen.routers[router],
            planner=chosen.planners[planner],
            aic_nextn=space.aic_nextn,
            context_length=space.context_length,
            kv_load_ratio=chosen.loads[load] if kv_load_ratio is None else kv_load_ratio,
            **pools,
        )


def _pool(space: SearchSpace, role: str, config: RoleConfig, limits: Batching) -> RoleDeployment:
    return RoleDeployment(
        shape=config.shape,
        replicas=config.replicas,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        block_size=getattr(space, f"{role}_block_size"),
        gpu_memory_utilization=getattr(space, f"{role}_gpu_memory_utilization"),
        # Decode engines never cache prefixes, whatever is written (search.md, section 1.1).
        enable_prefix_caching=role != "decode" and getattr(space, f"{role}_enable_prefix_caching"),
    )


def build_space(config: SmartSearchConfig, facts: Facts, predictors: Predictors | None = None) -> Space:
    """Every candidate of a configuration.

    Args: predictors, the load predictor chosen per throughput interval.
    Raises: InvalidRequestError for a pool too large to hold.
    """
    space = config.search_space
    backends = distinct(backend_name(name) for name in space.backend)
    shapes = pinned_shapes(space) or all_shapes(facts.is_moe, space.gpu_budget)
    sieves = [Sieve.of(backend, shapes, space, facts) for backend in backends]
    excluded = tuple(each for sieve in sieves for each in sieve.excluded)
    branches = []
    for mode in searched_modes(space):
        branch = _branch(config, mode, sieves, predictors or {})
        if branch.size > 0:
            branches.append(branch)
    return Space(config, tuple(branches), excluded)


def _branch(config: SmartSearchConfig, mode: Mode, sieves: Sequence[Sieve], predictors: Predictors) -> Branch:
    space = config.search_space
    roles, entries = _pool_entries(space, mode, distinct(shape for sieve in sieves for shape in sieve.perf_data))
    allowed = np.zeros((len(entries), len(sieves)), dtype=np.bool_)
    for column, sieve in enumerate(sieves):
        kept = set(sieve.perf_data)
        runs = np.array([role.shape in kept for role in roles], dtype=np.bool_)
        allowed[:, column] = runs[entries].all(axis=1) if len(roles) else False
    used = allowed.any(axis=1)
    entries, allowed = entries[used], allowed[used]
    choices = [batchings(space, role) for role in ROLES[mode]]
    return Branch(
        mode=mode,
        roles=roles,
        entries=entries,
        backends=tuple(sieve.backend for sieve in sieves),
        cells=np.argwhere(allowed).astype(np.int32),
        batching=tuple(product(*choices)),
        routers=routers(space),
        planners=planners(config, predictors),
        loads=loads(config),
        sizes=tuple(PoolSizes(s.backend, *(_pool_size(space, mode, stage) for stage in s.stages())) for s in sieves),
    )


def _pool_size(space: SearchSpace, mode: Mode, shapes: Sequence[ParallelShape]) -> int:
    return len(_pool_entries(space, mode, shapes)[1])


def _pool_entries(
    space: SearchSpace, mode: Mode, shapes: Sequence[ParallelShape]
) -> tuple[tuple[RoleConfig, ...], NDArray[np.int32]]:
    """Role configurations and the pool's entries as indices into them."""
    if space.parallel_configs:
        return pinned_entries(space, set(shapes))
    lowest = space.min_gpu_budget or 1
    roles = role_configs(shapes, space.gpu_budget)
    if mode == "agg":
        kept = tuple(role for role in roles if role.gpus >= lowest)
        return kept, np.arange(len(kept), dtype=np.int32).reshape(-1, 1)
    try:
        return tuple(roles), disagg_pairs(roles, space.gpu_budget, lowest)
    except MemoryError as error:
        remedy = "lower gpu_budget, raise min_gpu_budget, or pin shapes in parallel_configs"
        raise InvalidRequestError(
            [FieldFault("/search_space/gpu_budget", space.gpu_budget, f"spans {error}", remedy)]
        ) from error
