"""Statistics of all token gaps of a replay, read from its gap log without expanding a gap per token.

Percentiles are exact nearest ranks, see gap_ranks.
"""

import math

import numpy as np

from workers.replay.compiled import allocating, inner
from workers.replay.gap_pieces import (
    NUM,
    WEIGHT,
    gap_of,
    pieces_of,
    range_of,
    sums_of,
)
from workers.replay.gap_ranks import gaps_at_ranks
from workers.replay.order_statistics import nearest_rank
from workers.replay.state import exact_values_of


@allocating
def describe_gaps(st, copies, quantiles, gap_out, rate_out):  # type: ignore[no-untyped-def]
    """Statistics of all token gaps and of the rates 1000 / gap of those above zero; returns the number of gaps."""
    gap_out[:] = math.nan
    rate_out[:] = math.nan
    pieces = pieces_of(st)
    if pieces.shape[0] == 0:
        return 0
    (num, zeros, total, least, most, least_positive, centre, rate_centre, square, rate_sum, rate_square) = _totals(
        st, pieces
    )
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
    found = gaps_at_ranks(st, pieces, wanted, least_positive, most)
    for i in range(num_ranks):
        gap_out[3 + i] = found[i]
        if positive > 0:
            rate_out[3 + i] = 1000.0 / found[num_ranks + i]
    return num * copies


@inner
def _totals(st, pieces):  # type: ignore[no-untyped-def]
    """Number of token gaps and of those of no time; sums and ranges about `centre` and `rate_centre`, see `sums_of`."""
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
    return num, zeros, total, least, most, least_positive, centre, rate_centre, square, rate_sum, rate_square
