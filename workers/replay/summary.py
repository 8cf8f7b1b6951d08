"""The flat report straight from the arrays of a finished replay: what `metrics.report` says of its Outcomes, compiled.

Token gaps are read from the gap log: a stretch of decode passes is one entry, and no gap is ever expanded per token.
Percentiles are exact nearest ranks: gaps are counted in bins of 0.1 % (the upper bits of their float), and only the passes
in a bin that holds a wanted rank are looked at one by one. `copies` says how many equal engines the replay stands for.
"""

import math

import numpy as np
from numpy.typing import NDArray

from workers.replay import state
from workers.replay.compiled import allocating, entry, inner
from workers.replay.fleet import Pool
from workers.replay.metrics import PERCENTILES, STATISTICS, Metric, Sla
from workers.replay.state import (
    ARRIVAL,
    DONE,
    END,
    FIRST_REUSED,
    FIRST_TOKEN,
    GAP_CONTEXT,
    GAP_COUNT,
    GAP_MS,
    GAP_STEPS,
    GAPS_USED,
    GENERATED,
    LAST_TOKEN,
    MAX_REUSED,
    PROMPT,
    SECOND_TOKEN,
    STATUS,
    WORKER,
    State,
    decode_table_of,
    exact_values_of,
    gaps_of,
    numbers_of,
    requests_of,
    stamps_of,
    timing_of,
)
from workers.replay.step_lookup import CHUNK, EXACT, KNOTS, NUM_CELLS, TIMING, cell_of, decode_duration, exact_place

_QUANTILES = np.array(list(PERCENTILES.values()))
_NUM_STATISTICS = len(STATISTICS)
_STEMS = ("ttft_ms", "ttst_ms", "tpot_ms", "e2e_latency_ms", "itl_ms", "output_token_throughput_per_user")
_DISTRIBUTION_KEYS = tuple(f"{statistic}_{stem}" for stem in _STEMS for statistic in STATISTICS)
(_ARRIVED, _COMPLETED, _INPUT, _OUTPUT, _FIRST_REUSE, _MAX_REUSE, _WITH_TOKEN, _WITH_GAP, _LAST_END, _GOOD, _GOOD_TOKENS,
 _GAPS, _NUM_COUNTS) = range(13)  # fmt: skip
_BIN_SHIFT = 42


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
    end = float(st["moments"][state.LAST_END])
    stop = float(st["moments"][state.STOP_AFTER])
    if not math.isinf(stop) and counts[_COMPLETED] < len(st["requests"]) and _is_unfinished(st):
        end = stop
    return _report(counts.tolist(), statistics, st, (pool, prefill), sla is not None, copies, end)


