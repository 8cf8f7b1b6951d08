"""Statistics of all token gaps of a replay, read from its gap log without expanding a gap per token.

A stretch of decode passes is one entry of the log. Percentiles are exact nearest ranks: gaps are counted in bins of 0.1 %
(the upper bits of their float), and only the passes in a bin that holds a wanted rank are looked at one by one.
"""

import math

import numpy as np

from workers.replay.compiled import allocating, inner
from workers.replay.state import (
    GAP_CONTEXT,
    GAP_COUNT,
    GAP_MS,
    GAP_STEPS,
    GAPS_USED,
    decode_table_of,
    exact_values_of,
    gaps_of,
    numbers_of,
    timing_of,
)
from workers.replay.step_lookup import CHUNK, EXACT, KNOTS, NUM_CELLS, TIMING, cell_of, decode_duration, exact_place

_BIN_SHIFT = 42


@inner
def nearest_rank(num, quantile):  # type: ignore[no-untyped-def]
    """Index of a quantile among `num` sorted samples: nearest rank, half away from zero."""
    return np.int64(math.floor((num - 1) * quantile + 0.5))


@allocating
def describe_gaps(st, copies, quantiles, gap_out, rate_out):  # type: ignore[no-untyped-def]
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
        wanted[i] = nearest_rank(num * copies, quantiles[i]) // copies
        in_rates = nearest_rank(positive * copies, quantiles[i]) if positive > 0 else 0
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
