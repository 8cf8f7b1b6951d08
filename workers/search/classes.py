"""Candidates that cannot differ in any outcome: one of each class is replayed, the rest is settled with it.

The representative of a class has the smallest canonical JSON, so no twin ranks before it: twins tie in every metric, in
GPUs and in moving parts, and such ties are settled by that text. Candidates of one parallel configuration, backend and
load are twins when

1. their limits differ only where they cannot bind. SGLang's chunk does not depend on `max_num_batched_tokens` at all,
   only its pool may. In a closed loop of C requests without shared tokens, at most C requests are in flight on a rank,
   so `max_num_seqs` acts as min(max_num_seqs, C); a pass schedules at most C (isl + osl) tokens, so a larger
   `max_num_batched_tokens` acts as that; C requests never hold more than C (ceil((isl + osl) / block_size) + 1) blocks,
   so a larger pool acts as that (without shared tokens a cached block is never hit).
2. their KV routers differ in weights, but every role has a single engine to route to.
3. their KV routers differ in `overlap_score_credit` alone, and no two prompts share a token: every overlap is 0.
4. their planners differ only in settings that their target never reads.

A planner that scales reads the engines' limits and may add engines: 2 leaves out the candidates that have one, and where one is
searched 1 is left out.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.schemas.deployment import ParallelShape, RouterConfig
from app.schemas.workload import Workload
from workers.capacity.kv_blocks import blocks_per_rank
from workers.errors import EvaluationError
from workers.search.candidate import canonical_json
from workers.search.facts import Facts
from workers.search.knobs import ROLES, Batching
from workers.search.planners import acting, scales
from workers.search.space import Branch, Space


@dataclass(frozen=True, slots=True)
class Classes:
    """Twins of one branch.

    batching:       int32 [C, L], the representative batching of every cell and batching.
    routing:        int32 [2, O], the representative option (router and planner) of each; row 0 where every role has one
                    engine, row 1 elsewhere.
    single:         bool [C], whether row 0 applies.
    """

    batching: NDArray[np.int32]
    routing: NDArray[np.int32]
    single: NDArray[np.bool_]


def shares_tokens(workload: Workload) -> bool:
    """Whether two requests may have a token in common."""
    if workload.is_trace_based or workload.turns_per_session > 1:
        return True
    return workload.shared_prefix_ratio > 0 and workload.num_prefix_groups > 0


def without_twins(branch: Branch) -> Classes:
    """Every candidate in a class of its own."""
    cells, _, routers, planners, _ = branch.radix
    return Classes(
        batching=_own_batching(branch),
        routing=np.broadcast_to(np.arange(routers * planners, dtype=np.int32), (2, routers * planners)),
        single=np.zeros(cells, dtype=np.bool_),
    )


def _own_batching(branch: Branch) -> NDArray[np.int32]:
    """Every batching for itself."""
    options = len(branch.batching)
    return np.broadcast_to(np.arange(options, dtype=np.int32), (len(branch.cells), options))


def classes(space: Space, number: int, facts: Facts) -> Classes:
    """The classes of branch `number`."""
    branch, workload = space.branches[number], space.config.workload
    scaled = any(scales(planner) for planner in branch.planners)
    engines = np.array([role.replicas * role.attention_dp for role in branch.roles], dtype=np.int64)
    single = (engines[branch.entries[branch.cells[:, 0]]] == 1).all(axis=1)
    return Classes(
        batching=_own_batching(branch) if scaled else _batching_classes(space, branch, facts),
        routing=np.array([_routing_classes(space, number, workload, alone) for alone in (True, False)], dtype=np.int32),
        single=single,
    )


def _batching_classes(space: Space, branch: Branch, facts: Facts) -> NDArray[np.int32]:
    """Representatives per role, put together: limits of different roles bind independently."""
    options = len(branch.batching)
    shapes = [role.shape for role in branch.roles]
    distinct_shapes = list(dict.fromkeys(shapes))
    shape_of = np.array([distinct_shapes.index(shape) for shape in shapes], dtype=np.int64)
    keys = np.column_stack([branch.cells[:, 1], shape_of[branch.entries[branch.cells[:, 0]]]])
    kinds, kind_of = np.unique(keys, axis=0, return_inverse=True)
    act = _Acting(space, branch.mode, facts)
    rows = [
        _representatives(branch.batching, act, branch.backends[kind[0]], [distinct_shapes[at] for at in kind[1:]])
        for kind in kinds.tolist()
    ]
    return np.array(rows, dtype=np.int32).reshape(-1, options)[kind_of.reshape(-1)]


class _Acting:
    """Limits and KV blocks as they can act; asked once per role, engine and limits."""

    def __init__(self, space: Space, mode: str, facts: Facts) -> None:
        self._wanted, self._roles, self._facts = space.config.search_space, ROLES[mode], facts
        workload = space.config.workload
        self._cap = None if shares_tokens(workload) else workload.concurrency
        self._longest = (workload.isl or 0) + (workload.osl or 0)
        self._known: dict[Hashable, Hashable] = {}

    def __call__(self, place: int, backend: str, shape: ParallelShape, limits: Batching) -> Hashable:
        question = (place, backend, shape, limits)
        if question not in self._known:
            self._known[question] = self._ask(self._roles[place], backend, shape, limits)
        return self._known[question]

    def _ask(self, role: str, backend: str, shape: ParallelShape, limits: Batching) -> Hashable:
        block = getattr(self._wanted, f"{role}_block_size")
        fraction = getattr(self._wanted, f"{role}_gpu_memory_utilization")
        tokens, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        try:
            room = self._facts.kv_tokens(backend, shape, tokens, seqs, fraction)
        except EvaluationError:
            return None
        blocks, tokens = blocks_per_rank(room, block), 0 if backend == "sglang" else tokens
        if self._cap is None:
            return seqs, tokens, blocks
        most = self._cap * (-(-self._longest // block) + 1) + 1
        return min(seqs, self._cap), min(tokens, self._cap * self._longest), min(blocks, most)


def _representatives(
    batching: Sequence[tuple[Batching, ...]], act: _Acting, backend: str, shapes: Sequence[ParallelShape]
) -> list[int]:
    signatures = [
        tuple(act(place, backend, shapes[place], limits) for place, limits in enumerate(each)) for each in batching
    ]
    # JSON compares digits as text, so the smallest text is not the smallest number.
    texts = [tuple(f"{limits.max_num_batched_tokens},{limits.max_num_seqs}," for limits in each) for each in batching]
    # Keys sort by role name, decode before prefill, which is the reverse of their order here.
    first: dict[Hashable, int] = {}
    for index in sorted(range(len(batching)), key=lambda index: texts[index][::-1]):
        first.setdefault(signatures[index], index)
    return [first[signature] for signature in signatures]


def _routing_classes(space: Space, number: int, workload: Workload, alone: bool) -> list[int]:
    branch = space.branches[number]
    loads, planners = len(branch.loads), len(branch.planners)
    texts = [
        canonical_json(space.deployment(number, option * loads)) for option in range(len(branch.routers) * planners)
    ]
    signatures = [
        (
            _router_signature(
                branch.routers[option // planners], workload, alone and not scales(branch.planners[option % planners])
            ),
            acting(branch.planners[option % planners]),
        )
        for option in range(len(texts))
    ]
    first: dict[Hashable, int] = {}
    for option in sorted(range(len(texts)), key=texts.__getitem__):
        first.setdefault(signatures[option], option)
    return [first[signature] for signature in signatures]


def _router_signature(router: RouterConfig, workload: Workload, alone: bool) -> Hashable:
    if alone:
        return router.mode
    credit = router.overlap_score_credit if shares_tokens(workload) else None
    return (router.mode, credit, router.prefill_load_scale, router.temperature) + (
        (router.host_cache_hit_weight, router.disk_cache_hit_weight) if shares_tokens(workload) else ()
    )