def _bounds(sla: Sla | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if sla is None else (sla.ttft_ms, sla.itl_ms, sla.e2e_ms)


def _is_unfinished(st: State) -> bool:
    return bool((st["requests"][:, STATUS] == state.WAITING).any())


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
    counts[_GAPS] = _describe_gaps(st, copies, quantiles, statistics[4], statistics[5])
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


@inner
def _describe(values, copies, quantiles, out):  # type: ignore[no-untyped-def]
    """mean, min, max, percentiles, standard deviation of samples that each occur `copies` times; reorders them."""
    num = values.size
    if num == 0:
        out[:] = math.nan
        return
    total, least, most = 0.0, values[0], values[0]
    for value in values:
        total += value
        least = min(least, value)
        most = max(most, value)
    mean = total / num
    spread = 0.0
    for value in values:
        spread += (value - mean) * (value - mean)
    out[0], out[1], out[2] = mean, least, most
    low = 0
    for i in range(quantiles.size):
        rank = _nearest_rank(num * copies, quantiles[i]) // copies
        _select(values, low, rank)
        out[3 + i] = values[rank]
        low = rank
    out[8] = math.sqrt(spread / num)


@inner
def _nearest_rank(num, quantile):  # type: ignore[no-untyped-def]
    return np.int64(math.floor((num - 1) * quantile + 0.5))


@inner
def _select(values, low, rank):  # type: ignore[no-untyped-def]
    """Reorder values[low:] so that values[rank] is in its sorted place and none after it is smaller."""
    high = values.size - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        less, i, greater = low, low, high
        while i <= greater:
            value = values[i]
            if value < pivot:
                values[i] = values[less]
                values[less] = value
                less += 1
                i += 1
            elif value > pivot:
                values[i] = values[greater]
                values[greater] = value
                greater -= 1
            else:
                i += 1
        if rank < less:
            high = less - 1
        elif rank > greater:
            low = greater + 1
        else:
            return


@allocating
def _describe_gaps(st, copies, quantiles, gap_out, rate_out):  # type: ignore[no-untyped-def]
    """Statistics of all token gaps and of the rates 1000 / gap of those above zero; returns the number of gaps."""
    gap_log = gaps_of(st)
    used = numbers_of(st)[GAPS_USED]
    gap_out[:] = math.nan
    rate_out[:] = math.nan
    if used == 0:
        return 0
    longest_entry = np.int64(1)
    for i in range(used):
        longest_entry = max(longest_entry, np.int64(gap_log[i, GAP_STEPS]))
    buffer = np.empty(longest_entry)
    # Pass 1: moments, range of bins.
    num, zeros, total, least, most = 0, 0, 0.0, math.inf, 0.0
    least_positive = math.inf
    _gaps_of_entry(st, gap_log, 0, buffer)
    centre, rate_centre = buffer[0], (1000.0 / buffer[0] if buffer[0] > 0.0 else 0.0)
    square, rate_sum, rate_square = 0.0, 0.0, 0.0
    for i in range(used):
        steps = _gaps_of_entry(st, gap_log, i, buffer)
        weight = gap_log[i, GAP_COUNT]
        entry_sum, entry_square, entry_rate, entry_rate_square = 0.0, 0.0, 0.0, 0.0
        low, high = math.inf, 0.0
        for j in range(steps):
            gap = buffer[j]
            low = min(low, gap)
            high = max(high, gap)
            off = gap - centre
            entry_sum += off
            entry_square += off * off
        if low > 0.0:
            for j in range(steps):
                off = 1000.0 / buffer[j] - rate_centre
                entry_rate += off
                entry_rate_square += off * off
            least_positive = min(least_positive, low)
        else:
            zeros += np.int64(weight) * steps
        least, most = min(least, low), max(most, high)
        num += np.int64(weight) * steps
        total += weight * entry_sum
        square += weight * entry_square
        rate_sum += weight * entry_rate
        rate_square += weight * entry_rate_square
    mean_off = total / num
    gap_out[0], gap_out[1], gap_out[2] = centre + mean_off, least, most
    gap_out[8] = math.sqrt(max(0.0, square / num - mean_off * mean_off))
    positive = num - zeros
    if positive > 0:
        mean_off = rate_sum / positive
        rate_out[0], rate_out[1], rate_out[2] = rate_centre + mean_off, 1000.0 / most, 1000.0 / least_positive
        rate_out[8] = math.sqrt(max(0.0, rate_square / positive - mean_off * mean_off))
    num_ranks = quantiles.size
    wanted = np.empty(2 * num_ranks, dtype=np.int64)
    for i in range(num_ranks):
        wanted[i] = _nearest_rank(num * copies, quantiles[i]) // copies
        in_rates = _nearest_rank(positive * copies, quantiles[i]) if positive > 0 else 0
        wanted[num_ranks + i] = zeros + (positive * copies - 1 - in_rates) // copies
    found = _gaps_at_ranks(st, gap_log, used, buffer, least, most, wanted)
    for i in range(num_ranks):
        gap_out[3 + i] = found[i]
        if positive > 0:
            rate_out[3 + i] = 1000.0 / found[num_ranks + i]
    return num * copies


@inner
def _gaps_of_entry(st, gap_log, i, buffer):  # type: ignore[no-untyped-def]
    """Write the gaps of log entry i, one per pass, into `buffer`; returns how many."""
    steps = np.int64(gap_log[i, GAP_STEPS])
    if steps == 0:
        buffer[0] = gap_log[i, GAP_MS]
        return 1
    n, context_sum = np.int64(gap_log[i, GAP_COUNT]), np.int64(gap_log[i, GAP_CONTEXT])
    if timing_of(st)[TIMING] == EXACT:
        values = exact_values_of(st)
        mean = context_sum // n
        done = np.int64(0)
        while done < steps:
            place = exact_place(st, n, mean + done)
            stop = min(steps, done + CHUNK - ((mean + done) & (CHUNK - 1)))
            for j in range(done, stop):
                buffer[j] = values[place + j - done]
            done = np.int64(stop)
        return steps
    if timing_of(st)[TIMING] != KNOTS:
        for j in range(steps):
            buffer[j] = decode_duration(st, n, context_sum + j * n)
        return steps
    table = decode_table_of(st)
    mean = context_sum // n
    done = np.int64(0)
    while done < steps:
        cell, cell_start, width = cell_of(mean + done)
        place = 2 * (n * NUM_CELLS + cell)
        value, slope = table[place], table[place + 1]
        offset = mean + done - cell_start
        stop = min(steps, done + width - offset)
        for j in range(done, stop):
            buffer[j] = value + slope * (offset + j - done)
        done = np.int64(stop)
    return steps


@inner
def _bin_of(gap):  # type: ignore[no-untyped-def]
    """Bins of 0.1 %: exponent and ten bits of mantissa."""
    return np.float64(gap).view(np.int64) >> _BIN_SHIFT


@allocating
def _gaps_at_ranks(st, gap_log, used, buffer, least, most, wanted):  # type: ignore[no-untyped-def]
    """The gaps at 0-based ranks of the sorted multiset."""
    positive_base = _bin_of(least) if least > 0.0 else np.int64(0)
    if least == 0.0:
        # A bin for zero, then bins from the least positive gap on.
        positive = most
        for i in range(used):
            steps = _gaps_of_entry(st, gap_log, i, buffer)
            for j in range(steps):
                if buffer[j] > 0.0:
                    positive = min(positive, buffer[j])
        positive_base = _bin_of(positive) - 1 if positive > 0.0 else np.int64(0)
    num_bins = _bin_of(most) - positive_base + 1 if most > 0.0 else 1
    weights = np.zeros(num_bins, dtype=np.int64)
    entries = np.zeros(num_bins, dtype=np.int64)
    entry_bins = np.empty((used, 2), dtype=np.int32)
    for i in range(used):
        steps = _gaps_of_entry(st, gap_log, i, buffer)
        weight = np.int64(gap_log[i, GAP_COUNT])
        first, last = num_bins, 0
        for j in range(steps):
            at = _bin_of(buffer[j]) - positive_base if buffer[j] > 0.0 else 0
            weights[at] += weight
            entries[at] += 1
            first, last = min(first, at), max(last, at)
        entry_bins[i, 0], entry_bins[i, 1] = first, last
    is_wanted = np.zeros(num_bins, dtype=np.bool_)
    skipped = np.zeros(num_bins, dtype=np.int64)
    for rank in wanted:
        below = 0
        for at in range(num_bins):
            if rank < below + weights[at]:
                is_wanted[at] = True
                break
            below += weights[at]
    size, passed = 0, 0
    wanted_before = np.zeros(num_bins + 1, dtype=np.int32)
    for at in range(num_bins):
        wanted_before[at + 1] = wanted_before[at] + (1 if is_wanted[at] else 0)
        if is_wanted[at]:
            size += entries[at]
        else:
            passed += weights[at]
        skipped[at] = passed
    gaps = np.empty(size)
    heavy = np.empty(size, dtype=np.int64)
    size = 0
    for i in range(used):
        if not _is_any(wanted_before, entry_bins[i, 0], entry_bins[i, 1]):
            continue
        steps = _gaps_of_entry(st, gap_log, i, buffer)
        for j in range(steps):
            at = _bin_of(buffer[j]) - positive_base if buffer[j] > 0.0 else 0
            if is_wanted[at]:
                gaps[size] = buffer[j]
                heavy[size] = np.int64(gap_log[i, GAP_COUNT])
                size += 1
    found = np.empty(wanted.size)
    for i in range(wanted.size):
        below, at = 0, 0
        while wanted[i] >= below + weights[at]:
            below += weights[at]
            at += 1
        found[i] = _weighted_select(gaps, heavy, wanted[i] - skipped[at])
    return found


@inner
def _is_any(wanted_before, first, last):  # type: ignore[no-untyped-def]
    return wanted_before[last + 1] > wanted_before[first]


@inner
def _weighted_select(values, weights, rank):  # type: ignore[no-untyped-def]
    """The value at `rank` of the sorted multiset in which values[i] occurs weights[i] times; reorders both."""
    low, high = 0, values.size - 1
    below = 0
    while True:
        pivot = values[(low + high) >> 1]
        less, i, greater = low, low, high
        less_weight, equal_weight = 0, 0
        while i <= greater:
            value, weight = values[i], weights[i]
            if value < pivot:
                values[i], weights[i] = values[less], weights[less]
                values[less], weights[less] = value, weight
                less_weight += weight
                less += 1
                i += 1
            elif value > pivot:
                values[i], weights[i] = values[greater], weights[greater]
                values[greater], weights[greater] = value, weight
                greater -= 1
            else:
                equal_weight += weight
                i += 1
        if rank < below + less_weight:
            high = less - 1
        elif rank < below + less_weight + equal_weight:
            return pivot
        else:
            below += less_weight + equal_weight
            low = greater + 1
