"""Compiled look-ups of step times, and the walk of the clock through a stretch of equal decode passes.

The clock adds one duration per pass, in pass order, so a stretch that is cut and resumed ends at the same float as one
that is not. Unknown durations are NaN: the loop then asks the host, which fills the tables (see step_table).
"""

import math

import numpy as np
from numba import njit

from workers.replay.state import MISS_A, MISS_B, MISS_N, NONE
from workers.timing.polynomial import DECODE_COEFFICIENTS, PREFILL_COEFFICIENTS

CONSTANT, POLYNOMIAL, KNOTS, MEMO = 0, 1, 2, 3
TIMING, HASH_MASK, HASH_USED, NUM_TIME_NUMBERS = range(4)
PREFILL_MS, DECODE_MS, POOL_TOKENS, NUM_TIME_CONSTANTS = range(4)

FINE = 32
"""Context lengths below this have a cell each; above, an octave has CELLS_PER_OCTAVE cells of equal width."""
CELLS_PER_OCTAVE = 16
NUM_CELLS = FINE + CELLS_PER_OCTAVE * 17
DECODE_TAG = 1 << 62

_P2, _P1, _P0 = PREFILL_COEFFICIENTS
_D2, _D1, _D0 = DECODE_COEFFICIENTS


@njit(cache=True, nogil=True)
def cell_of(context):  # type: ignore[no-untyped-def]
    """(cell, first context, width) of the cell that holds a context length."""
    if context < FINE:
        return context, context, 1
    octave = 5
    while (context >> (octave + 1)) != 0:
        octave += 1
    shift = octave - 4
    step = (context >> shift) - CELLS_PER_OCTAVE
    return FINE + (octave - 5) * CELLS_PER_OCTAVE + step, (context >> shift) << shift, 1 << shift


@njit(cache=True, nogil=True)
def slot_of(keys, mask, first, second):  # type: ignore[no-untyped-def]
    """Slot of a key pair in an open-addressing table: where it is, or where it belongs."""
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    slot = np.int64(mixed >> np.uint64(33)) & mask
    while keys[slot, 0] != NONE and (keys[slot, 0] != first or keys[slot, 1] != second):
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def prefill_duration(times, n, isl, prefix):  # type: ignore[no-untyped-def]
    """ms of the prefill part of a pass; NaN when the table does not know it."""
    timing = times.kind[TIMING]
    if timing == CONSTANT:
        return times.constant[PREFILL_MS]
    if timing == POLYNOMIAL:
        tokens = n * (isl - prefix)
        return np.rint((_P2 * tokens * tokens + _P1 * tokens + _P0) * 1e6) / 1e6
    first = (n << 32) | isl
    slot = slot_of(times.prefill_key, times.kind[HASH_MASK], first, prefix)
    if times.prefill_key[slot, 0] == NONE:
        return math.nan
    return times.prefill_value[slot]


@njit(cache=True, nogil=True)
def decode_duration(times, n, context_sum):  # type: ignore[no-untyped-def]
    """ms of the decode part of a pass of n requests; NaN when the table does not know it."""
    timing = times.kind[TIMING]
    if timing == CONSTANT:
        return times.constant[DECODE_MS]
    if timing == POLYNOMIAL:
        used = min(1.0, context_sum / times.constant[POOL_TOKENS])
        return np.rint(max(1.0, _D2 * used * used + _D1 * used + _D0) * 1e6) / 1e6
    if timing == MEMO:
        slot = slot_of(times.prefill_key, times.kind[HASH_MASK], DECODE_TAG | n, context_sum)
        return math.nan if times.prefill_key[slot, 0] == NONE else times.prefill_value[slot]
    row = times.row_of_n[n] if n < times.row_of_n.size else NONE
    if row == NONE:
        return math.nan
    context = context_sum // n
    cell, start, _ = cell_of(context)
    return times.value[row, cell] + times.slope[row, cell] * (context - start)


@njit(cache=True, nogil=True)
def walk(st, n, context_sum, steps, start, horizon):  # type: ignore[no-untyped-def]
    """Up to `steps` decode passes of n requests from `start`, ending with the first that reaches `horizon`.

    Returns (steps walked, end of the first, end of the last); 0 steps when a duration is unknown, which is noted in the clock.
    """
    times = st.times
    timing = times.kind[TIMING]
    now = start
    first = start
    if timing == KNOTS:
        row = times.row_of_n[n] if n < times.row_of_n.size else NONE
        if row == NONE:
            _note_unknown(st, n, context_sum, steps)
            return 0, first, now
        mean = context_sum // n
        done = 0
        while done < steps:
            cell, cell_start, width = cell_of(mean + done)
            value, slope = times.value[row, cell], times.slope[row, cell]
            if math.isnan(value):
                _note_unknown(st, n, context_sum, steps)
                return 0, first, now
            offset = mean + done - cell_start
            stop = min(steps, done + width - offset)
            while done < stop:
                now += value + slope * offset
                offset += 1
                done += 1
                if done == 1:
                    first = now
                if now >= horizon:
                    return done, first, now
        return done, first, now
    for done in range(1, steps + 1):
        duration = decode_duration(times, n, context_sum + (done - 1) * n)
        if math.isnan(duration):
            _note_unknown(st, n, context_sum + (done - 1) * n, steps - done + 1)
            return 0, first, now
        now += duration
        if done == 1:
            first = now
        if now >= horizon:
            return done, first, now
    return steps, first, now


@njit(cache=True, nogil=True)
def _note_unknown(st, n, context_sum, steps):  # type: ignore[no-untyped-def]
    number = st.clock.number
    number[MISS_N] = n
    number[MISS_A] = context_sum
    number[MISS_B] = steps
