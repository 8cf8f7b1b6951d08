"""The load of a configuration as the bounds see it (see `bounds`): synthetic, or a trace by its sums and extremes."""

from app.schemas.plan import TracePlan
from app.schemas.study import SmartSearchConfig
from workers.search.bounds import Load
from workers.search.classes import shares_tokens
from workers.traffic.load_shape import load_shape

_UNBOUNDED_REQUESTS = 10**9
_TYPICAL_ISL, _TYPICAL_OSL = 2048, 256


def bound_load(config: SmartSearchConfig, trace: TracePlan | None = None) -> Load | None:
    """The load; None where bounds say nothing: several turns of synthetic traffic, a trace that is not known well."""
    workload = config.workload
    if workload.is_trace_based:
        return None if trace is None else _trace_load(config, trace)
    if workload.turns_per_session > 1 or workload.isl is None or workload.osl is None:
        return None
    shares, step = shares_tokens(workload), 1 + (config.search_space.aic_nextn or 0)
    if workload.kv_load_ratio is not None:
        # Every candidate has a concurrency of its own; without any the bounds hold for all of them.
        return Load(workload.isl, workload.osl, _UNBOUNDED_REQUESTS, None, None, shares, step)
    shape = load_shape(workload)
    requests, span_ms = shape.request_count or 1, None
    # Poisson arrivals may come in a burst at any moment, so only constant ones bound the rate.
    if workload.arrival == "constant" and shape.interval_ms is not None:
        span_ms = (requests - 1) * shape.interval_ms
    return Load(workload.isl, workload.osl, requests, shape.in_flight_cap, span_ms, shares, step)


def _trace_load(config: SmartSearchConfig, trace: TracePlan) -> Load | None:
    """A trace whose every request can be completed, and has output; otherwise no sum is known beforehand."""
    if trace.num_requests_without_output or not trace.num_requests or trace.num_requests_over:
        return None
    workload, step = config.workload, 1 + (config.search_space.aic_nextn or 0)
    span_ms = None
    # A later turn comes when the one before has ended, whatever the clock says.
    if workload.replay_concurrency is None and trace.max_turns == 1:
        span_ms = trace.span_ms / workload.arrival_speedup_ratio
    return Load(
        trace.input_tokens / trace.num_requests,
        trace.output_tokens / trace.num_requests,
        trace.num_requests,
        workload.replay_concurrency,
        span_ms,
        trace.shares_tokens,
        step,
        (max(1, trace.shortest_prompt_tokens), trace.longest_request_tokens),
    )


def typical_load(config: SmartSearchConfig) -> Load:
    """A load that only orders the groups where no bound is known: the first turn, or a usual request of a trace."""
    workload = config.workload
    isl, osl = workload.isl or _TYPICAL_ISL, workload.osl or _TYPICAL_OSL
    cap = workload.replay_concurrency or workload.concurrency
    return Load(isl, osl, _UNBOUNDED_REQUESTS, cap, None, shares_tokens=False)
