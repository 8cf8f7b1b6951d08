"""Token gaps at given ranks, without expanding or sorting them all.

Gaps are counted in bins of their leading bits, a whole run of passes at a time; the bins that hold a wanted rank are counted
again in finer ones, and what lies in a wanted finer bin is looked at one by one. The bits of floats above zero order as the
floats do (see order_statistics). Bin 0 is for gaps of no time at all.
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
    fine_shift = max(shift - _FINE_BITS, 0)
    weights = np.zeros((bits_of(most) - base >> shift) + 2, dtype=np.int64)
    ranges = np.empty((pieces.shape[0], 2), dtype=np.int32)
    _count_runs(st, pieces, base, shift, weights, ranges)
    # A bin that holds a rank is a group: the number of each bin's, the bits each group starts with.
    order, ranks, groups = np.argsort(wanted), wanted.copy(), np.empty(wanted.size, dtype=np.int64)
    group_of, starts = np.full(weights.size, -1, dtype=np.int32), np.empty(wanted.size, dtype=np.int64)
    num_groups = _settle(weights, order, ranks, groups, group_of, base, shift, starts)
    touching = np.empty(pieces.shape[0], dtype=np.int32)
    grouped_before = np.zeros(group_of.size + 1, dtype=np.int32)
    touching = touching[: _note_touching(ranges, group_of, grouped_before, touching)]
    bins = (base, shift, group_of, starts, fine_shift)
    # A finer bin of a group is a cell; one that holds a rank is looked through.
    cells = np.zeros((num_groups * _FINE_BINS, 2), dtype=np.int64)
    _count_cells(st, pieces, touching, bins, cells)
    cell_of, places = np.full(cells.shape[0], -1, dtype=np.int32), np.empty(wanted.size, dtype=np.int64)
    begins = np.zeros(wanted.size + 1, dtype=np.int64)
    _settle_cells(cells, order, ranks, groups, places, cell_of, begins)
    wanted_before = np.zeros(cells.shape[0] + 1, dtype=np.int32)
    wanted_before[1:] = np.cumsum(cell_of >= 0)
    gaps, heavy = np.empty(begins[-1]), np.empty(begins[-1], dtype=np.int64)
    _expand(st, pieces, touching, bins, cell_of, wanted_before, begins.copy(), gaps, heavy)
    found = np.empty(wanted.size)
    for i in range(wanted.size):
        inside = slice(begins[places[i]], begins[places[i] + 1])
        found[i] = _weighted_select(gaps[inside], heavy[inside], ranks[i])
    return found


@inner
def _settle(weights, order, ranks, groups, group_of, base, shift, starts):  # type: ignore[no-untyped-def]
    """Number the bins that hold a rank, ascending, and write the bits each starts with; every rank becomes that inside its
    bin. Returns how many bins."""
    num_groups, at, below = 0, np.int64(0), np.int64(0)
    for i in order:
        while ranks[i] >= below + weights[at]:
            below += weights[at]
            at += 1
        if group_of[at] < 0:
            group_of[at] = num_groups
            starts[num_groups] = 0 if at == 0 else base + (at - 1 << shift)
            num_groups += 1
        ranks[i] -= below
        groups[i] = group_of[at]
    return num_groups


@inner
def _note_touching(ranges, group_of, grouped_before, touching):  # type: ignore[no-untyped-def]
    """Write which pieces may reach into a group; returns how many. grouped_before: groups below each bin."""
    for at in range(group_of.size):
        grouped_before[at + 1] = grouped_before[at] + (1 if group_of[at] >= 0 else 0)
    num = 0
    for p in range(ranges.shape[0]):
        touching[num] = p
        num += 1 if grouped_before[ranges[p, 0]] != grouped_before[ranges[p, 1] + 1] else 0
    return num


@inner
def _settle_cells(cells, order, ranks, groups, places, cell_of, begins):  # type: ignore[no-untyped-def]
    """Number the cells that hold a rank; every rank becomes that inside its cell, whose number is its place.

    begins: where the gaps of each numbered cell begin, and after the last where they end.
    """
    num = 0
    for i in order:
        at, below = groups[i] * _FINE_BINS, np.int64(0)
        while ranks[i] >= below + cells[at, 0]:
            below += cells[at, 0]
            at += 1
        if cell_of[at] < 0:
            cell_of[at] = num
            begins[num + 1] = begins[num] + cells[at, 1]
            num += 1
        ranks[i] -= below
        places[i] = cell_of[at]
    for i in range(num, begins.size - 1):
        begins[i + 1] = begins[i]


@inner
def _bin_of(gap, base, shift):  # type: ignore[no-untyped-def]
    return (max(bits_of(gap) - base, np.int64(-1)) >> shift) + 1


@inner
def _end_of_run(values, pieces, p, begin, end, monotone, base, shift):  # type: ignore[no-untyped-def]
    """(bin of gap `begin` of piece p, end of the run of gaps from there on, before `end`, that share it)."""
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


@inner
def _count_runs(st, pieces, base, shift, weights, ranges):  # type: ignore[no-untyped-def]
    """Add up token gaps per bin; writes every piece's first and last bin, int32 [P, 2]."""
    values = exact_values_of(st)
    for p in range(pieces.shape[0]):
        num, weight = np.int64(pieces[p, NUM]), np.int64(pieces[p, WEIGHT])
        if num == 1:
            at = _bin_of(gap_of(values, pieces, p, 0), base, shift)
            weights[at] += weight
            ranges[p, 0] = ranges[p, 1] = at
            continue
        monotone = is_monotone(st, pieces, p)
        first, last = np.int64(weights.size), np.int64(0)
        end = np.int64(0)
        while end < num:
            begin = end
            at, end = _end_of_run(values, pieces, p, begin, num, monotone, base, shift)
            weights[at] += weight * (end - begin)
            first, last = min(first, at), max(last, at)
        ranges[p, 0], ranges[p, 1] = first, last


