"""Decoding requests of a rank as a whole: when their last tokens come and when they need blocks, without touching them.

STEP counts the rank's passes. A request is chained at the slot of the ring that belongs to the pass of its last token; its
residue, (length - STEP) mod block size, never changes while it decodes, and says in which passes it needs a block.
"""

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from workers.replay.compiled import inner
from workers.replay.state import (
    BLOCK_SIZE,
    CONTEXT_SUM,
    DUE_NEXT,
    DUE_PREV,
    DUE_STEP,
    FREE_BLOCKS,
    GENERATED,
    INACTIVE_BLOCKS,
    NONE,
    NUM_DECODING,
    OUTPUT,
    RESIDUE,
    RING_MASK,
    STEP,
    beyond_block,
    due_bits_of,
    growth_of,
    limits_of,
    ranks_of,
    requests_of,
    ring_of,
)


@inner
def growth_of_step(st, s, steps):  # type: ignore[no-untyped-def]
    """Blocks that rank s's decoding requests need in the next `steps` passes."""
    limits, rank = limits_of(st), ranks_of(st)
    size = limits[BLOCK_SIZE]
    grow = growth_of(st)
    total = 0
    cycles = steps // size
    if cycles > 0:
        total = cycles * rank[s, NUM_DECODING]
        steps -= cycles * size
    # Residues come up in falling order, the last one wraps round.
    base = s * size
    residue = beyond_block(limits, 1 - rank[s, STEP])
    for i in range(max(0, residue - steps + 1), residue + 1):
        total += grow[base + i]
    for i in range(size - max(0, steps - residue - 1), size):
        total += grow[base + i]
    return total


@inner
def steps_of_stretch(st, s):  # type: ignore[no-untyped-def]
    """Passes up to the next last token of rank s, or as many as its blocks suffice for; some request must be decoding."""
    rank = ranks_of(st)
    steps = _steps_to_last_token(st, s)
    spare = rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]
    if spare < rank[s, NUM_DECODING] * (steps // limits_of(st)[BLOCK_SIZE] + 1):
        steps = _steps_that_fit(st, s, steps, spare)
    return steps


@inner
def _steps_that_fit(st, s, steps, spare):  # type: ignore[no-untyped-def]
    limits, rank = limits_of(st), ranks_of(st)
    size = limits[BLOCK_SIZE]
    grow = growth_of(st)
    residue = beyond_block(limits, 1 - rank[s, STEP])
    for done in range(steps):
        spare -= grow[s * size + residue]
        if spare < 0:
            return done
        residue = residue - 1 if residue > 0 else size - 1
    return steps


@inner
def _mark_due(st, s, slot):  # type: ignore[no-untyped-def]
    bits, words = due_bits_of(st), (limits_of(st)[RING_MASK] + 1) >> 6
    bits[s * words + (slot >> 6)] |= np.uint64(1) << np.uint64(slot & 63)


@inner
def unmark_due(st, s, slot):  # type: ignore[no-untyped-def]
    """No last token comes in the pass of this slot of rank s's ring."""
    bits, words = due_bits_of(st), (limits_of(st)[RING_MASK] + 1) >> 6
    bits[s * words + (slot >> 6)] &= ~(np.uint64(1) << np.uint64(slot & 63))


@inner
def _steps_to_last_token(st, s):  # type: ignore[no-untyped-def]
    bits, words = due_bits_of(st), (limits_of(st)[RING_MASK] + 1) >> 6
    slot = (ranks_of(st)[s, STEP] + 1) & limits_of(st)[RING_MASK]
    word, bit = slot >> 6, slot & 63
    here = bits[s * words + word] >> np.uint64(bit)
    steps = 1 - bit
    if here != np.uint64(0):
        return 1 + np.int64(trailing_zeros(here))  # type: ignore[call-arg]
    while True:
        word = (word + 1) & (words - 1)
        steps += 64
        here = bits[s * words + word]
        if here != np.uint64(0):
            return steps + np.int64(trailing_zeros(here))  # type: ignore[call-arg]


@inner
def unschedule(st, s, r):  # type: ignore[no-untyped-def]
    """Take request r out of the ring of last tokens."""
    limits, req, last_tokens = limits_of(st), requests_of(st), ring_of(st)
    slot = req[r, DUE_STEP] & limits[RING_MASK]
    before, after = req[r, DUE_PREV], req[r, DUE_NEXT]
    if before == NONE:
        last_tokens[2 * (s * (limits[RING_MASK] + 1) + (slot))] = after
    else:
        req[before, DUE_NEXT] = after
    if before == NONE and after == NONE:
        unmark_due(st, s, slot)
    if after == NONE:
        last_tokens[2 * (s * (limits[RING_MASK] + 1) + (slot)) + 1] = before
    else:
        req[after, DUE_PREV] = before


@inner
def schedule(st, s, r, length):  # type: ignore[no-untyped-def]
    """Request r, now `length` tokens long, decodes on until the pass of its last token."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    grow, last_tokens = growth_of(st), ring_of(st)
    step = rank[s, STEP]
    due = step + req[r, OUTPUT] - req[r, GENERATED]
    req[r, DUE_STEP] = due
    req[r, RESIDUE] = beyond_block(limits, length - step)
    grow[s * limits[BLOCK_SIZE] + req[r, RESIDUE]] += 1
    rank[s, NUM_DECODING] += 1
    rank[s, CONTEXT_SUM] += length
    slot = due & limits[RING_MASK]
    tail = last_tokens[2 * (s * (limits[RING_MASK] + 1) + (slot)) + 1]
    req[r, DUE_PREV] = tail
    req[r, DUE_NEXT] = NONE
    if tail == NONE:
        _mark_due(st, s, slot)
        last_tokens[2 * (s * (limits[RING_MASK] + 1) + (slot))] = r
    else:
        req[tail, DUE_NEXT] = r
    last_tokens[2 * (s * (limits[RING_MASK] + 1) + (slot)) + 1] = r
