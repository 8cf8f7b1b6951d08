"""The token gaps of a replay as pieces: runs of consecutive passes whose gaps follow one rule, so that a run costs as much
as a single gap.

pieces: float64 [P, NUM_PIECE_COLUMNS]. NUM gaps, each with weight WEIGHT (token gaps per pass). Gap i is VALUE + SLOPE *
(FIRST + i) ms; with SLOPE NaN it is exact_values[FIRST + i], all of one chunk of that table.
exact_sums: float64 [values, NUM_SUMS], per chunk the running sums over its known values of what `sums_of` gives, with the
chunk's own centres. exact_facts: float64 [chunks, NUM_CHUNK_FACTS]: these centres, NaN until the sums are made, and 1 if
the chunk's known values never fall or never rise.
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
    exact_facts_of,
    exact_sums_of,
    exact_values_of,
    gaps_of,
    numbers_of,
    timing_of,
)
from workers.replay.step_lookup import (
    CHUNK,
    CHUNK_BITS,
    CHUNK_CENTRE,
    CHUNK_MONOTONE,
    CHUNK_RATE_CENTRE,
    EXACT,
    KNOTS,
    NUM_CELLS,
    NUM_SUMS,
    TIMING,
    cell_of,
    decode_duration,
    exact_place,
)

VALUE, SLOPE, FIRST, NUM, WEIGHT, NUM_PIECE_COLUMNS = range(6)
_FEW = 16


@allocating
def pieces_of(st):  # type: ignore[no-untyped-def]
    """The pieces of a finished replay, in the order of its gap log."""
    gap_log = gaps_of(st)
    used = numbers_of(st)[GAPS_USED]
    pieces = np.empty((used + (used >> 1) + 16, NUM_PIECE_COLUMNS))
    num = 0
    for i in range(used):
        steps = np.int64(gap_log[i, GAP_STEPS])
        done = np.int64(0)
        while done < max(steps, np.int64(1)):
            if num == pieces.shape[0]:
                longer = np.empty((2 * num, NUM_PIECE_COLUMNS))
                longer[:num] = pieces
                pieces = longer
            done += _write_piece(st, gap_log, i, done, pieces, num)
            num += 1
    return pieces[:num]


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
    chunk = np.int64(pieces[p, FIRST]) >> CHUNK_BITS
    if math.isnan(exact_facts_of(st)[chunk, CHUNK_CENTRE]):
        _sum_chunk(st, chunk)
    return exact_facts_of(st)[chunk, CHUNK_MONOTONE] == 1.0


@inner
def range_of(st, pieces, p):  # type: ignore[no-untyped-def]
    """(least, most) gap of piece p."""
    values, num = exact_values_of(st), np.int64(pieces[p, NUM])
    low = gap_of(values, pieces, p, 0)
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
        return _sums_of_exact(st, np.int64(pieces[p, FIRST]), np.int64(num), centre, rate_centre)
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
    area = (num - 1.0) * a * (math.log1p(growth) / growth if growth != 0.0 else 1.0)
    a2, b2, slope2 = a * a, b * b, slope * slope
    plain = area + 0.5 * (a + b) + slope * (a2 - b2) / 12.0 - slope * slope2 * (a2 * a2 - b2 * b2) / 120.0
    squared = (num - 1.0) * a * b + 0.5 * (a2 + b2) + slope * (a2 * a - b2 * b) / 6.0
    return plain, squared - slope * slope2 * (a2 * a2 * a - b2 * b2 * b) / 30.0


@inner
def _sums_of_exact(st, place, num, centre, rate_centre):  # type: ignore[no-untyped-def]
    chunk = place >> CHUNK_BITS
    facts, sums = exact_facts_of(st), exact_sums_of(st)
    if math.isnan(facts[chunk, CHUNK_CENTRE]):
        _sum_chunk(st, chunk)
    end = place + num - 1
    total, square, rates, rate_squares = sums[end, 0], sums[end, 1], sums[end, 2], sums[end, 3]
    if place & (CHUNK - 1) != 0:
        before = place - 1
        total, square = total - sums[before, 0], square - sums[before, 1]
        rates, rate_squares = rates - sums[before, 2], rate_squares - sums[before, 3]
    off, rate_off = facts[chunk, CHUNK_CENTRE] - centre, facts[chunk, CHUNK_RATE_CENTRE] - rate_centre
    square += 2.0 * off * total + num * off * off
    rate_squares += 2.0 * rate_off * rates + num * rate_off * rate_off
    return total + num * off, square, rates + num * rate_off, rate_squares


@inner
def _sum_chunk(st, chunk):  # type: ignore[no-untyped-def]
    """Make the running sums of a chunk; a value that is unknown counts as the centre."""
    values, sums, facts = exact_values_of(st), exact_sums_of(st), exact_facts_of(st)
    start = chunk << CHUNK_BITS
    centre = 0.0
    for place in range(start + CHUNK - 1, start - 1, -1):
        if not math.isnan(values[place]):
            centre = values[place]
    rate_centre = 1000.0 / centre
    running = (0.0, 0.0, 0.0, 0.0)
    rises, falls, before = True, True, centre
    for place in range(start, start + CHUNK):
        value = values[place]
        if not math.isnan(value):
            off, rate = value - centre, 1000.0 / value - rate_centre
            running = (running[0] + off, running[1] + off * off, running[2] + rate, running[3] + rate * rate)
            rises &= value >= before
            falls &= value <= before
            before = value
        for column in range(NUM_SUMS):
            sums[place, column] = running[column]
    facts[chunk, CHUNK_MONOTONE] = 1.0 if rises or falls else 0.0
    facts[chunk, CHUNK_RATE_CENTRE] = rate_centre
    facts[chunk, CHUNK_CENTRE] = centre
