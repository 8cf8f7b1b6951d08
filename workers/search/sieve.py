"""Which shapes a backend may run, and why the others are left out.

Source: search.md, sections 2.1 and 2.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.schemas.deployment import Backend, ParallelShape
from app.schemas.pins import can_run
from app.schemas.search_space import SearchSpace
from app.schemas.status import ReasonCode
from workers.errors import EvaluationError
from workers.search.facts import Facts
from workers.search.shapes import strategy

FILTER_TOKENS, FILTER_SEQS, FILTER_FRACTION = 8192, 256, 0.9
"""Batching and memory fraction under which the KV filter judges a shape (search.md, section 2.2)."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """A shape (None: the whole backend) that is not searched, and why, with the figures of the sentence."""

    backend: Backend
    shape: ParallelShape | None
    code: ReasonCode
    detail: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sieve:
    """The shapes of one backend after each filter, and those left out."""

    backend: Backend
    enumerated: tuple[ParallelShape, ...]
    backend_rules: tuple[ParallelShape, ...]
    kv_capacity: tuple[ParallelShape, ...]
    perf_data: tuple[ParallelShape, ...]
    excluded: tuple[Excluded, ...]

    @classmethod
    def of(cls, backend: Backend, shapes: Sequence[ParallelShape], space: SearchSpace, facts: Facts) -> "Sieve":
        """Passes the shapes through every filter in turn."""
        excluded: list[Excluded] = []
        if facts.data_version(backend) is None:
            detail = f"there is no performance data for {backend} on {space.hardware_sku}"
            excluded.append(Excluded(backend, None, ReasonCode.NO_PERF_DATA, detail))
            return cls(backend, tuple(shapes), (), (), (), tuple(excluded))
        runs = [shape for shape in shapes if _keep(_rule_reason(backend, shape, facts), excluded)]
        fits = [shape for shape in runs if _keep(_kv_reason(backend, shape, space, facts), excluded)]
        timed = [shape for shape in fits if _keep(_data_reason(backend, shape, space, facts), excluded)]
        return cls(backend, tuple(shapes), tuple(runs), tuple(fits), tuple(timed), tuple(excluded))

    def stages(self) -> tuple[tuple[ParallelShape, ...], ...]:
        """What is left after each filter, from all shapes on."""
        return (self.enumerated, self.backend_rules, self.kv_capacity, self.perf_data)


def _keep(reason: Excluded | None, excluded: list[Excluded]) -> bool:
    if reason is not None:
        excluded.append(reason)
    return reason is None


def _rule_reason(backend: Backend, shape: ParallelShape, facts: Facts) -> Excluded | None:
    if can_run(backend, shape, facts.is_moe):
        return None
    widths = f"tp {shape.tp}, attention_dp {shape.attention_dp}, moe_tp {shape.moe_tp} and moe_ep {shape.moe_ep}"
    detail = f"{backend} cannot combine {widths}"
    return Excluded(backend, shape, ReasonCode.BACKEND_CANNOT_RUN_SHAPE, detail)


def _kv_reason(backend: Backend, shape: ParallelShape, space: SearchSpace, facts: Facts) -> Excluded | None:
    """The KV of one rank must exceed the longest sequence."""
    longest = space.context_length or facts.max_context_tokens
    try:
        tokens = facts.kv_tokens(backend, shape, FILTER_TOKENS, FILTER_SEQS, FILTER_FRACTION)
    except EvaluationError as error:
        return Excluded(backend, shape, error.code, error.detail, dict(error.numbers))
    if tokens > longest:
        return None
    detail = f"the KV cache of one rank holds {tokens} tokens, not more than the longest sequence of {longest}"
    numbers = {"kv_tokens_per_rank": tokens, "longest_sequence_tokens": longest}
    return Excluded(backend, shape, ReasonCode.CONTEXT_TOO_LONG, detail, numbers)


def _data_reason(backend: Backend, shape: ParallelShape, space: SearchSpace, facts: Facts) -> Excluded | None:
    if facts.has_data(backend, shape):
        return None
    detail = f"no step times of {space.model_name} as {_words(shape)} for {backend} on {space.hardware_sku}"
    return Excluded(backend, shape, ReasonCode.NO_PERF_DATA, detail)


def _words(shape: ParallelShape) -> str:
    return f"{strategy(shape)} on {shape.gpus} GPUs"
