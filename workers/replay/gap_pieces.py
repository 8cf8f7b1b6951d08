"""The token gaps of a replay as pieces: runs of consecutive passes whose gaps follow one rule, so that a run costs as much
as a single gap.

pieces: float64 [P, NUM_PIECE_COLUMNS]. NUM gaps, each with weight WEIGHT (token gaps per pass). Gap i is VALUE + SLOPE *
(FIRST + i) ms; with SLOPE NaN it is exact_values[FIRST + i], all of one chunk of that table.
exact_rates: float64, 1000 / exact_values. exact_facts: float64 [chunks], 1 if the chunk's known values never fall or never
rise, 0 if neither, NaN while that has not been asked.
"""

import math

import numpy as np

from workers.replay.compiled import allocating, inner, summing
from workers.replay.state import (
    GAP_CONTEXT,
    GAP_COUNT,
    GAP_MS,
    GAP_STEPS,
    GAPS_USED,
    decode_table_of,
    exact_facts_of,
    exact_rates_of,
    exact_values_of,
    gaps_of,
    numbers_of,
    timing_of,
)
from workers.replay.step_lookup import (
    CHUNK,
    CHUNK_BITS,
    EXACT,
    KNOTS,
    NUM_CELLS,
    TIMING,
    cell_of,
    decode_duration,
    exact_place,
)

VALUE, SLOPE, FIRST, NUM, WEIGHT, NUM_PIECE_COLUMNS = range(6)
_FEW, _SLOW_GROWTH = 3, 0.02


@allocating
def pieces_of(st):  # type: ignore[no-untyped-def]
    """The pieces of a finished replay, in the order of its gap log."""
    used = numbers_of(st)[GAPS_USED]
    pieces = np.empty((used + (used >> 1) + 16, NUM_PIECE_COLUMNS))
    # Entry of the log, its repetitions written, pieces written.
    progress = np.zeros(3, dtype=np.int64)
    while not _write_pieces(st, pieces, progress):
        longer = np.empty((2 * pieces.shape[0], NUM_PIECE_COLUMNS))
        longer[: pieces.shape[0]] = pieces
        pieces = longer
    return pieces[: progress[2]]


@inner
def _write_pieces(st, pieces, progress):  # type: ignore[no-untyped-def]
    """Write what fits; True when that was all. Apart from `pieces_of`, as counting references to a growing array takes
    several times as long as the pieces."""
    gap_log = gaps_of(st)
    i, done, num = progress[0], progress[1], progress[2]
    for entry in range(i, numbers_of(st)[GAPS_USED]):
        steps = max(np.int64(gap_log[entry, GAP_STEPS]), np.int64(1))
        while done < steps:
            if num == pieces.shape[0]:
                progress[0], progress[1], progress[2] = entry, done, num
                return False
            done += _write_piece(st, gap_log, entry, done, pieces, num)
            num += 1
        done = np.int64(0)
    progress[2] = num
    return True


@inner
def _write_piece(st, gap_log, i, done, pieces, at):  # type: ignore[no-untyped-def]
    """Write the piece of log entry i that begins with its repetition `done`; returns how many it holds."""
    steps = np.int64(gap_log[i, GAP_STEPS])
    pieces[at, WEIGHT] = gap_log[i, GAP_COUNT]
    pieces[at, SLOPE] = 0.0
    pieces[at, FIRST] = 0.0
    pieces[at, NUM] = 1.0
    if steps == 0:
        pieces[at, VALUE] = gap_log[i, GAP_MS]
        return np.int64(1)
    n, context_sum = np.int64(gap_log[i, GAP_COUNT]), np.int64(gap_log[i, GAP_CONTEXT])
    kind = timing_of(st)[TIMING]
    mean = context_sum // n + done
    if kind == EXACT:
        num = min(steps - done, CHUNK - (mean & (CHUNK - 1)))
        place = exact_place(st, n, mean)
        pieces[at, VALUE] = exact_values_of(st)[place]
        pieces[at, SLOPE] = math.nan
        pieces[at, FIRST] = place
        pieces[at, NUM] = num
        return num
    if kind != KNOTS:
        pieces[at, VALUE] = decode_duration(st, n, context_sum + done * n)
        return np.int64(1)
    cell, start, width = cell_of(mean)
    table = decode_table_of(st)
    place = 2 * (n * NUM_CELLS + cell)
    num = np.int64(min(steps - done, start + width - mean))
    pieces[at, VALUE] = table[place]
    pieces[at, SLOPE] = table[place + 1]
    pieces[at, FIRST] = mean - start
    pieces[at, NUM] = num
    return num


@inner
def gap_of(values, pieces, p, i):  # type: ignore[no-untyped-def]
    """Gap i of piece p, ms."""
    if math.isnan(pieces[p, SLOPE]):
        return values[np.int64(pieces[p, FIRST]) + i]
    return pieces[p, VALUE] + pieces[p, SLOPE] * (pieces[p, FIRST] + i)


