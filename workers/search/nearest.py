"""When nothing fits: the least change that would.

Source: service.md, section 3 (last paragraph).
"""

from collections.abc import Callable, Iterable

from app.schemas.deployment import Backend, ParallelShape
from app.schemas.pins import backend_can_run
from app.schemas.plan import NearestPlan
from app.schemas.study import SmartSearchConfig
from workers.errors import EvaluationError
from workers.search.facts import Facts
from workers.search.shapes import ENGINE_GPUS, all_shapes
from workers.search.sieve import FILTER_FRACTION, FILTER_SEQS, FILTER_TOKENS


def nearest_fit(
    config: SmartSearchConfig, backends: Iterable[Backend], facts: Facts, others: Callable[[], dict[str, Facts]]
) -> NearestPlan:
    """More GPUs of the same kind, a shorter context, or other hardware.

    Args: others, facts of the same model on other hardware by name, asked for only here.
    """
    space, tried = config.search_space, list(backends)
    longest = space.context_length or facts.max_context_tokens
    found = next(
        (
            (shape, backend)
            for shape in all_shapes(facts.is_moe, ENGINE_GPUS[-1])
            for backend in tried
            if (_tokens(facts, backend, shape) or 0) > longest
        ),
        None,
    )
    within = all_shapes(facts.is_moe, space.gpu_budget)
    rooms = [_tokens(facts, backend, shape) or 0 for shape in within for backend in tried]
    room = max(rooms, default=0)
    return NearestPlan(
        smallest_gpus=found[0].gpus if found else None,
        shape=found[0] if found else None,
        backend=found[1] if found else None,
        longest_context_tokens=room - 1 if room > 1 else None,
        other_hardware=[
            name
            for name, other in others().items()
            if any((_tokens(other, backend, shape) or 0) > longest for shape in reversed(within) for backend in tried)
        ],
    )


def _tokens(facts: Facts, backend: Backend, shape: ParallelShape) -> int | None:
    if facts.data_version(backend) is None or not backend_can_run(backend, shape):
        return None
    try:
        return facts.kv_tokens(backend, shape, FILTER_TOKENS, FILTER_SEQS, FILTER_FRACTION)
    except EvaluationError:
        return None
