"""What the replays of a study cost, before any is run: an estimate to plan with, not a promise.

A trial costs a little by itself, something per request, and something per decode pass, of which a closed loop of C
requests makes osl / C for each of them (where arrivals or turns come in between, passes are few and requests dear).

Source of the constants: `python -m benchmarks.trial_cost` and benchmarks/results/replay.json, on one core of the machine
that those name, rounded. They fit most kinds of study within a factor of two,
sessions of several turns on routed pools within seven (too dear).
"""

import math

from app.schemas.deployment import RouterConfig
from app.schemas.plan import LoadPlan
from app.schemas.workload import Workload
from workers.search.planners import scales
from workers.search.space import Branch, Space

_TRIAL_S = 0.6e-3
_PASS_S = 0.04e-6
_REQUEST_S = {("agg", True): 0.35e-6, ("agg", False): 2.5e-6, ("disagg", True): 2e-6, ("disagg", False): 10e-6}
"""By mode, and whether a closed loop of equal requests is replayed."""

_ROUTED_S = {"agg": 2e-6, "disagg": 5e-6}
_SCALED_S = 2.5e-6
"""More per request under a KV router, and under a planner that scales."""


def trial_seconds(space: Space, load: LoadPlan) -> float:
    """Mean seconds of a trial of the space, on one core."""
    workload = space.config.workload
    requests, in_flight = _requests(workload, load), _in_flight(load)
    is_even = in_flight is not None and not workload.is_trace_based and workload.turns_per_session == 1
    passes_s = _PASS_S * (workload.osl or 0) / in_flight if is_even and in_flight else 0.0
    request_s = sum(branch.size * _request_s(branch, is_even) for branch in space.branches) / max(1, space.size)
    return _TRIAL_S + requests * (request_s + passes_s)


def _request_s(branch: Branch, is_even: bool) -> float:
    routed = sum(_is_routed(router) for router in branch.routers) / max(1, len(branch.routers))
    scaled = sum(map(scales, branch.planners)) / max(1, len(branch.planners))
    return _REQUEST_S[branch.mode, is_even] + routed * _ROUTED_S[branch.mode] + scaled * _SCALED_S


def _is_routed(router: RouterConfig) -> bool:
    return router.mode == "kv_router"


def _requests(workload: Workload, load: LoadPlan) -> float:
    """Requests of a typical replay; those of KV loads lie orders of magnitude apart."""
    sessions = load.num_requests or 0.0
    if load.shape == "kv_load":
        sessions = (workload.num_request_ratio or 0.0) * (_in_flight(load) or 0.0)
    return sessions * workload.turns_per_session


def _in_flight(load: LoadPlan) -> float | None:
    """Most requests in flight at once; None in an open loop."""
    if load.min_concurrency and load.max_concurrency:
        return math.sqrt(load.min_concurrency * load.max_concurrency)
    return load.in_flight_cap
