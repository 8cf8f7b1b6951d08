"""Limits of the service on what one study may ask for; each is a setting, and each refusal names the limit.

Source: service contract, section 5. Limits on bodies are kept where bodies are read, those on callers where studies are
stored.
"""

from collections.abc import Callable, Iterator
from typing import Any

from app.config import settings
from app.errors import FieldFault, InvalidRequestError
from app.schemas.study import SmartSearchConfig

_TRIAL_S, _REQUEST_S, _PASS_S = 0.6e-3, 20e-6, 0.04e-6
"""The dearest replay by the plan's own estimate (workers/search/cost.py), as a first look that needs no plan."""


def check_limits(config: SmartSearchConfig, num_trace_requests: int | None) -> None:
    """Raises: InvalidRequestError with every limit that the configuration exceeds."""
    found = list(_faults(config, num_trace_requests))
    if found:
        raise InvalidRequestError(found)


def _faults(config: SmartSearchConfig, num_trace_requests: int | None) -> Iterator[FieldFault]:
    sweep, most = config.sweep, settings()
    budget = config.search_space.gpu_budget
    if budget > most.max_gpus:
        yield _over("/search_space/gpu_budget", budget, "GPUs per candidate", most.max_gpus)
    if sweep.max_trials is not None and sweep.max_trials > most.max_trials:
        yield _over("/sweep/max_trials", sweep.max_trials, "trials in one study", most.max_trials)
    num_requests = requests_in_a_replay(config, num_trace_requests)
    if num_requests is not None and num_requests > most.max_replay_requests:
        where = "trace_path" if config.workload.is_trace_based else "num_request_ratio"
        yield _over(f"/workload/{where}", num_requests, "requests in one replay", most.max_replay_requests)


def _over(pointer: str, value: int, what: str, limit: int) -> FieldFault:
    return FieldFault(pointer, value, f"is {value} {what}; the limit is {limit}", f"use at most {limit}")


def requests_in_a_replay(config: SmartSearchConfig, num_trace_requests: int | None) -> int | None:
    """Requests of each replay, as far as the configuration alone tells; None under a load that follows the KV cache."""
    workload = config.workload
    if workload.is_trace_based:
        return num_trace_requests
    load = workload.concurrency if workload.concurrency is not None else workload.request_rate
    if load is None or workload.num_request_ratio is None:
        return None
    return int(workload.num_request_ratio * load)


def check_duration(
    config: SmartSearchConfig, num_trace_requests: int | None, planned: Callable[[], dict[str, Any]]
) -> None:
    """Refuse a study that would take longer than the limit, with its estimate.

    planned: makes the plan; asked only when the most that the study could take is beyond the limit.
    Raises: InvalidRequestError.
    """
    limit_s = settings().max_study_s
    num_requests = requests_in_a_replay(config, num_trace_requests) or 0
    passes = (config.workload.osl or 0) / (config.workload.concurrency or 1)
    if settings().max_trials * (_TRIAL_S + num_requests * (_REQUEST_S + _PASS_S * passes)) <= limit_s:
        return
    estimated_s = float(planned()["estimated_seconds"])
    if estimated_s > limit_s:
        fault = f"the study would take about {estimated_s:.0f} s of computing; the limit is {limit_s:.0f} s"
        remedy = "search less (sweep.max_trials, pinned knobs, a smaller gpu_budget) or replay fewer requests"
        raise InvalidRequestError([FieldFault("", None, fault, remedy)])
