"""Hand-over of prompts between vLLM or TensorRT-LLM ranks: room at the destination, blocks kept at the source.

A decode rank reserves the blocks of a prompt whose KV is on its way. Arrived requests wait in the order of their
reservations, behind preempted ones; they pass those while others still wait for room. Source: traffic specification,
section 5.
"""

import numpy as np

from workers.replay.backends.admission import is_admissible
from workers.replay.compiled import inner
from workers.replay.kv_cache import match, pin, register, release, take
from workers.replay.state import (
    ARRIVED_HEAD,
    ARRIVED_TAIL,
    BACKEND,
    BLOCK_SIZE,
    DENIED,
    DENIED_AT,
    HELD,
    HELD_BLOCKS,
    MAX_SEQS,
    NEW_NEXT,
    NONE,
    NUM_RESERVED,
    NUM_RUNNING,
    NUM_WAITING,
    OTHERS_WAIT,
    OUTPUT,
    PROMPT,
    REGISTERED,
    RESERVED_AS,
    RESERVED_BLOCKS,
    TIMES_RELEASED,
    TRTLLM,
    WAIT_HEAD,
    WAIT_NEXT,
    WAIT_TAIL,
    blocks_for,
    limits_of,
    note_admission,
    note_queued,
    numbers_of,
    ranks_of,
    requests_of,
    run_append,
    whole_blocks,
)


@inner
def cached_at_destination(st, s, r):  # type: ignore[no-untyped-def]
    """(cached blocks of prompt r on decode rank s, True if it could be given its room now).

    Nothing of the prompt is recomputed, so every cached full block counts; TensorRT-LLM looks for none. A prompt that was
    denied is not looked at again before blocks were given back, though it may find more of them cached now.
    """
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    found, held = np.int64(0), np.int64(0)
    if limits[BACKEND] != TRTLLM:
        found, held = match(st, s, r, whole_blocks(limits, req[r, PROMPT]))
    is_denied = rank[s, DENIED] == r and rank[s, DENIED_AT] == rank[s, TIMES_RELEASED]
    return found, not is_denied and is_admissible(st, s, r, req[r, PROMPT], held)


@inner
def reserve(st, s, r):  # type: ignore[no-untyped-def]
    """Give prompt r its blocks on decode rank s; returns the tokens cached there already, NONE if it must wait."""
    limits, rank, number, req = limits_of(st), ranks_of(st), numbers_of(st), requests_of(st)
    if rank[s, NUM_RUNNING] >= limits[MAX_SEQS]:
        return NONE
    found, fits = cached_at_destination(st, s, r)
    if not fits:
        rank[s, DENIED], rank[s, DENIED_AT] = r, rank[s, TIMES_RELEASED]
        return NONE
    if found > 0:
        pin(st, s, r, found)
    else:
        req[r, REGISTERED] = 0
    blocks = blocks_for(limits, req[r, PROMPT])
    take(st, s, blocks - found)
    req[r, HELD] = blocks
    rank[s, HELD_BLOCKS] += blocks
    rank[s, RESERVED_BLOCKS] += blocks_for(limits, req[r, PROMPT] + req[r, OUTPUT])
    number[NUM_RESERVED] += 1
    req[r, RESERVED_AS] = number[NUM_RESERVED]
    return found * limits[BLOCK_SIZE]


@inner
def activate(st, s, r):  # type: ignore[no-untyped-def]
    """The KV of request r has landed on rank s: it may run from the next pass on."""
    rank, req = ranks_of(st), requests_of(st)
    req[r, NEW_NEXT] = NONE
    if rank[s, ARRIVED_HEAD] == NONE:
        rank[s, ARRIVED_HEAD] = r
    else:
        req[rank[s, ARRIVED_TAIL], NEW_NEXT] = r
    rank[s, ARRIVED_TAIL] = r
    before, after = NONE, rank[s, WAIT_HEAD]
    while after != NONE and req[after, RESERVED_AS] < req[r, RESERVED_AS]:
        before, after = after, req[after, WAIT_NEXT]
    req[r, WAIT_NEXT] = after
    if before == NONE:
        rank[s, WAIT_HEAD] = r
    else:
        req[before, WAIT_NEXT] = r
    if after == NONE:
        rank[s, WAIT_TAIL] = r
    rank[s, NUM_WAITING] += 1


@inner
def publish_arrived(st, s):  # type: ignore[no-untyped-def]
    """A pass of rank s begins: the full blocks of what has landed since the last one can be found."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    r = rank[s, ARRIVED_HEAD]
    rank[s, ARRIVED_HEAD] = NONE
    while r != NONE:
        after = req[r, NEW_NEXT]
        register(st, s, r, whole_blocks(limits, req[r, PROMPT]))
        r = after


@inner
def next_waiting(st, s):  # type: ignore[no-untyped-def]
    """(the request before it in the queue, the request to be admitted next), NONE where there is none."""
    rank, req = ranks_of(st), requests_of(st)
    before, r = NONE, rank[s, WAIT_HEAD]
    if rank[s, OTHERS_WAIT] == 1:
        while r != NONE and req[r, RESERVED_AS] == 0:
            before, r = r, req[r, WAIT_NEXT]
    return before, r


@inner
def run_arrived(st, s, before, r, now):  # type: ignore[no-untyped-def]
    """Request r, in the queue behind `before`, runs: it has its blocks, a slot was all it missed."""
    rank, req = ranks_of(st), requests_of(st)
    after = req[r, WAIT_NEXT]
    if before == NONE:
        rank[s, WAIT_HEAD] = after
    else:
        req[before, WAIT_NEXT] = after
    if after == NONE:
        rank[s, WAIT_TAIL] = before
    rank[s, NUM_WAITING] -= 1
    note_queued(st, s, r, -1)
    req[r, RESERVED_AS] = 0
    run_append(st, s, r)
    note_admission(st, r, now, 0)


@inner
def release_source(st, s, r):  # type: ignore[no-untyped-def]
    """The destination runs: prefill rank s gives back the blocks of prompt r."""
    req = requests_of(st)
    release(st, s, r, req[r, PROMPT], req[r, HELD])
