"""KV room of every role in the space, and the load that follows from it.

Source: traffic page, section "kv_load_ratio"; search.md, section 4.1.
"""

from collections.abc import Mapping
from typing import Any

from app.schemas.plan import ContextPlan, KvCapacityPlan, LoadPlan, TracePlan
from app.schemas.study import SmartSearchConfig
from workers.capacity.kv_blocks import blocks_per_rank, capacity_concurrency, role_capacity_tokens
from workers.errors import EvaluationError
from workers.search.facts import Facts
from workers.search.knobs import ROLES, distinct, loads
from workers.search.space import Space
from workers.traffic.load_shape import kv_load_concurrency, load_shape

TraceSummary = Mapping[str, Any]
"""What a stored trace says about itself.

Read: `num_requests`; `length_counts`, pairs [input + output tokens, requests] of at least the long requests;
`warnings`, sentences about the trace; and the keys of `trace_sums`, as app.schemas.trace.TraceSummary says them.
"""


def capacities(space: Space, facts: Facts) -> list[KvCapacityPlan]:
    """KV room per role, backend, shape and token limit, for every combination in the pools."""
    rows = []
    for branch in space.branches:
        for place, role in enumerate(ROLES[branch.mode]):
            limits = distinct(each[place].max_num_batched_tokens for each in branch.batching)
            seqs = max(each[place].max_num_seqs for each in branch.batching)
            cells = distinct(
                (branch.backends[backend], branch.roles[branch.entries[entry][place]].shape)
                for entry, backend in branch.cells
            )
            rows += [_capacity(space, facts, role, *cell, tokens, seqs) for cell in cells for tokens in limits]
    return rows


def _capacity(
    space: Space, facts: Facts, role: str, backend: Any, shape: Any, max_tokens: int, max_seqs: int
) -> KvCapacityPlan:
    wanted, load = space.config.search_space, space.config.workload
    asked = {"role": role, "backend": backend, "shape": shape, "max_num_batched_tokens": max_tokens}
    fraction, block = getattr(wanted, f"{role}_gpu_memory_utilization"), getattr(wanted, f"{role}_block_size")
    try:
        tokens = facts.kv_tokens(backend, shape, max_tokens, max_seqs, fraction)
    except EvaluationError as error:
        none = dict.fromkeys(("tokens_per_rank", "blocks_per_rank", "capacity_tokens", "concurrency"))
        return KvCapacityPlan(**asked, **none, reason=error.detail)
    room = role_capacity_tokens(tokens, block, shape.attention_dp, 1)
    fitting = capacity_concurrency(room, load.isl, load.osl) if load.isl and load.osl else None
    return KvCapacityPlan(
        **asked,
        tokens_per_rank=tokens,
        blocks_per_rank=blocks_per_rank(tokens, block),
        capacity_tokens=room,
        concurrency=fitting,
    )


def resolved_load(space: Space, capacity: list[KvCapacityPlan], trace: TraceSummary | None) -> LoadPlan:
    """The load shape with its numbers; under a KV load the least and greatest concurrency of the pool."""
    load = space.config.workload
    ratios = [ratio for ratio in loads(space.config) if ratio is not None]
    if not ratios:
        shape = load_shape(load)
        known = trace.get("num_requests") if trace else None
        return LoadPlan(
            shape=shape.name,
            in_flight_cap=shape.in_flight_cap,
            request_rate=load.request_rate,
            interval_ms=shape.interval_ms,
            num_requests=shape.request_count if shape.request_count is not None else known,
        )
    fitting = [kv_load_concurrency(ratio, at) for ratio in ratios for at in _role_concurrencies(space, capacity)]
    most = max(fitting, default=None)
    return LoadPlan(
        shape="kv_load",
        kv_load_ratio=ratios,
        num_requests=None if most is None else load_shape(load, 1.0, most).request_count,
        min_concurrency=min(fitting, default=None),
        max_concurrency=most,
    )


def _role_concurrencies(space: Space, capacity: list[KvCapacityPlan]) -> list[int]:
    """Capacity concurrencies that occur in the pool: of the agg or decode role, replicas counted in."""
    load = space.config.workload
    rooms: dict[Any, list[int]] = {}
    for row in capacity:
        if row.capacity_tokens:
            rooms.setdefault((row.role, row.backend, row.shape), []).append(row.capacity_tokens)
    found = set()
    for branch in space.branches:
        role = ROLES[branch.mode][-1]
        cells = {(int(branch.entries[entry][-1]), int(backend)) for entry, backend in branch.cells}
        for at, backend in cells:
            config = branch.roles[at]
            for room in rooms.get((role, branch.backends[backend], config.shape), []):
                found.add(capacity_concurrency(room * config.replicas, load.isl or 1, load.osl or 1))
    return sorted(found)


def requests_over_context(
    config: SmartSearchConfig, facts: Facts, load: LoadPlan, trace: TraceSummary | None
) -> ContextPlan:
    """How many requests of the load are longer than the longest sequence an engine takes."""
    limit = config.search_space.context_length or facts.max_context_tokens
    if not config.workload.is_trace_based:
        longest = (config.workload.isl or 0) + (config.workload.osl or 0)
        over = load.num_requests if longest > limit else 0
        return ContextPlan(limit_tokens=limit, longest_request_tokens=longest, num_requests_over=over)
    counts = trace.get("length_counts") if trace else None
    if not counts:
        return ContextPlan(limit_tokens=limit, longest_request_tokens=None, num_requests_over=None)
    over = sum(count for tokens, count in counts if tokens > limit)
    longest = max(tokens for tokens, _ in counts)
    return ContextPlan(limit_tokens=limit, longest_request_tokens=longest, num_requests_over=over)


_SUMS = ("num_requests", "isl", "input_tokens", "output_tokens", "longest_request_tokens", "span_ms", "sharing")


def trace_sums(trace: TraceSummary | None, context: ContextPlan) -> TracePlan | None:
    """What bounds need to know of a trace; None for synthetic traffic, or a summary that does not say it all."""
    if trace is None or context.num_requests_over is None or any(trace.get(name) is None for name in _SUMS):
        return None
    return TracePlan(
        num_requests=trace["num_requests"],
        num_requests_over=context.num_requests_over,
        num_requests_without_output=trace.get("num_zero_token_outputs", 0),
        input_tokens=trace["input_tokens"],
        output_tokens=trace["output_tokens"],
        shortest_prompt_tokens=trace["isl"]["min"],
        longest_request_tokens=trace["longest_request_tokens"],
        span_ms=trace["span_ms"],
        max_turns=trace.get("max_turns", 1),
        shares_tokens=trace["sharing"] == "known",
    )
