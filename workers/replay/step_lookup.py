"""Compiled look-ups of step times, and the walk of the clock through a stretch of equal decode passes.

The clock adds one duration per pass, in pass order, so a stretch that is cut and resumed ends at the same float as one
that is not. Interpolated durations, which equal the model's to some digits only, are summed a cell at a time. Unknown
durations are NaN: the loop then asks the host, which fills the tables (see step_table).

timing: int64 [NUM_TIMING]. rates: float64 [NUM_RATES]. decode_table: float64 [NUM_ROWS, NUM_CELLS, 2], row n: ms at the
start of a cell of context lengths and ms per further token. memo: int64 [H, 4], KEY_A NONE when empty: KEY_A and KEY_B are
(n << 32 | isl, prefix) of a prefill, (DECODE_TAG | n, context sum) of a decode pass, MEMO_MS the bits of a float, ms.
exact_index: int32 [EXACT_ROWS, EXACT_WIDTH], chunk of batch size n and context // CHUNK, or NONE; exact_values: float64
[chunks, CHUNK], ms. exact_rates, exact_facts: see gap_pieces.
"""

import math

import numpy as np

from workers.replay.compiled import entry, inner
from workers.replay.state import (
    MISS_A,
    MISS_B,
    MISS_N,
    NONE,
    decode_table_of,
    exact_index_of,
    exact_values_of,
    memo_of,
    numbers_of,
    rates_of,
    timing_of,
)
from workers.timing.polynomial import DECODE_COEFFICIENTS, PREFILL_COEFFICIENTS

CONSTANT, POLYNOMIAL, KNOTS, MEMO, EXACT = range(5)
TIMING, HASH_MASK, HASH_USED, NUM_ROWS, EXACT_ROWS, EXACT_WIDTH, EXACT_CHUNKS, NUM_TIMING = range(8)
PREFILL_MS, DECODE_MS, POOL_TOKENS, NUM_RATES = range(4)
KEY_A, KEY_B, MEMO_MS = range(3)

FINE = 32
"""Context lengths below this have a cell each; above, an octave has CELLS_PER_OCTAVE cells of equal width."""
CELLS_PER_OCTAVE = 16
NUM_CELLS = FINE + CELLS_PER_OCTAVE * 17
DECODE_TAG = 1 << 62
CHUNK_BITS = 7
CHUNK = 1 << CHUNK_BITS

_P2, _P1, _P0 = PREFILL_COEFFICIENTS
_D2, _D1, _D0 = DECODE_COEFFICIENTS


@entry
def cell_of(context):  # type: ignore[no-untyped-def]
    """(cell, first context, width) of the cell that holds a context length."""
    if context < FINE:
        return context, context, 1
    octave = (np.float64(context).view(np.int64) >> 52) - 1023
    shift = octave - 4
    step = (context >> shift) - CELLS_PER_OCTAVE
    return FINE + (octave - 5) * CELLS_PER_OCTAVE + step, (context >> shift) << shift, 1 << shift


@entry
def slot_of(memo, mask, first, second):  # type: ignore[no-untyped-def]
    """Row of a key pair in an open-addressing table: where it is, or where it belongs."""
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    slot = np.int64(mixed >> np.uint64(33)) & mask
    while memo[slot, KEY_A] != NONE and (memo[slot, KEY_A] != first or memo[slot, KEY_B] != second):
        slot = (slot + 1) & mask
    return slot


@entry
def insert_all(memo, mask, rows):  # type: ignore[no-untyped-def]
    """Put rows of two keys and a value's bits into an open-addressing table; how many were not there before."""
    added = 0
    for i in range(rows.shape[0]):
        slot = slot_of(memo, mask, rows[i, KEY_A], rows[i, KEY_B])
        if memo[slot, KEY_A] == NONE:
            added += 1
        for column in range(3):
            memo[slot, column] = rows[i, column]
    return added


@inner
def _whole_nanoseconds(duration_ms):  # type: ignore[no-untyped-def]
    """As workers.timing.step_time.whole_nanoseconds: the exact product of the float in seconds and 1e9, half up.

    The product's rounding error, by Dekker's splitting, decides near-ties.
    """
    seconds = duration_ms / 1000.0
    product = seconds * 1e9
    split = 134217729.0 * seconds
    high = split - (split - seconds)
    low = seconds - high
    factor_split = 134217729.0 * 1e9
    factor_high = factor_split - (factor_split - 1e9)
    factor_low = 1e9 - factor_high
    error = low * factor_low - (((product - high * factor_high) - low * factor_high) - high * factor_low)
    whole = math.floor(product + 0.5)
    above = (product - (whole - 0.5)) + error
    if above < 0.0:
        whole -= 1.0
    elif above >= 1.0:
        whole += 1.0
    return whole / 1e6


@inner
def prefill_duration(st, n, isl, prefix):  # type: ignore[no-untyped-def]
    """ms of the prefill part of a pass; NaN when the table does not know it."""
    kind = timing_of(st)
    if kind[TIMING] == CONSTANT:
        return rates_of(st)[PREFILL_MS]
    if kind[TIMING] == POLYNOMIAL:
        tokens = n * (isl - prefix)
        return _whole_nanoseconds(_P2 * (tokens * tokens) + _P1 * tokens + _P0)
    return _memo(st, (n << 32) | isl, prefix)


@inner
def _memo(st, first, second):  # type: ignore[no-untyped-def]
    memo = memo_of(st)
    slot = slot_of(memo, timing_of(st)[HASH_MASK], first, second)
    return math.nan if memo[slot, KEY_A] == NONE else np.int64(memo[slot, MEMO_MS]).view(np.float64)