@inner
def is_monotone(st, pieces, p):  # type: ignore[no-untyped-def]
    """True when the gaps of piece p never fall or never rise."""
    if not math.isnan(pieces[p, SLOPE]):
        return True
    chunk, facts = np.int64(pieces[p, FIRST]) >> CHUNK_BITS, exact_facts_of(st)
    if math.isnan(facts[chunk]):
        facts[chunk] = 1.0 if _is_chunk_monotone(exact_values_of(st), chunk << CHUNK_BITS) else 0.0
    return facts[chunk] == 1.0


@inner
def _is_chunk_monotone(values, start):  # type: ignore[no-untyped-def]
    """True when the known values of the chunk that begins at `start` never fall or never rise."""
    rises, falls, before = True, True, math.nan
    for place in range(start, start + CHUNK):
        value = values[place]
        if not math.isnan(value):
            rises &= not value < before
            falls &= not value > before
            before = value
    return rises or falls


@inner
def range_of(st, pieces, p):  # type: ignore[no-untyped-def]
    """(least, most) gap of piece p."""
    values, num = exact_values_of(st), np.int64(pieces[p, NUM])
    low = gap_of(values, pieces, p, 0)
    if num == 1:
        return low, low
    high = gap_of(values, pieces, p, num - 1)
    if low > high:
        low, high = high, low
    if not is_monotone(st, pieces, p):
        for i in range(num):
            low, high = min(low, gap_of(values, pieces, p, i)), max(high, gap_of(values, pieces, p, i))
    return low, high


@inner
def sums_of(st, pieces, p, centre, rate_centre):  # type: ignore[no-untyped-def]
    """Over the gaps x > 0 of piece p: sums of x - centre, its square, 1000 / x - rate_centre and its square."""
    num, slope = pieces[p, NUM], pieces[p, SLOPE]
    if math.isnan(slope):
        place = np.int64(pieces[p, FIRST])
        return _sums_of_exact(
            exact_values_of(st), exact_rates_of(st), place, place + np.int64(num), centre, rate_centre
        )
    first = pieces[p, VALUE] + slope * pieces[p, FIRST]
    off = first - centre
    if num == 1.0:
        rate = 1000.0 / first - rate_centre
        return off, off * off, rate, rate * rate
    pairs = num * (num - 1.0) / 2.0
    squares = pairs * (2.0 * num - 1.0) / 3.0
    total = num * off + slope * pairs
    square = num * off * off + 2.0 * off * slope * pairs + slope * slope * squares
    if num <= _FEW:
        rates, rate_squares = 0.0, 0.0
        for i in range(np.int64(num)):
            rate = 1000.0 / (first + slope * i) - rate_centre
            rates += rate
            rate_squares += rate * rate
        return total, square, rates, rate_squares
    rates, rate_squares = _reciprocal_sums(first, slope, num)
    return (
        total,
        square,
        1000.0 * rates - num * rate_centre,
        1e6 * rate_squares - 2000.0 * rate_centre * rates + num * rate_centre * rate_centre,
    )


@inner
def _reciprocal_sums(first, slope, num):  # type: ignore[no-untyped-def]
    """Sums of 1 / x and 1 / x**2 over x = first, first + slope, ..., `num` terms, by the Euler-Maclaurin formula.

    The first term left out is below (slope / x)**5 of the last, which is nothing for a pass and one more token.
    """
    reach = slope * (num - 1.0)
    last = first + reach
    a, b = 1.0 / first, 1.0 / last
    growth = reach * a
    area = (num - 1.0) * a * _log1p_ratio(growth)
    a2, b2, slope2 = a * a, b * b, slope * slope
    plain = area + 0.5 * (a + b) + slope * (a2 - b2) / 12.0 - slope * slope2 * (a2 * a2 - b2 * b2) / 120.0
    squared = (num - 1.0) * a * b + 0.5 * (a2 + b2) + slope * (a2 * a - b2 * b) / 6.0
    return plain, squared - slope * slope2 * (a2 * a2 * a - b2 * b2 * b) / 30.0


@inner
def _log1p_ratio(x):  # type: ignore[no-untyped-def]
    """log(1 + x) / x; the first term left out of the series is below 4e-15."""
    if abs(x) > _SLOW_GROWTH:
        return math.log1p(x) / x
    return 1.0 - x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x * (1 / 6 - x * (1 / 7 - x / 8))))))


@summing
def _sums_of_exact(values, exact_rates, place, end, centre, rate_centre):  # type: ignore[no-untyped-def]
    total, square, rates, rate_squares = 0.0, 0.0, 0.0, 0.0
    for i in range(place, end):
        off, rate_off = values[i] - centre, exact_rates[i] - rate_centre
        total += off
        square += off * off
        rates += rate_off
        rate_squares += rate_off * rate_off
    return total, square, rates, rate_squares