@inner
def _count_cells(st, pieces, touching, bins, cells):  # type: ignore[no-untyped-def]
    """Add up (token gaps, passes) of each cell, of which every group has `_FINE_BINS`."""
    values = exact_values_of(st)
    base, shift, group_of, starts, fine_shift = bins
    for p in touching:
        num, weight = np.int64(pieces[p, NUM]), np.int64(pieces[p, WEIGHT])
        monotone = num == 1 or is_monotone(st, pieces, p)
        end = np.int64(0)
        while end < num:
            begin = end
            at, end = _end_of_run(values, pieces, p, begin, num, monotone, base, shift)
            group = group_of[at]
            if group < 0:
                continue
            first_cell, start = group * _FINE_BINS, starts[group]
            for i in range(begin, end):
                cell = first_cell + (bits_of(gap_of(values, pieces, p, i)) - start >> fine_shift)
                cells[cell, 0] += weight
                cells[cell, 1] += 1


@inner
def _expand(st, pieces, touching, bins, cell_of, wanted_before, filled, gaps, heavy):  # type: ignore[no-untyped-def]
    """Put every gap of a wanted cell, and how many tokens have it, where the cell is filled up to."""
    values = exact_values_of(st)
    base, shift, group_of, starts, fine_shift = bins
    for p in touching:
        num, weight = np.int64(pieces[p, NUM]), np.int64(pieces[p, WEIGHT])
        monotone = num == 1 or is_monotone(st, pieces, p)
        end = np.int64(0)
        while end < num:
            begin = end
            at, end = _end_of_run(values, pieces, p, begin, num, monotone, base, shift)
            group = group_of[at]
            if group < 0:
                continue
            first_cell, start = group * _FINE_BINS, starts[group]
            if monotone:
                low = bits_of(gap_of(values, pieces, p, begin)) - start >> fine_shift
                high = bits_of(gap_of(values, pieces, p, end - 1)) - start >> fine_shift
                if wanted_before[first_cell + max(low, high) + 1] == wanted_before[first_cell + min(low, high)]:
                    continue
            for i in range(begin, end):
                gap = gap_of(values, pieces, p, i)
                wanted = cell_of[first_cell + (bits_of(gap) - start >> fine_shift)]
                if wanted >= 0:
                    place = filled[wanted]
                    filled[wanted] = place + 1
                    gaps[place], heavy[place] = gap, weight


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
