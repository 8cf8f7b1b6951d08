"""Outcomes to the flat report: counts, throughput, reuse, goodput and latency distributions.

Source: traffic spec, section 7. Percentiles are exact nearest ranks. A value without samples is None; its sample
count says so. This module is the definition; a faster twin must agree with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.replay.fleet import Fleet
from workers.replay.outcomes import COMPLETED, Outcomes
from workers.traffic.requests import RequestBatch

Metric = float | int | None
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PERCENTILES: Mapping[str, float] = {"median": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99}
STATISTICS = ("mean", "min", "max", *PERCENTILES, "std")
_SHORTEST_DURATION_S = 1e-9


@dataclass(frozen=True, slots=True)
class Sla:
    """Goodput bounds, ms, inclusive; None does not bind. `itl_ms` bounds a request's mean token gap."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None


def report(outcomes: Outcomes, batch: RequestBatch, fleet: Fleet, sla: Sla | None = None) -> dict[str, Metric]:
    """Every key of the trace report of one replay, by name; goodput keys only when `sla` is given."""
    done = outcomes.status == COMPLETED
    with_token = done & (outcomes.generated_tokens > 0)
    with_gap = done & (outcomes.generated_tokens > 1)
    duration_ms = float(outcomes.end_ms[done].max()) if done.any() else None
    first, last, arrival = outcomes.first_token_ms, outcomes.last_token_ms, outcomes.arrival_ms
    tpot_ms = (last - first)[with_gap] / (outcomes.generated_tokens[with_gap] - 1)
    rates, rate_counts = _token_rates(outcomes)
    values: dict[str, Metric] = {
        **_counts(outcomes, batch, done, duration_ms),
        **_provision(outcomes, fleet),
        **_reuse(outcomes, batch, done),
        "num_ttft_samples": int(with_token.sum()),
        "num_tpot_samples": int(with_gap.sum()),
        "num_itl_samples": int(outcomes.gap_count.sum()),
        "num_e2e_latency_samples": int(with_token.sum()),
        **distribution("ttft_ms", (first - arrival)[with_token]),
        **distribution("ttst_ms", (outcomes.second_token_ms - first)[with_gap]),
        **distribution("tpot_ms", tpot_ms),
        **distribution("itl_ms", outcomes.gap_ms, outcomes.gap_count),
        **distribution("e2e_latency_ms", (last - arrival)[with_token]),
        **distribution("output_token_throughput_per_user", rates, rate_counts),
    }
    if sla is not None:
        values |= _goodput(outcomes, done, sla, duration_ms)
    return values


def distribution(stem: str, samples: Floats, counts: NDArray[np.int64] | None = None) -> dict[str, Metric]:
    """The nine statistics of float64 [N] samples, each present `counts` times (once when None), keyed by `stem`.

    Raises: ValueError never; without samples all nine are None.
    """
    if counts is None:
        counts = np.ones(samples.size, dtype=np.int64)
    used = counts > 0
    order = np.argsort(samples[used], kind="stable")
    ascending, repeats = samples[used][order], counts[used][order]
    if ascending.size == 0:
        return {f"{statistic}_{stem}": None for statistic in STATISTICS}
    total = int(repeats.sum())
    mean = float((ascending * repeats).sum() / total)
    spread = float((((ascending - mean) ** 2) * repeats).sum() / total)
    ranks = [nearest_rank(total, quantile) for quantile in PERCENTILES.values()]
    at_rank = ascending[np.searchsorted(np.cumsum(repeats), ranks, side="right")]
    statistics = (mean, float(ascending[0]), float(ascending[-1]), *at_rank.tolist(), math.sqrt(spread))
    return {f"{name}_{stem}": value for name, value in zip(STATISTICS, statistics, strict=True)}


def nearest_rank(num_samples: int, quantile: float) -> int:
    """Index of a quantile among sorted samples: (n - 1) * q, half rounded up, no interpolation."""
    return math.floor((num_samples - 1) * quantile + 0.5)


