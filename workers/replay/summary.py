"""The flat report straight from the arrays of a finished replay: what `metrics.report` says of its Outcomes, compiled.

Token gaps are in `gap_summary`. `copies` says how many equal engines the replay stands for.
"""

import math

import numpy as np
from numpy.typing import NDArray

from workers.replay import state
from workers.replay.compiled import allocating, entry, inner, summing
from workers.replay.fleet import Pool
from workers.replay.gap_summary import describe_gaps
from workers.replay.metrics import PERCENTILES, STATISTICS, Metric, Sla
from workers.replay.order_statistics import nearest_rank, values_at_ranks
from workers.replay.state import (
    ARRIVAL,
    DONE,
    END,
    FIRST_REUSED,
    FIRST_TOKEN,
    GENERATED,
    LAST_TOKEN,
    MAX_REUSED,
    PROMPT,
    SECOND_TOKEN,
    STATUS,
    WORKER,
    State,
    requests_of,
    stamps_of,
)

_QUANTILES = np.array(list(PERCENTILES.values()))
_NUM_STATISTICS = len(STATISTICS)
_STEMS = ("ttft_ms", "ttst_ms", "tpot_ms", "e2e_latency_ms", "itl_ms", "output_token_throughput_per_user")
_DISTRIBUTION_KEYS = tuple(f"{statistic}_{stem}" for stem in _STEMS for statistic in STATISTICS)
(_ARRIVED, _COMPLETED, _INPUT, _OUTPUT, _FIRST_REUSE, _MAX_REUSE, _WITH_TOKEN, _WITH_GAP, _LAST_END, _GOOD, _GOOD_TOKENS,
 _GAPS, _NUM_COUNTS) = range(13)  # fmt: skip


def summarise(
    st: State, pool: Pool, sla: Sla | None, copies: int = 1, prefill: Pool | None = None
) -> dict[str, Metric]:
    """Every key of the trace report; `pool` is the whole fleet, of which the replay has run one `copies`-th.

    With a `prefill` pool, `st` and `pool` are those of the decode role.
    """
    counts = np.zeros(_NUM_COUNTS)
    statistics = np.zeros((len(_STEMS), _NUM_STATISTICS))
    bounds = np.array([np.nan if bound is None else bound for bound in _bounds(sla)])
    summarise_arrays(st.book, bounds, copies, _QUANTILES, counts, statistics)
    end = float(st["moments"][state.LAST_EVENT])
    return _report(counts.tolist(), statistics, st, (pool, prefill), sla is not None, copies, end)


