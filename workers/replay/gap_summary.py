"""Statistics of all token gaps of a replay, read from its gap log without expanding a gap per token.

A stretch of decode passes is one entry of the log. Percentiles are exact nearest ranks: gaps are counted in bins (see
order_statistics), and only the passes in a bin that holds a wanted rank are looked at one by one.
"""

import math

import numpy as np

from workers.replay.compiled import allocating, inner
from workers.replay.order_statistics import bin_shift, bits_of, nearest_rank
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

_BINS, _FINE_BINS, _FEW = 2048, 256, 32


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
        entry_rate, entry_rate_square = 0.0, 0.0
        low, high, entry_sum, entry_square = _moments(buffer, steps, centre)
        if low > 0.0:
            entry_rate, entry_rate_square = _moments_of_rates(buffer, steps, rate_centre)
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
    found = _gaps_at_ranks(st, gap_log, used, buffer, least_positive if positive > 0 else 0.0, most, wanted)
    for i in range(num_ranks):
        gap_out[3 + i] = found[i]
        if positive > 0:
            rate_out[3 + i] = 1000.0 / found[num_ranks + i]
    return num * copies


@inner
def _moments(values, num, centre):  # type: ignore[no-untyped-def]
    """(least, most, sum and sum of squares of the distances from `centre`) of values[:num].

    Two of everything side by side: one chain of additions waits for each addition to end.
    """
    low, high, total, square = values[0], values[0], 0.0, 0.0
    low_2, high_2, total_2, square_2 = values[0], values[0], 0.0, 0.0
    for i in range(0, num - 1, 2):
        value, value_2 = values[i], values[i + 1]
        low, low_2 = value if value < low else low, value_2 if value_2 < low_2 else low_2
        high, high_2 = value if value > high else high, value_2 if value_2 > high_2 else high_2
        off, off_2 = value - centre, value_2 - centre
        total, total_2 = total + off, total_2 + off_2
        square, square_2 = square + off * off, square_2 + off_2 * off_2
    if num & 1 == 1:
        value = values[num - 1]
        low, high = min(low, value), max(high, value)
        off = value - centre
        total += off
        square += off * off
    return min(low, low_2), max(high, high_2), total + total_2, square + square_2


@inner
def _moments_of_rates(gaps, num, centre):  # type: ignore[no-untyped-def]
    """(sum, sum of squares) of the distances of 1000 / gap from `centre`, gaps[:num] above zero; side by side as above."""
    total, square, total_2, square_2 = 0.0, 0.0, 0.0, 0.0
    for i in range(0, num - 1, 2):
        off, off_2 = 1000.0 / gaps[i] - centre, 1000.0 / gaps[i + 1] - centre
        total, total_2 = total + off, total_2 + off_2
        square, square_2 = square + off * off, square_2 + off_2 * off_2
    if num & 1 == 1:
        off = 1000.0 / gaps[num - 1] - centre
        total += off
        square += off * off
    return total + total_2, square + square_2


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


@allocating
def _gaps_at_ranks(st, gap_log, used, buffer, least, most, wanted):  # type: ignore[no-untyped-def]
    """The gaps at 0-based ranks of the sorted multiset; `least` is the least above zero, bin 0 holds the zeros."""
    base, shift = bits_of(least), bin_shift(least, most, _BINS)
    num_bins = (bits_of(most) - base >> shift) + 2 if most > 0.0 else 1
    weights = np.zeros(num_bins, dtype=np.int64)
    entries = np.zeros(num_bins, dtype=np.int32)
    entry_bins = np.empty((used, 2), dtype=np.int32)
    for i in range(used):
        steps = _gaps_of_entry(st, gap_log, i, buffer)
        weight = np.int64(gap_log[i, GAP_COUNT])
        first, last = num_bins, 0
        # Neighbours mostly share a bin: counting them before they are stored saves waiting for each store.
        current, run = np.int64(0), 0
        for j in range(steps):
            at = (bits_of(buffer[j]) - base >> shift) + 1 if buffer[j] > 0.0 else 0
            if at != current:
                weights[current] += weight * run
                entries[current] += run
                current, run = np.int64(at), 0
                first, last = min(first, at), max(last, at)
            run += 1
        weights[current] += weight * run
        entries[current] += run
        entry_bins[i, 0], entry_bins[i, 1] = min(first, current), max(last, current)
    below = np.zeros(num_bins + 1, dtype=np.int64)
    for at in range(num_bins):
        below[at + 1] = below[at] + weights[at]
    bins = np.searchsorted(below, wanted, side="right") - 1
    starts = np.full(num_bins, -1, dtype=np.int64)
    wanted_before = np.zeros(num_bins + 1, dtype=np.int32)
    size = 0
    for at in bins:
        if starts[at] < 0:
            starts[at] = size
            size += entries[at]
            wanted_before[at + 1] = 1
    for at in range(num_bins):
        wanted_before[at + 1] += wanted_before[at]
    gaps, heavy = np.empty(size), np.empty(size, dtype=np.int64)
    filled = starts.copy()
    for i in range(used):
        if wanted_before[entry_bins[i, 1] + 1] == wanted_before[entry_bins[i, 0]]:
            continue
        steps = _gaps_of_entry(st, gap_log, i, buffer)
        for j in range(steps):
            at = (bits_of(buffer[j]) - base >> shift) + 1 if buffer[j] > 0.0 else 0
            if starts[at] >= 0:
                gaps[filled[at]] = buffer[j]
                heavy[filled[at]] = np.int64(gap_log[i, GAP_COUNT])
                filled[at] += 1
    found = np.empty(wanted.size)
    for i in range(wanted.size):
        begin, end = starts[bins[i]], filled[bins[i]]
        found[i] = _weighted_value(gaps[begin:end], heavy[begin:end], wanted[i] - below[bins[i]])
    return found


@allocating
def _weighted_value(values, weights, rank):  # type: ignore[no-untyped-def]
    """The value at `rank` of the sorted multiset in which values[i] occurs weights[i] times; reorders both.

    Counts in ever finer bins until few values are left.
    """
    size = values.size
    counts = np.empty(_FINE_BINS, dtype=np.int64)
    while size > _FEW:
        least, most = values[0], values[0]
        for value in values[:size]:
            least = value if value < least else least
            most = value if value > most else most
        if least == most:
            return least
        base, shift = bits_of(least), bin_shift(least, most, _FINE_BINS)
        counts[:] = 0
        for i in range(size):
            counts[bits_of(values[i]) - base >> shift] += weights[i]
        at = 0
        while rank >= counts[at]:
            rank -= counts[at]
            at += 1
        kept = 0
        for i in range(size):
            if bits_of(values[i]) - base >> shift == at:
                values[i], values[kept] = values[kept], values[i]
                weights[i], weights[kept] = weights[kept], weights[i]
                kept += 1
        size = kept
    return _weighted_select(values[:size], weights[:size], rank)


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
