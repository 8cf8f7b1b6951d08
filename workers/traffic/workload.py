"""A study's workload block under one candidate to its requests; equal questions share one batch per process.

Source: traffic spec, sections "Fields" and "The four load shapes".
"""

from functools import lru_cache
from pathlib import Path
from typing import Protocol

from app.schemas.workload import Workload
from workers.traffic.load_shape import LoadShape
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.stored_rows import stored_rows
from workers.traffic.synthetic import SyntheticTraffic, constant_arrivals, poisson_arrivals, synthetic_batch


class TraceFile(Protocol):
    """A checked trace on disk: a content file as app.schemas.trace_file describes it."""

    @property
    def sha256(self) -> str:
        """Hash of that file; equal hashes are equal traces."""

    @property
    def path(self) -> Path:
        """Where the file lies."""

    @property
    def block_size(self) -> int:
        """Tokens per block id."""


def workload_batch(workload: Workload, shape: LoadShape, block_size: int, trace: TraceFile | None) -> RequestBatch:
    """The requests of a workload under a load shape.

    Args: block_size, tokens per KV block of the agg or prefill engines (the unit of `shared_prefix_ratio`); trace, the
    stored trace of a trace workload.
    Raises: ValueError if a trace workload comes without its trace; TraceFaultError if its rows cannot be replayed.
    """
    if workload.is_trace_based:
        if trace is None:
            raise ValueError("a trace workload needs its stored trace")
        drive = TraceDrive(trace.block_size, workload.arrival_speedup_ratio, shape.in_flight_cap)
        return _trace_batch(trace.sha256, trace.path, drive)
    assert workload.isl is not None
    assert workload.osl is not None
    assert shape.request_count is not None
    traffic = SyntheticTraffic(
        isl=workload.isl,
        osl=workload.osl,
        sessions=shape.request_count,
        block_size=block_size,
        turns=workload.turns_per_session,
        inter_turn_delay_ms=workload.inter_turn_delay_ms,
        shared_prefix_ratio=workload.shared_prefix_ratio,
        num_prefix_groups=workload.num_prefix_groups,
    )
    seed = workload.arrival_seed if workload.arrival == "poisson" else None
    return _synthetic_batch(traffic, shape, seed)


@lru_cache(maxsize=64)
def _synthetic_batch(traffic: SyntheticTraffic, shape: LoadShape, poisson_seed: int | None) -> RequestBatch:
    if shape.in_flight_cap is not None:
        return synthetic_batch(traffic, in_flight_cap=shape.in_flight_cap)
    assert shape.request_rate is not None
    if poisson_seed is not None:
        return synthetic_batch(traffic, poisson_arrivals(traffic.sessions, shape.request_rate, poisson_seed))
    return synthetic_batch(traffic, constant_arrivals(traffic.sessions, 1000.0 / shape.request_rate))


@lru_cache(maxsize=4)
def _trace_batch(sha256: str, path: Path, drive: TraceDrive) -> RequestBatch:
    return mooncake_batch(stored_rows(sha256, path), drive)