def _bounds(sla: Sla | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if sla is None else (sla.ttft_ms, sla.itl_ms, sla.e2e_ms)


def _report(
    counts: list[float], statistics: NDArray[np.float64], st: State, pools: tuple[Pool, Pool | None],
    with_sla: bool, copies: int, end: float,
) -> dict[str, Metric]:  # fmt: skip
    pool, prefill = pools
    completed, prompt_tokens, output_tokens = (int(counts[i]) for i in (_COMPLETED, _INPUT, _OUTPUT))
    duration_s = max(counts[_LAST_END] / 1000.0, 1e-9) if completed else None
    worker_s = pool.replicas * end / 1000.0
    prefill_s, prefill_gpus = (prefill.replicas * end / 1000.0, prefill.gpus_per_replica) if prefill else (0.0, 0)

    def per_second(amount: float) -> float | None:
        return None if duration_s is None else amount / duration_s

    values: dict[str, Metric] = {
        "num_requests": int(counts[_ARRIVED]),
        "completed_requests": completed,
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": output_tokens,
        "processed_tokens": prompt_tokens + output_tokens,
        "committed_prefill_tokens": int(st["numbers"][state.COMMITTED_PREFILL]) * copies,
        "duration_ms": counts[_LAST_END] if completed else None,
        "request_throughput_rps": per_second(completed),
        "input_throughput_tok_s": per_second(prompt_tokens),
        "output_throughput_tok_s": per_second(output_tokens),
        "total_throughput_tok_s": per_second(prompt_tokens + output_tokens),
        "prefill_worker_seconds": prefill_s,
        "decode_worker_seconds": worker_s,
        "prefill_gpus_per_worker": prefill_gpus,
        "decode_gpus_per_worker": pool.gpus_per_replica,
        "gpu_hours": (prefill_s * prefill_gpus + worker_s * pool.gpus_per_replica) / 3600.0,
        "prefix_cache_reused_ratio": counts[_MAX_REUSE] / prompt_tokens if prompt_tokens else None,
        "first_admission_prefix_cache_reused_ratio": counts[_FIRST_REUSE] / prompt_tokens if prompt_tokens else None,
        "num_ttft_samples": int(counts[_WITH_TOKEN]),
        "num_tpot_samples": int(counts[_WITH_GAP]),
        "num_itl_samples": int(counts[_GAPS]),
        "num_e2e_latency_samples": int(counts[_WITH_TOKEN]),
    }
    flat = statistics.ravel().tolist()
    values.update(zip(_DISTRIBUTION_KEYS, flat, strict=True))
    if any(map(math.isnan, flat)):
        values.update({key: None for key, value in zip(_DISTRIBUTION_KEYS, flat, strict=True) if math.isnan(value)})
    if with_sla:
        values["goodput_completed_requests"] = int(counts[_GOOD])
        values["goodput_request_throughput_rps"] = per_second(counts[_GOOD])
        values["goodput_output_throughput_tok_s"] = per_second(counts[_GOOD_TOKENS])
    return values


@entry
def summarise_arrays(st, bounds, copies, quantiles, counts, statistics):  # type: ignore[no-untyped-def]
    """Fill `counts` and the nine statistics (NaN without samples) of TTFT, TTST, TPOT, E2E, gap and rate."""
    samples = np.empty((4, requests_of(st).shape[0]))
    _count_requests(st, bounds, counts, samples)
    with_token, with_gap = np.int64(counts[_WITH_TOKEN]), np.int64(counts[_WITH_GAP])
    _describe(samples[0, :with_token], copies, quantiles, statistics[0])
    _describe(samples[1, :with_gap], copies, quantiles, statistics[1])
    _describe(samples[2, :with_gap], copies, quantiles, statistics[2])
    _describe(samples[3, :with_token], copies, quantiles, statistics[3])
    counts[_GAPS] = describe_gaps(st, copies, quantiles, statistics[4], statistics[5])
    for i in range(counts.size):
        if i not in (_LAST_END, _GAPS):
            counts[i] *= copies


@inner
def _count_requests(st, bounds, counts, samples):  # type: ignore[no-untyped-def]
    req, stamp = requests_of(st), stamps_of(st)
    ttft_bound, itl_bound, e2e_bound = bounds[0], bounds[1], bounds[2]
    with_token, with_gap = 0, 0
    for r in range(req.shape[0]):
        if req[r, WORKER] >= 0:
            counts[_ARRIVED] += 1
        if req[r, STATUS] != DONE:
            continue
        tokens = req[r, GENERATED]
        arrival, first, last = stamp[r, ARRIVAL], stamp[r, FIRST_TOKEN], stamp[r, LAST_TOKEN]
        counts[_COMPLETED] += 1
        counts[_INPUT] += req[r, PROMPT]
        counts[_OUTPUT] += tokens
        counts[_FIRST_REUSE] += req[r, FIRST_REUSED]
        counts[_MAX_REUSE] += req[r, MAX_REUSED]
        counts[_LAST_END] = max(counts[_LAST_END], stamp[r, END])
        if tokens > 0:
            samples[0, with_token] = first - arrival
            samples[3, with_token] = last - arrival
            with_token += 1
        if tokens > 1:
            samples[1, with_gap] = stamp[r, SECOND_TOKEN] - first
            samples[2, with_gap] = (last - first) / (tokens - 1)
            with_gap += 1
        e2e = (last if tokens > 0 else stamp[r, END]) - arrival
        is_good = math.isnan(e2e_bound) or e2e <= e2e_bound
        if not math.isnan(ttft_bound):
            is_good &= tokens > 0 and first - arrival <= ttft_bound
        if not math.isnan(itl_bound):
            mean_gap = (e2e - (first - arrival)) / max(tokens - 1, 1)
            is_good &= tokens == 1 or (tokens > 1 and mean_gap <= itl_bound)
        if is_good:
            counts[_GOOD] += 1
            counts[_GOOD_TOKENS] += tokens
    counts[_WITH_TOKEN] = with_token
    counts[_WITH_GAP] = with_gap


@allocating
def _describe(values, copies, quantiles, out):  # type: ignore[no-untyped-def]
    """mean, min, max, percentiles, standard deviation of samples >= 0 that each occur `copies` times."""
    num = values.size
    if num == 0:
        out[:] = math.nan
        return
    total, least, most = _range(values)
    mean = total / num
    out[0], out[1], out[2] = mean, least, most
    ranks = np.empty(quantiles.size, dtype=np.int64)
    for i in range(quantiles.size):
        ranks[i] = nearest_rank(num * copies, quantiles[i]) // copies
    values_at_ranks(values, least, most, ranks, out[3:8])
    out[8] = math.sqrt(_square_distance(values, mean) / num)


@summing
def _range(values):  # type: ignore[no-untyped-def]
    """(sum, least, most)."""
    total, least, most = 0.0, values[0], values[0]
    for value in values:
        total += value
        least = value if value < least else least
        most = value if value > most else most
    return total, least, most


@summing
def _square_distance(values, centre):  # type: ignore[no-untyped-def]
    total = 0.0
    for value in values:
        total += (value - centre) * (value - centre)
    return total
