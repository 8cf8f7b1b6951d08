"""Order statistics without sorting: samples are counted in bins of their leading bits, and only wanted bins looked into.

The bits of non-negative floats order as the floats do, so a bin is a range of values. Selecting by comparisons costs a
mispredicted branch for every other sample, counting does not.
"""

import numpy as np

from workers.replay.compiled import allocating, inner

_BINS = 1024


@inner
def bits_of(value):  # type: ignore[no-untyped-def]
    """The bits of a non-negative float as an integer, which order as the floats do."""
    return np.float64(value).view(np.int64)


@inner
def bin_shift(least, most, most_bins):  # type: ignore[no-untyped-def]
    """By how many bits to shift `bits_of(x) - bits_of(least)`, least <= x <= most, for at most `most_bins` bins."""
    spread = bits_of(most) - bits_of(least)
    shift = 0
    while (spread >> shift) >= most_bins:
        shift += 1
    return shift


@inner
def nearest_rank(num, quantile):  # type: ignore[no-untyped-def]
    """Index of a quantile among `num` sorted samples: nearest rank, half away from zero."""
    return np.int64(np.floor((num - 1) * quantile + 0.5))


@allocating
def values_at_ranks(values, least, most, ranks, found):  # type: ignore[no-untyped-def]
    """Write the value at each 0-based rank of the sorted samples into `found`.

    values: float64 [N], N > 0, from `least` >= 0 to `most`. ranks: int64 [K], ascending.
    """
    base, shift = bits_of(least), bin_shift(least, most, _BINS)
    num_bins = (bits_of(most) - base >> shift) + 1
    counts = np.zeros(num_bins, dtype=np.int32)
    for value in values:
        counts[bits_of(value) - base >> shift] += 1
    # Per rank its bin and how many samples lie below that; per wanted bin where its members go.
    bins, belows = np.empty(ranks.size, dtype=np.int64), np.empty(ranks.size, dtype=np.int64)
    starts = np.full(num_bins, -1, dtype=np.int32)
    at, below, size = 0, 0, 0
    for i in range(ranks.size):
        while ranks[i] >= below + counts[at]:
            below += counts[at]
            at += 1
        bins[i], belows[i] = at, below
        if starts[at] < 0:
            starts[at] = size
            size += counts[at]
    members = np.empty(size)
    for value in values:
        at = bits_of(value) - base >> shift
        if starts[at] >= 0:
            members[starts[at]] = value
            starts[at] += 1
    for i in range(ranks.size):
        end = starts[bins[i]]
        found[i] = _select(members[end - counts[bins[i]] : end], ranks[i] - belows[i])


@inner
def _select(values, rank):  # type: ignore[no-untyped-def]
    """The value at `rank` of the sorted values; reorders them."""
    low, high = 0, values.size - 1
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
            return pivot
    return values[rank]
