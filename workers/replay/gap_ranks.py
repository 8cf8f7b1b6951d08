"""Token gaps at given ranks, without expanding or sorting them all.

Gaps are counted in bins of their leading bits, a whole run of passes at a time; what lies in a bin that holds a wanted rank
is looked at one by one. The bits of floats above zero order as the floats do (see order_statistics). Bin 0 is for gaps of no
time at all.
"""

import math

import numpy as np

from workers.replay.compiled import allocating, inner
from workers.replay.gap_pieces import FIRST, NUM, SLOPE, VALUE, WEIGHT, gap_of, is_monotone
from workers.replay.order_statistics import bin_shift, bits_of
from workers.replay.state import exact_values_of

_BINS, _FINE_BITS = 4096, 8
_FINE_BINS = 1 << _FINE_BITS


@allocating
def gaps_at_ranks(st, pieces, wanted, least, most):  # type: ignore[no-untyped-def]
    """ms of the gaps at 0-based ranks of the sorted multiset; those above zero are from `least` to `most`.

    Args: pieces, see gap_pieces; wanted, int64 [K].
    """
    least = min(least, most)
    base, shift = bits_of(least), bin_shift(least, most, _BINS)
    weights = np.zeros((bits_of(most) - base >> shift) + 2, dtype=np.int64)
    entries = np.zeros(weights.size, dtype=np.int64)
    ranges = _count_runs(st, pieces, base, shift, weights, entries)
    order, ranks, groups = np.argsort(wanted), wanted.copy(), np.empty(wanted.size, dtype=np.int64)
    # A wanted bin is a group: its number by bin, the bits it starts with, where its gaps are put.
    group_of, starts = np.full(weights.size, -1, dtype=np.int32), np.empty(wanted.size, dtype=np.int64)
    begins = np.zeros(wanted.size + 1, dtype=np.int64)
    num_groups, at, below = 0, np.int64(0), np.int64(0)
    for i in order:
        while wanted[i] >= below + weights[at]:
            below += weights[at]
            at += 1
        if group_of[at] < 0:
            group_of[at] = num_groups
            starts[num_groups] = 0 if at == 0 else base + (at - 1 << shift)
            num_groups += 1
            begins[num_groups] = begins[num_groups - 1] + entries[at]
        ranks[i], groups[i] = wanted[i] - below, group_of[at]
    gaps, heavy = np.empty(begins[num_groups]), np.empty(begins[num_groups], dtype=np.int64)
    _expand(st, pieces, base, shift, ranges, group_of, begins, gaps, heavy)
    found = np.empty(wanted.size)
    for group in range(num_groups):
        inside = slice(begins[group], begins[group + 1])
        _find_in_bin(
            gaps[inside], heavy[inside], starts[group], max(shift - _FINE_BITS, 0), group, groups, ranks, found
        )
    return found


@inner
def _bin_of(gap, base, shift):  # type: ignore[no-untyped-def]
    return (max(bits_of(gap) - base, np.int64(-1)) >> shift) + 1


@inner
def _end_of_run(values, pieces, p, begin, monotone, base, shift):  # type: ignore[no-untyped-def]
    """(bin of gap `begin` of piece p, end of the run of gaps from there on that share it)."""
    end = np.int64(pieces[p, NUM])
    at = _bin_of(gap_of(values, pieces, p, begin), base, shift)
    if not monotone:
        stop = begin + 1
        while stop < end and _bin_of(gap_of(values, pieces, p, stop), base, shift) == at:
            stop += 1
        return at, stop
    if _bin_of(gap_of(values, pieces, p, end - 1), base, shift) == at:
        return at, end
    slope = pieces[p, SLOPE]
    if not math.isnan(slope):
        # Where the line crosses the edge of the bin, give or take a rounding.
        edge = np.int64(base + (at - (0 if slope > 0.0 else 1) << shift)).view(np.float64)
        stop = min(max(np.int64((edge - pieces[p, VALUE]) / slope - pieces[p, FIRST]), begin + 1), end - 1)
        while _bin_of(gap_of(values, pieces, p, stop), base, shift) == at:
            stop += 1
        while stop - 1 > begin and _bin_of(gap_of(values, pieces, p, stop - 1), base, shift) != at:
            stop -= 1
        return at, stop
    low, high = begin, end - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if _bin_of(gap_of(values, pieces, p, middle), base, shift) == at:
            low = middle
        else:
            high = middle
    return at, high


