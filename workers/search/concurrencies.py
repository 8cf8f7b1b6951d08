"""The concurrencies that a range of KV loads means: whole numbers, so a finite range for every group.

Two ratios that give a candidate the same concurrency are one load: its replay is the same, request count included.

Source: traffic page, section "kv_load_ratio".
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from app.schemas.deployment import ParallelShape
from app.schemas.search_space import SearchSpace
from workers.capacity.kv_blocks import capacity_concurrency, role_capacity_tokens
from workers.errors import EvaluationError
from workers.search.facts import Facts
from workers.search.knobs import ROLES, Batching
from workers.search.space import Branch, Space
from workers.traffic.load_shape import kv_load_concurrency


def group_capacities(space: Space, branch: Branch, facts: Facts) -> NDArray[np.int64]:
    """Requests that fill the KV cache of every group of a branch on average: int64 [G]; 0 where not even one fits.

    Empty unless the workload has a range of KV loads.
    """
    workload, wanted = space.config.workload, space.config.search_space
    if workload.kv_load_range is None:
        return np.zeros(0, dtype=np.int64)
    role = ROLES[branch.mode][-1]
    limits = list(dict.fromkeys(each[-1] for each in branch.batching))
    known: dict[tuple[int, int], list[int]] = {}
    for entry, backend in {(int(branch.entries[e][-1]), int(b)) for e, b in branch.cells}:
        config = branch.roles[entry]
        rooms = [
            _room(wanted, facts, role, branch.backends[backend], config.shape, each, config.replicas) for each in limits
        ]
        known[entry, backend] = [capacity_concurrency(room, workload.isl or 1, workload.osl or 1) for room in rooms]
    at = [limits.index(each[-1]) for each in branch.batching]
    rows = [known[int(branch.entries[entry][-1]), int(backend)] for entry, backend in branch.cells]
    return np.array(rows, dtype=np.int64).reshape(-1, len(limits))[:, at].reshape(-1)


def _room(
    wanted: SearchSpace, facts: Facts, role: str, backend: str, shape: ParallelShape, limits: Batching, replicas: int
) -> int:
    """KV tokens of the role; 0 when it leaves no KV budget."""
    fraction, block = getattr(wanted, f"{role}_gpu_memory_utilization"), getattr(wanted, f"{role}_block_size")
    try:
        tokens = facts.kv_tokens(backend, shape, limits.max_num_batched_tokens, limits.max_num_seqs, fraction)
    except EvaluationError:
        return 0
    return role_capacity_tokens(tokens, block, shape.attention_dp, replicas)


def concurrencies(ratios: Iterable[float], capacity: int) -> set[int]:
    """The distinct concurrencies that ratios give a group of this capacity."""
    return {kv_load_concurrency(ratio, capacity) for ratio in ratios}


def spans(capacity: NDArray[np.int64], low: float, high: float) -> NDArray[np.int64]:
    """How many concurrencies a range of ratios spans, by group: int64, shape of `capacity`, at least 1."""
    first = np.maximum(1, np.floor(low * capacity)).astype(np.int64)
    return np.asarray(np.maximum(1, np.floor(high * capacity)).astype(np.int64) - first + 1)