def _counts(outcomes: Outcomes, batch: RequestBatch, done: Bools, duration_ms: float | None) -> dict[str, Metric]:
    """Requests, tokens and their rates; a request that never arrived (virtual-time limit) is not counted."""
    completed = int(done.sum())
    input_tokens = int(batch.input_tokens[done].sum())
    output_tokens = int(outcomes.generated_tokens[done].sum())
    return {
        "num_requests": int((~np.isnan(outcomes.arrival_ms)).sum()),
        "completed_requests": completed,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "processed_tokens": input_tokens + output_tokens,
        "committed_prefill_tokens": outcomes.committed_prefill_tokens,
        "duration_ms": duration_ms,
        "request_throughput_rps": _per_second(completed, duration_ms),
        "input_throughput_tok_s": _per_second(input_tokens, duration_ms),
        "output_throughput_tok_s": _per_second(output_tokens, duration_ms),
        "total_throughput_tok_s": _per_second(input_tokens + output_tokens, duration_ms),
    }


def _per_second(amount: int, duration_ms: float | None) -> float | None:
    """amount over the duration; None when nothing completed."""
    return None if duration_ms is None else amount / max(duration_ms / 1000.0, _SHORTEST_DURATION_S)


def _provision(outcomes: Outcomes, fleet: Fleet) -> dict[str, Metric]:
    """Worker-seconds and GPU-hours; aggregated workers are reported as decode."""
    prefill_gpus = fleet.prefill.gpus_per_replica if fleet.prefill else 0
    decode_pool = fleet.agg or fleet.decode
    decode_gpus = decode_pool.gpus_per_replica if decode_pool else 0
    gpu_seconds = outcomes.prefill_worker_s * prefill_gpus + outcomes.decode_worker_s * decode_gpus
    return {
        "prefill_worker_seconds": outcomes.prefill_worker_s,
        "decode_worker_seconds": outcomes.decode_worker_s,
        "prefill_gpus_per_worker": prefill_gpus,
        "decode_gpus_per_worker": decode_gpus,
        "gpu_hours": gpu_seconds / 3600.0,
    }


def _reuse(outcomes: Outcomes, batch: RequestBatch, done: Bools) -> dict[str, Metric]:
    """Reused over all prompt tokens: largest reuse of each request, and that of its first admission."""
    prompt_tokens = int(batch.input_tokens[done].sum())

    def ratio(reused: NDArray[np.int64]) -> float | None:
        return float(reused[done].sum() / prompt_tokens) if prompt_tokens else None

    return {
        "prefix_cache_reused_ratio": ratio(outcomes.max_reused_tokens),
        "first_admission_prefix_cache_reused_ratio": ratio(outcomes.first_reused_tokens),
    }


def _token_rates(outcomes: Outcomes) -> tuple[Floats, NDArray[np.int64]]:
    """Tokens per second and user of every gap above zero, with multiplicity."""
    positive = outcomes.gap_ms > 0
    return 1000.0 / outcomes.gap_ms[positive], outcomes.gap_count[positive]


def _goodput(outcomes: Outcomes, done: Bools, sla: Sla, duration_ms: float | None) -> dict[str, Metric]:
    """Counts and rates of completed requests within every bound."""
    good = done & is_good(outcomes, sla)
    count = int(good.sum())
    tokens = int(outcomes.generated_tokens[good].sum())
    return {
        "goodput_completed_requests": count,
        "goodput_request_throughput_rps": _per_second(count, duration_ms),
        "goodput_output_throughput_tok_s": _per_second(tokens, duration_ms),
    }


def is_good(outcomes: Outcomes, sla: Sla) -> Bools:
    """bool [R]: within every bound. A request without output passes an end-to-end bound only, judged by its end."""
    tokens = outcomes.generated_tokens
    has_output = tokens > 0
    ttft_ms = outcomes.first_token_ms - outcomes.arrival_ms
    e2e_ms = np.where(has_output, outcomes.last_token_ms, outcomes.end_ms) - outcomes.arrival_ms
    good = np.ones(tokens.size, dtype=np.bool_)
    if sla.ttft_ms is not None:
        good &= has_output & (ttft_ms <= sla.ttft_ms)
    if sla.itl_ms is not None:
        mean_gap_ms = (e2e_ms - ttft_ms) / np.maximum(tokens - 1, 1)
        good &= has_output & ((tokens == 1) | (mean_gap_ms <= sla.itl_ms))
    if sla.e2e_ms is not None:
        good &= e2e_ms <= sla.e2e_ms
    return good
