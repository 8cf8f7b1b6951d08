"""Workload plus KV capacity to load shape: which loop drives the replay, how many requests, and the in-flight cap.

Source: user's traffic spec, sections "The four load shapes", "kv_load_ratio" and "num_request_ratio".
"""

import math
from dataclasses import dataclass
from typing import Literal

from app.schemas.workload import Workload

ShapeName = Literal["trace", "trace_capped", "request_rate", "concurrency", "kv_load"]


@dataclass(frozen=True, slots=True)
class LoadShape:
    """How requests are released.

    in_flight_cap: closed-loop limit in sessions; None: open loop.
    request_rate: synthetic open-loop arrivals per second; None otherwise.
    request_count: synthetic requests (sessions when they have several turns); None for a trace.
    """

    name: ShapeName
    in_flight_cap: int | None
    request_rate: float | None
    request_count: int | None

    @property
    def interval_ms(self) -> float | None:
        """Mean spacing of synthetic open-loop arrivals; None otherwise."""
        return None if self.request_rate is None else 1000.0 / self.request_rate

    @property
    def is_closed_loop(self) -> bool:
        """Whether a finished session admits the next one."""
        return self.in_flight_cap is not None


def kv_load_concurrency(kv_load_ratio: float, capacity_concurrency: int) -> int:
    """In-flight cap of a KV load: that share of the requests that fill the cache on average, at least 1.

    Raises: ValueError when the ratio is negative or not finite, or the capacity is negative.
    """
    if not (math.isfinite(kv_load_ratio) and kv_load_ratio >= 0):
        raise ValueError(f"kv_load_ratio must be finite and non-negative, got {kv_load_ratio}")
    if capacity_concurrency < 0:
        raise ValueError(f"capacity_concurrency must be non-negative, got {capacity_concurrency}")
    return max(1, math.floor(kv_load_ratio * capacity_concurrency))


def resolved_request_count(num_request_ratio: float | None, load: float) -> int:
    """Synthetic requests of a load, at least 1; half is rounded to even, an unset ratio counts as 0."""
    return max(1, round((num_request_ratio or 0.0) * load))


def load_shape(
    workload: Workload, kv_load_ratio: float | None = None, capacity_concurrency: int | None = None
) -> LoadShape:
    """The load shape of a checked workload under one candidate.

    Args: kv_load_ratio, the scalar load of this trial (a ranged workload value is drawn by the sampler) and
    capacity_concurrency, the candidate's capacity; both only for KV load.
    Raises: ValueError when no shape applies, or a KV load lacks its capacity.
    """
    if workload.trace_path is not None:
        name: ShapeName = "trace" if workload.replay_concurrency is None else "trace_capped"
        return LoadShape(name, workload.replay_concurrency, None, None)
    ratio = workload.num_request_ratio
    if workload.request_rate is not None:
        rate = workload.request_rate
        return LoadShape("request_rate", None, rate, resolved_request_count(ratio, rate))
    if workload.concurrency is not None:
        cap = workload.concurrency
        return LoadShape("concurrency", cap, None, resolved_request_count(ratio, cap))
    if kv_load_ratio is None or capacity_concurrency is None:
        raise ValueError("a KV load needs its kv_load_ratio and the candidate's capacity_concurrency")
    cap = kv_load_concurrency(kv_load_ratio, capacity_concurrency)
    return LoadShape("kv_load", cap, None, resolved_request_count(ratio, cap))