@inner
def decode_duration(st, n, context_sum):  # type: ignore[no-untyped-def]
    """ms of the decode part of a pass of n requests; NaN when the table does not know it."""
    kind = timing_of(st)
    if kind[TIMING] == CONSTANT:
        return rates_of(st)[DECODE_MS]
    if kind[TIMING] == POLYNOMIAL:
        used = min(1.0, context_sum / rates_of(st)[POOL_TOKENS])
        return _whole_nanoseconds(max(1.0, _D2 * (used * used) + _D1 * used + _D0))
    if kind[TIMING] == MEMO:
        return _memo(st, DECODE_TAG | n, context_sum)
    context = context_sum // n
    if kind[TIMING] == EXACT:
        place = exact_place(st, n, context)
        return math.nan if place == NONE else exact_values_of(st)[place]
    if n >= kind[NUM_ROWS]:
        return math.nan
    cell, start, _ = cell_of(context)
    table = decode_table_of(st)
    place = 2 * (n * NUM_CELLS + cell)
    return table[place] + table[place + 1] * (context - start)


@inner
def exact_place(st, n, context):  # type: ignore[no-untyped-def]
    """Place in exact_values of n requests with a mean context, NONE when its chunk is unknown."""
    kind = timing_of(st)
    chunk = context >> CHUNK_BITS
    if n >= kind[EXACT_ROWS] or chunk >= kind[EXACT_WIDTH]:
        return NONE
    number = np.int64(exact_index_of(st)[n * kind[EXACT_WIDTH] + chunk])
    return NONE if number == NONE else (number << CHUNK_BITS) + (context & (CHUNK - 1))


@inner
def _walk_exact(st, n, context_sum, steps, start, horizon):  # type: ignore[no-untyped-def]
    """`walk` by exact durations."""
    values = exact_values_of(st)
    mean = context_sum // n
    now = start
    first = start
    done = 0
    while done < steps:
        place = exact_place(st, n, mean + done)
        stop = done
        if place != NONE:
            stop = min(steps, done + CHUNK - ((mean + done) & (CHUNK - 1)))
        if stop == done or math.isnan(values[place]):
            _note_unknown(st, n, context_sum + done * n, steps - done)
            return 0, first, now
        if done == 0:
            first = now + values[place]
        while done < stop:
            duration = values[place]
            if math.isnan(duration):
                break
            now += duration
            place += 1
            done += 1
            if now >= horizon:
                return done, first, now
    return done, first, now


@inner
def walk(st, n, context_sum, steps, start, horizon):  # type: ignore[no-untyped-def]
    """Up to `steps` decode passes of n requests from `start`, ending with the first that reaches `horizon`.

    Returns (steps walked, end of the first, end of the last); 0 steps when a duration is unknown, which is then noted.
    """
    kind = timing_of(st)
    now = start
    first = start
    if kind[TIMING] == CONSTANT:
        duration = rates_of(st)[DECODE_MS]
        first = now + duration
        for done in range(1, steps + 1):
            now += duration
            if now >= horizon:
                return done, first, now
        return steps, first, now
    if kind[TIMING] == EXACT:
        return _walk_exact(st, n, context_sum, steps, start, horizon)
    if kind[TIMING] != KNOTS:
        for done in range(1, steps + 1):
            duration = decode_duration(st, n, context_sum + (done - 1) * n)
            if math.isnan(duration):
                _note_unknown(st, n, context_sum + (done - 1) * n, steps - done + 1)
                return 0, first, now
            now += duration
            if done == 1:
                first = now
            if now >= horizon:
                return done, first, now
        return steps, first, now
    if n >= kind[NUM_ROWS]:
        _note_unknown(st, n, context_sum, steps)
        return 0, first, now
    table = decode_table_of(st)
    mean = context_sum // n
    done = 0
    while done < steps:
        cell, cell_start, width = cell_of(mean + done)
        place = 2 * (n * NUM_CELLS + cell)
        value, slope = table[place], table[place + 1]
        if math.isnan(value):
            _note_unknown(st, n, context_sum, steps)
            return 0, first, now
        offset = mean + done - cell_start
        stop = min(steps, done + width - offset)
        if done == 0:
            first = now + (value + slope * offset)
        value += slope * offset
        end = _end_of_passes(now, value, slope, stop - done)
        if end >= horizon:
            passes = _passes_until(now, value, slope, stop - done, horizon)
            return done + passes, first, _end_of_passes(now, value, slope, passes)
        now, done = end, stop
    return done, first, now


@inner
def _end_of_passes(start, duration, slope, num):  # type: ignore[no-untyped-def]
    """End of `num` passes from `start` on, of which each takes `slope` ms longer than the one before it."""
    return start + num * (duration + slope * (0.5 * (num - 1)))


@inner
def _passes_until(start, duration, slope, most, horizon):  # type: ignore[no-untyped-def]
    """How many of `most` such passes until one ends at or after `horizon`, which the last does."""
    room = max(horizon - start, 0.0)
    mean = duration + slope * (0.5 * room / duration)
    num = min(max(np.int64(room / mean), 1), most)
    while num > 1 and _end_of_passes(start, duration, slope, num - 1) >= horizon:
        num -= 1
    while num < most and _end_of_passes(start, duration, slope, num) < horizon:
        num += 1
    return num


@inner
def _note_unknown(st, n, context_sum, steps):  # type: ignore[no-untyped-def]
    number = numbers_of(st)
    number[MISS_N] = n
    number[MISS_A] = context_sum
    number[MISS_B] = steps
