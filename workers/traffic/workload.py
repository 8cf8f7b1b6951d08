"""A checked workload block under one candidate to requests."""

from app.schemas.workload import Workload
from workers.traffic.load_shape import LoadShape
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.synthetic import SyntheticTraffic, constant_arrivals, poisson_arrivals, synthetic_batch
from workers.traffic.trace_rows import TraceRows


def workload_batch(
    workload: Workload, shape: LoadShape, block_size: int, trace: TraceRows | None = None
) -> RequestBatch:
    """The requests every candidate of a study replays, released as `shape` says.

    Args: block_size, tokens of a KV block of the agg or prefill engine, the unit of shared prefixes; trace, the checked
    rows of `trace_path`, read once per process.
    Raises: ValueError when a trace workload comes without its rows; TraceFaultError when they do not fit the load.
    """
    if workload.is_trace_based:
        if trace is None:
            raise ValueError("a trace workload needs the rows of its trace")
        speedup = workload.arrival_speedup_ratio
        return mooncake_batch(trace, TraceDrive(speedup=speedup, in_flight_cap=shape.in_flight_cap))
    traffic = synthetic_traffic(workload, shape, block_size)
    if shape.request_rate is None:
        return synthetic_batch(traffic, in_flight_cap=shape.in_flight_cap)
    if workload.arrival == "poisson":
        arrivals = poisson_arrivals(traffic.sessions, shape.request_rate, workload.arrival_seed)
    else:
        arrivals = constant_arrivals(traffic.sessions, 1000.0 / shape.request_rate)
    return synthetic_batch(traffic, arrivals)


def synthetic_traffic(workload: Workload, shape: LoadShape, block_size: int) -> SyntheticTraffic:
    """What each session of a synthetic workload looks like.

    Raises: ValueError when the workload lacks isl, osl or a request count.
    """
    if workload.isl is None or workload.osl is None or shape.request_count is None:
        raise ValueError("a synthetic workload needs isl, osl and num_request_ratio")
    return SyntheticTraffic(
        isl=workload.isl,
        osl=workload.osl,
        sessions=shape.request_count,
        block_size=block_size,
        turns=workload.turns_per_session,
        inter_turn_delay_ms=workload.inter_turn_delay_ms,
        shared_prefix_ratio=workload.shared_prefix_ratio,
        num_prefix_groups=workload.num_prefix_groups,
    )