@allocating
def _count_runs(st, pieces, base, shift, weights, entries):  # type: ignore[no-untyped-def]
    """Add up token gaps and passes per bin; returns every piece's first and last bin, int32 [P, 2]."""
    values = exact_values_of(st)
    ranges = np.empty((pieces.shape[0], 2), dtype=np.int32)
    for p in range(pieces.shape[0]):
        num, weight = np.int64(pieces[p, NUM]), np.int64(pieces[p, WEIGHT])
        if num == 1:
            at = _bin_of(gap_of(values, pieces, p, 0), base, shift)
            weights[at] += weight
            entries[at] += 1
            ranges[p, 0] = ranges[p, 1] = at
            continue
        monotone = is_monotone(st, pieces, p)
        first, last = np.int64(weights.size), np.int64(0)
        end = np.int64(0)
        while end < num:
            begin = end
            at, end = _end_of_run(values, pieces, p, begin, monotone, base, shift)
            weights[at] += weight * (end - begin)
            entries[at] += end - begin
            first, last = min(first, at), max(last, at)
        ranges[p, 0], ranges[p, 1] = first, last
    return ranges


@allocating
def _expand(st, pieces, base, shift, ranges, group_of, begins, gaps, heavy):  # type: ignore[no-untyped-def]
    """Put every gap of a bin with a group, and how many tokens have it, where its group begins."""
    values = exact_values_of(st)
    filled = begins.copy()
    grouped_before = np.zeros(group_of.size + 1, dtype=np.int32)
    for at in range(group_of.size):
        grouped_before[at + 1] = grouped_before[at] + (1 if group_of[at] >= 0 else 0)
    for p in range(pieces.shape[0]):
        if grouped_before[ranges[p, 0]] == grouped_before[ranges[p, 1] + 1]:
            continue
        num, weight = np.int64(pieces[p, NUM]), np.int64(pieces[p, WEIGHT])
        monotone = num == 1 or is_monotone(st, pieces, p)
        end = np.int64(0)
        while end < num:
            begin = end
            at, end = _end_of_run(values, pieces, p, begin, monotone, base, shift)
            group = group_of[at]
            if group < 0:
                continue
            place = filled[group]
            filled[group] = place + end - begin
            for i in range(begin, end):
                gaps[place], heavy[place] = gap_of(values, pieces, p, i), weight
                place += 1


@allocating
def _find_in_bin(gaps, heavy, start, shift, group, groups, ranks, found):  # type: ignore[no-untyped-def]
    """Write `found` for the ranks of one group: `gaps` in its bin, each with a weight, the bin starting with bits `start`."""
    counts, members = np.zeros(_FINE_BINS, dtype=np.int64), np.zeros(_FINE_BINS, dtype=np.int64)
    for i in range(gaps.size):
        at = bits_of(gaps[i]) - start >> shift
        counts[at] += heavy[i]
        members[at] += 1
    for i in range(ranks.size):
        if groups[i] != group:
            continue
        rank, at = ranks[i], 0
        while rank >= counts[at]:
            rank -= counts[at]
            at += 1
        values, weights, size = np.empty(members[at]), np.empty(members[at], dtype=np.int64), 0
        for j in range(gaps.size):
            if bits_of(gaps[j]) - start >> shift == at:
                values[size], weights[size] = gaps[j], heavy[j]
                size += 1
        found[i] = _weighted_select(values, weights, rank)


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
