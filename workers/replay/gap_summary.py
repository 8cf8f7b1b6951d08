"""Statistics of all token gaps of a replay, read from its gap log without expanding a gap per token.

Percentiles are exact nearest ranks: gaps are counted in bins of their leading bits (see order_statistics), a whole run of
passes at a time, and only the passes in a bin that holds a wanted rank are looked at one by one.
"""

import math

import numpy as np

from workers.replay.compiled import allocating, inner
from workers.replay.gap_pieces import (
    NUM,
    WEIGHT,
    gap_of,
    is_monotone,
    pieces_of,
    range_of,
    sums_of,
)
from workers.replay.order_statistics import bin_shift, bits_of, nearest_rank
from workers.replay.state import exact_values_of

_FINE_BINS, _FEW = 256, 32
_FIRST_BITS, _OCTAVES, _MANY = (1023 - 15) << 52, 40, 8192
"""Bins begin at 2**-15 ms: 2**fine an octave, one bin for what is shorter and one for what is longer. Many pieces are worth
finer bins: fewer gaps share one with a wanted rank."""


@allocating
def describe_gaps(st, copies, quantiles, gap_out, rate_out):  # type: ignore[no-untyped-def]
    """Statistics of all token gaps and of the rates 1000 / gap of those above zero; returns the number of gaps."""
    gap_out[:] = math.nan
    rate_out[:] = math.nan
    pieces = pieces_of(st)
    if pieces.shape[0] == 0:
        return 0
    num, zeros = np.int64(0), np.int64(0)
    total, least, most = 0.0, math.inf, 0.0
    least_positive = math.inf
    centre = gap_of(exact_values_of(st), pieces, 0, 0)
    rate_centre = 1000.0 / centre if centre > 0.0 else 0.0
    square, rate_sum, rate_square = 0.0, 0.0, 0.0
    for p in range(pieces.shape[0]):
        weight = pieces[p, WEIGHT]
        count = np.int64(weight) * np.int64(pieces[p, NUM])
        low, high = range_of(st, pieces, p)
        least, most = min(least, low), max(most, high)
        num += count
        if low <= 0.0:
            zeros += count
            total -= count * centre
            square += count * centre * centre
            continue
        least_positive = min(least_positive, low)
        offs, off_squares, rates, rate_squares = sums_of(st, pieces, p, centre, rate_centre)
        total += weight * offs
        square += weight * off_squares
        rate_sum += weight * rates
        rate_square += weight * rate_squares
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
    found = _gaps_at_ranks(st, pieces, wanted)
    for i in range(num_ranks):
        gap_out[3 + i] = found[i]
        if positive > 0:
            rate_out[3 + i] = 1000.0 / found[num_ranks + i]
    return num * copies


@inner
def _bin_of(gap, fine):  # type: ignore[no-untyped-def]
    return min(max((bits_of(gap) - _FIRST_BITS >> (52 - fine)) + 1, 0), (_OCTAVES << fine) + 1)


@inner
def _end_of_run(values, pieces, p, begin, monotone, last_bin, fine):  # type: ignore[no-untyped-def]
    """(bin of gap `begin` of piece p, end of the run of gaps from there on that share it)."""
    num = np.int64(pieces[p, NUM])
    at = _bin_of(gap_of(values, pieces, p, begin), fine)
    if monotone:
        if at == last_bin:
            return at, num
        low, high = begin, num - 1
        while high - low > 1:
            middle = (low + high) >> 1
            if _bin_of(gap_of(values, pieces, p, middle), fine) == at:
                low = middle
            else:
                high = middle
        return at, high
    end = begin + 1
    while end < num and _bin_of(gap_of(values, pieces, p, end), fine) == at:
        end += 1
    return at, end


@allocating
def _gaps_at_ranks(st, pieces, wanted):  # type: ignore[no-untyped-def]
    """The gaps at 0-based ranks of the sorted multiset."""
    values = exact_values_of(st)
    fine = 8 if pieces.shape[0] < _MANY else 10
    all_bins = (_OCTAVES << fine) + 2
    weights = np.zeros(all_bins, dtype=np.int64)
    entries = np.zeros(all_bins, dtype=np.int32)
    ranges = np.empty((pieces.shape[0], 2), dtype=np.int32)
    lowest, highest = np.int64(all_bins), np.int64(0)
    for p in range(pieces.shape[0]):
        num, weight = np.int64(pieces[p, NUM]), np.int64(pieces[p, WEIGHT])
        monotone = is_monotone(st, pieces, p)
        last_bin = _bin_of(gap_of(values, pieces, p, num - 1), fine)
        first, last = np.int64(all_bins), np.int64(0)
        end = np.int64(0)
        while end < num:
            begin = end
            at, end = _end_of_run(values, pieces, p, begin, monotone, last_bin, fine)
            weights[at] += weight * (end - begin)
            entries[at] += end - begin
            first, last = min(first, at), max(last, at)
        ranges[p, 0], ranges[p, 1] = first, last
        lowest, highest = min(lowest, first), max(highest, last)
    # Per rank its bin and the weight below it; per wanted bin, in order, where its gaps are put.
    order = np.argsort(wanted)
    bins, places = np.empty(wanted.size, dtype=np.int64), np.empty(wanted.size, dtype=np.int64)
    ranks = np.empty(wanted.size, dtype=np.int64)
    starts = np.empty(wanted.size, dtype=np.int64)
    num_bins, size, below, at = 0, 0, np.int64(0), lowest
    for i in order:
        while wanted[i] >= below + weights[at]:
            below += weights[at]
            at += 1
        ranks[i] = wanted[i] - below
        if num_bins == 0 or bins[num_bins - 1] != at:
            bins[num_bins], starts[num_bins] = at, size
            size += entries[at]
            num_bins += 1
        places[i] = num_bins - 1
    gaps, heavy = np.empty(size), np.empty(size, dtype=np.int64)
    filled = starts[:num_bins].copy()
    for p in range(pieces.shape[0]):
        k = 0
        while k < num_bins and bins[k] < ranges[p, 0]:
            k += 1
        if k == num_bins or bins[k] > ranges[p, 1]:
            continue
        num = np.int64(pieces[p, NUM])
        monotone = is_monotone(st, pieces, p)
        last_bin = _bin_of(gap_of(values, pieces, p, num - 1), fine)
        end = np.int64(0)
        while end < num:
            begin = end
            at, end = _end_of_run(values, pieces, p, begin, monotone, last_bin, fine)
            for k in range(num_bins):
                if bins[k] == at:
                    for i in range(begin, end):
                        gaps[filled[k]] = gap_of(values, pieces, p, i)
                        heavy[filled[k]] = np.int64(pieces[p, WEIGHT])
                        filled[k] += 1
    found = np.empty(wanted.size)
    for i in range(wanted.size):
        begin, end = starts[places[i]], filled[places[i]]
        found[i] = _weighted_value(gaps[begin:end], heavy[begin:end], ranks[i])
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
