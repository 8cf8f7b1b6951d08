"""Ends of requests: what is stamped, and what follows: the next turn of a session, a free slot, a hand-over."""

import numpy as np

from workers.replay.compiled import inner
from workers.replay.pass_records import note_completed, note_left
from workers.replay.router import note_end
from workers.replay.state import (
    DELAY,
    DONE,
    DP_RANK,
    END,
    FREED_NOW,
    HAS_NEXT,
    LATER,
    LATER_HEAD,
    LATER_TAIL,
    NONE,
    NUM_DONE,
    NUM_DP,
    OUTPUT,
    PREFILL,
    PREFILLED_HEAD,
    PREFILLED_SILENT,
    PREFILLED_TAIL,
    REFUSED,
    ROLE,
    STATUS,
    THINKING,
    WAIT_NEXT,
    WORKER,
    limits_of,
    numbers_of,
    requests_of,
    stamps_of,
    thinkers_of,
)


@inner
def finish(st, r, status, end):  # type: ignore[no-untyped-def]
    """Request r is over (DONE or REFUSED) at `end`: stamp it, queue its session's next turn or free its slot.

    In a prefill pool it is over for this pool only and joins the chain of prompts to hand over.
    """
    number, req, stamp = numbers_of(st), requests_of(st), stamps_of(st)
    req[r, STATUS] = status
    stamp[r, END] = end
    number[NUM_DONE] += 1
    note_end(st, r, status)
    is_source = limits_of(st)[ROLE] == PREFILL
    if req[r, WORKER] >= 0 and (status == REFUSED or not is_source):
        note_left(st, req[r, WORKER] * limits_of(st)[NUM_DP] + req[r, DP_RANK], end)
    if is_source:
        _note_prefilled(st, r)
        return
    if status == DONE:
        note_completed(st, r)
    if number[LATER] == 1:
        _follow_later(st, r)
    else:
        _follow(st, r)


@inner
def _follow(st, r):  # type: ignore[no-untyped-def]
    """What the end of request r brings: the next turn of its session, or its session's slot."""
    number, req, stamp = numbers_of(st), requests_of(st), stamps_of(st)
    if req[r, HAS_NEXT] == 1:
        _think(st, stamp[r, END] + stamp[r + 1, DELAY], r + 1)
    else:
        number[FREED_NOW] += 1


@inner
def _follow_later(st, r):  # type: ignore[no-untyped-def]
    number, req = numbers_of(st), requests_of(st)
    req[r, WAIT_NEXT] = NONE
    if number[LATER_TAIL] == NONE:
        number[LATER_HEAD] = r
    else:
        req[number[LATER_TAIL], WAIT_NEXT] = r
    number[LATER_TAIL] = r


@inner
def follow_those_before(st):  # type: ignore[no-untyped-def]
    """What the ends bring that were to have their consequences later."""
    number, req = numbers_of(st), requests_of(st)
    r = number[LATER_HEAD]
    number[LATER_HEAD] = NONE
    number[LATER_TAIL] = NONE
    while r != NONE:
        after = req[r, WAIT_NEXT]
        _follow(st, r)
        r = after


@inner
def abandon(st, r, end):  # type: ignore[no-untyped-def]
    """Request r can never go on: it and the turns after it are over at `end`, and its session's slot is free."""
    number, req = numbers_of(st), requests_of(st)
    req[r, STATUS] = REFUSED
    stamps_of(st)[r, END] = end
    note_end(st, r, REFUSED)
    note_left(st, req[r, WORKER] * limits_of(st)[NUM_DP] + req[r, DP_RANK], end)
    number[NUM_DONE] += 1
    while req[r, HAS_NEXT] == 1:
        r += 1
        number[NUM_DONE] += 1
    number[FREED_NOW] += 1


@inner
def _note_prefilled(st, r):  # type: ignore[no-untyped-def]
    """Prompts leave in the order in which they end, but of one rank's pass those without output first."""
    number, req = numbers_of(st), requests_of(st)
    before = number[PREFILLED_TAIL]
    if req[r, OUTPUT] == 0:
        before = number[PREFILLED_SILENT]
        number[PREFILLED_SILENT] = r
    after = number[PREFILLED_HEAD] if before == NONE else req[before, WAIT_NEXT]
    req[r, WAIT_NEXT] = after
    if before == NONE:
        number[PREFILLED_HEAD] = r
    else:
        req[before, WAIT_NEXT] = r
    if after == NONE:
        number[PREFILLED_TAIL] = r


@inner
def _think(st, when, r):  # type: ignore[no-untyped-def]
    number, heap = numbers_of(st), thinkers_of(st)
    i = number[THINKING]
    number[THINKING] += 1
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent, 0] < when or (heap[parent, 0] == when and heap[parent, 1] < r):
            break
        heap[i, 0], heap[i, 1] = heap[parent, 0], heap[parent, 1]
        i = parent
    heap[i, 0], heap[i, 1] = when, r


@inner
def next_thinker(st):  # type: ignore[no-untyped-def]
    """Remove and return the follow-up turn with the earliest release; ties by request index."""
    number, heap = numbers_of(st), thinkers_of(st)
    top = np.int64(heap[0, 1])
    number[THINKING] -= 1
    size = number[THINKING]
    when, r = heap[size, 0], heap[size, 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap[other, 0] < heap[child, 0] or (heap[other, 0] == heap[child, 0] and heap[other, 1] < heap[child, 1])
        ):
            child = other
        if heap[child, 0] > when or (heap[child, 0] == when and heap[child, 1] > r):
            break
        heap[i, 0], heap[i, 1] = heap[child, 0], heap[child, 1]
        i = child
    heap[i, 0], heap[i, 1] = when, r
    return top
