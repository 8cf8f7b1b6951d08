"""Closed loops of identical prompts that share nothing, on vLLM prefill and decode pools: counters instead of queues.

The prefill pool is that of `cohorts`. Prompts are numbered in the order of their hand-over, `handed`; decode replica t of D
serves the numbers t, t + D, t + 2 D, ... in this order at every stage. Times, order of events and gap log are those of
`handoff_loop`. The run is given up (NEED_CACHE) before an engine holds more requests than it has blocks for, and when a
decode pass takes no time.

Of a decode rank's columns WAIT_HEAD is the next number to run, NEW_HEAD, YOUNG_HEAD and RUN_HEAD are as in `cohorts`; of its
`targets`, REQUEST_HEAD is the next to get room and TRAVEL_HEAD the next to land; `lands` goes by number. A prefill rank's
RESERVED_BLOCKS are kept until its `sources` say, in FREE_HEAD, how many prompts run elsewhere now.
"""

import math

import numpy as np

from workers.replay.cohorts import form_pass
from workers.replay.compiled import bare_entry, inner
from workers.replay.handoff import cut, transfer_ms
from workers.replay.passes import FINISHED, GROW_GAPS, NEED_CACHE, PAUSED, log_regular_gaps, next_pass_end, plan
from workers.replay.state import (
    ACTIVE,
    ADMISSIONS,
    ARRIVAL,
    ASKING,
    BEGUN,
    BUSY,
    COMMITTED_PREFILL,
    COMPUTED_NOW,
    CONTEXT_SUM,
    DECODE_CONTEXT,
    DECODE_N,
    DONE,
    DP_RANK,
    DUE_STEP,
    EFFECT,
    END,
    EVENTS_LEFT,
    FIRST_ADMIT,
    FIRST_END,
    FIRST_TOKEN,
    FOR_CACHE,
    FREE_HEAD,
    FREED_NOW,
    GAP_N,
    GAPS_USED,
    GENERATED,
    GIVEN_UP,
    IDLE,
    LAST_EVENT,
    LAST_TOKEN,
    MAX_SEQS,
    MAY_SERVE,
    NEW_HEAD,
    NEXT_SESSION,
    NOW,
    NUM_BLOCKS,
    NUM_DECODING,
    NUM_DONE,
    NUM_FRESH,
    NUM_REPLICAS,
    NUM_RUNNING,
    NUM_SESSIONS,
    NUM_WAITING,
    OUTPUT,
    PASS_END,
    PASS_START,
    PHASE,
    PROMPT,
    REPEATS,
    REQUEST_HEAD,
    RESERVED_BLOCKS,
    ROUTED,
    RUN_HEAD,
    SECOND_TOKEN,
    STAGE,
    STATUS,
    STEP,
    TRAVEL_HEAD,
    WAIT_HEAD,
    WORKER,
    YOUNG_HEAD,
    blocks_for,
    gaps_of,
    handed_of,
    lands_of,
    limits_of,
    moments_of,
    numbers_of,
    passes_of,
    ranks_of,
    requests_of,
    sources_of,
    stamps_of,
    targets_of,
)

_NEXT_INSTANT, _FIRST_STARTS, _ARRIVALS, _LAST_STARTS = range(4)


@bare_entry
def run(pre, dec):  # type: ignore[no-untyped-def]
    """Advance the replay until it ends or the host is needed; returns a code of `passes`."""
    number, moment = numbers_of(dec), moments_of(dec)
    while True:
        if number[STAGE] == _NEXT_INSTANT:
            number[EVENTS_LEFT] -= 1
            if number[EVENTS_LEFT] < 0:
                return PAUSED
            number[ASKING] = 1
            if number[GAPS_USED] + limits_of(dec)[NUM_REPLICAS] > gaps_of(dec).shape[0]:
                return GROW_GAPS
            now = _next_instant(pre, dec)
            if now == math.inf:
                return FINISHED
            # In a second round at one instant the passes that begin there have begun already, as in event_loop.
            boundary = np.nextafter(now, math.inf) if now == moment[NOW] else now
            moment[NOW], moments_of(pre)[NOW], moment[LAST_EVENT] = now, now, now
            _finish_passes(pre, dec, now, boundary)
            _hand_over(pre, dec, now)
        elif number[STAGE] == _ARRIVALS:
            if _release(pre, dec, moment[NOW]) == 0:  # nothing more begins at this instant
                number[STAGE] = _LAST_STARTS
                _end_service(dec)
        else:
            code = _start_passes(pre, dec)
            if code != FINISHED:
                return code
            if number[STAGE] == _LAST_STARTS:
                _end_service(dec)
        if number[GIVEN_UP] == FOR_CACHE:
            return NEED_CACHE
        number[STAGE] = (number[STAGE] + 1) % 4


@inner
def _next_instant(pre, dec):  # type: ignore[no-untyped-def]
    """The next pass end, release or landing; a landing at a busy engine waits for its pass end."""
    number, rank, target, lands = numbers_of(dec), ranks_of(dec), targets_of(dec), lands_of(dec)
    instant = min(next_pass_end(pre), next_pass_end(dec))
    if number[FREED_NOW] > 0 and number[NEXT_SESSION] < number[NUM_SESSIONS]:
        instant = min(instant, moments_of(dec)[NOW])
    for t in range(rank.shape[0]):
        if rank[t, PHASE] != BUSY and target[t, TRAVEL_HEAD] < target[t, REQUEST_HEAD]:
            instant = min(instant, lands[target[t, TRAVEL_HEAD]])
    return instant


@inner
def _finish_passes(pre, dec, now, boundary):  # type: ignore[no-untyped-def]
    """Pass ends of both roles; queues are served before the prompts just computed ask for room."""
    rank, target, passed, number = ranks_of(dec), targets_of(dec), passes_of(dec), numbers_of(dec)
    replicas = rank.shape[0]
    first, last = number[ROUTED], _finish_prompts(pre, dec, now)
    for h in range(first, min(last, first + replicas)):
        cut(dec, h % replicas, boundary)
    for t in range(replicas):
        if rank[t, PHASE] == BUSY and passed[t, PASS_END] <= now:
            target[t, MAY_SERVE] = 1
            _commit(dec, t, now)
            _serve_queue(dec, t, now)
    t = first % replicas
    for h in range(first, last):
        number[ROUTED] = h + 1
        r = handed_of(dec)[h]
        requests_of(dec)[r, WORKER] = t
        requests_of(dec)[r, DP_RANK] = 0
        if rank[t, PHASE] != BUSY:
            _reserve(dec, t, now)
        t = t + 1 if t + 1 < replicas else 0


@inner
def _finish_prompts(pre, dec, now):  # type: ignore[no-untyped-def]
    """Number the prompts computed in passes that end at `now`; returns the number after the last."""
    rank, passed, number, handed = ranks_of(pre), passes_of(pre), numbers_of(dec), handed_of(dec)
    replicas = rank.shape[0]
    last = number[ROUTED]
    for w in range(replicas):
        if rank[w, PHASE] != BUSY or passed[w, PASS_END] > now:
            continue
        rank[w, PHASE] = IDLE
        numbers_of(pre)[COMMITTED_PREFILL] += rank[w, COMPUTED_NOW]
        rank[w, NUM_RUNNING] -= rank[w, NUM_FRESH]
        for _ in range(rank[w, NUM_FRESH]):
            r = rank[w, NEW_HEAD]
            rank[w, NEW_HEAD] = r + replicas
            handed[last] = r
            last += 1
            stamps_of(dec)[r, FIRST_ADMIT] = stamps_of(pre)[r, FIRST_ADMIT]
            requests_of(dec)[r, ADMISSIONS] = 1
    return last


@inner
def _reserve(dec, t, now):  # type: ignore[no-untyped-def]
    """Give the next number of decode rank t its room, and let its KV travel; False if it must wait."""
    limits, rank, req, number, target = (
        limits_of(dec),
        ranks_of(dec),
        requests_of(dec),
        numbers_of(dec),
        targets_of(dec),
    )
    if rank[t, NUM_RUNNING] >= limits[MAX_SEQS]:
        return False
    blocks = blocks_for(limits, req[0, PROMPT] + req[0, OUTPUT])
    if rank[t, RESERVED_BLOCKS] + blocks > limits[NUM_BLOCKS]:
        number[GIVEN_UP] = FOR_CACHE
        return False
    rank[t, RESERVED_BLOCKS] += blocks
    h = target[t, REQUEST_HEAD]
    target[t, REQUEST_HEAD] = h + rank.shape[0]
    lands_of(dec)[h] = now + transfer_ms(dec, 0)
    return True


@inner
def _serve_queue(dec, t, now):  # type: ignore[no-untyped-def]
    """One reservation per pass end and per activation of a rank; True if there was one."""
    target, number = targets_of(dec), numbers_of(dec)
    served = False
    while target[t, MAY_SERVE] > 0 and target[t, REQUEST_HEAD] < number[ROUTED] and _reserve(dec, t, now):
        target[t, MAY_SERVE] -= 1
        served = True
    return served


@inner
def _hand_over(pre, dec, now):  # type: ignore[no-untyped-def]
    """Activations and reservations of engines between passes until nothing changes, then releases of sources."""
    rank, target, source, lands = ranks_of(dec), targets_of(dec), sources_of(dec), lands_of(dec)
    replicas, sources = rank.shape[0], source.shape[0]
    for t in range(replicas):
        if rank[t, PHASE] == BUSY:
            continue
        changed = True
        while changed:
            h = target[t, TRAVEL_HEAD]
            while h < target[t, REQUEST_HEAD] and lands[h] <= now:
                target[t, MAY_SERVE] += 1
                rank[t, NUM_WAITING] += 1
                source[handed_of(dec)[h] % sources, FREE_HEAD] += 1
                h += replicas
            changed = h != target[t, TRAVEL_HEAD]
            target[t, TRAVEL_HEAD] = h
            changed |= _serve_queue(dec, t, now)
    blocks = blocks_for(limits_of(pre), requests_of(pre)[0, PROMPT] + requests_of(pre)[0, OUTPUT])
    for s in range(sources):
        if ranks_of(pre)[s, PHASE] != BUSY:
            ranks_of(pre)[s, RESERVED_BLOCKS] -= source[s, FREE_HEAD] * blocks
            source[s, FREE_HEAD] = 0


@inner
def _start_passes(pre, dec):  # type: ignore[no-untyped-def]
    """Idle engines with work start a pass, prefill first."""
    number, rank, target = numbers_of(dec), ranks_of(dec), targets_of(dec)
    number[ASKING] = 0
    for w in range(ranks_of(pre).shape[0]):
        if ranks_of(pre)[w, PHASE] == IDLE and not form_pass(pre, w):
            number[GIVEN_UP] = FOR_CACHE
            return FINISHED
        if ranks_of(pre)[w, PHASE] == BEGUN:
            code = plan(pre, w, math.inf)
            if code != FINISHED:
                return code
    number[ASKING] = 1
    # Planning beyond the next computed prompt would mostly be in vain: it cuts a stretch.
    next_prefill = next_pass_end(pre)
    for t in range(rank.shape[0]):
        if rank[t, PHASE] == IDLE:
            _begin(dec, t)
        if rank[t, PHASE] == BEGUN:
            horizon = next_prefill
            if target[t, TRAVEL_HEAD] < target[t, REQUEST_HEAD]:
                horizon = min(horizon, lands_of(dec)[target[t, TRAVEL_HEAD]])
            code = plan(dec, t, horizon)
            if code != FINISHED:
                return code
            if passes_of(dec)[t, FIRST_END] <= moments_of(dec)[NOW]:  # one without duration ends at once
                number[GIVEN_UP] = FOR_CACHE
    return FINISHED


@inner
def _begin(dec, t):  # type: ignore[no-untyped-def]
    """Form a pass of decode rank t if it has work."""
    limits, rank, req, target = limits_of(dec), ranks_of(dec), requests_of(dec), targets_of(dec)
    decoding = rank[t, NUM_DECODING]
    fresh = min(rank[t, NUM_WAITING], limits[MAX_SEQS] - rank[t, NUM_RUNNING])
    rank[t, ACTIVE] = 0
    if decoding + fresh == 0:
        return
    rank[t, ACTIVE] = 1
    rank[t, EFFECT] = 1
    rank[t, PHASE] = BEGUN
    passes_of(dec)[t, PASS_START] = moments_of(dec)[NOW]
    rank[t, NUM_FRESH] = fresh
    rank[t, GAP_N] = decoding
    rank[t, DECODE_N] = decoding + fresh
    rank[t, DECODE_CONTEXT] = rank[t, CONTEXT_SUM] + fresh * req[0, PROMPT]
    rank[t, WAIT_HEAD] += fresh * rank.shape[0]
    rank[t, NUM_WAITING] -= fresh
    rank[t, NUM_RUNNING] += fresh
    rank[t, REPEATS] = 1
    is_served = target[t, REQUEST_HEAD] < numbers_of(dec)[ROUTED] and rank[t, NUM_RUNNING] < limits[MAX_SEQS]
    if fresh == 0 and not is_served:
        rank[t, REPEATS] = req[handed_of(dec)[rank[t, RUN_HEAD]], DUE_STEP] - rank[t, STEP]


@inner
def _commit(dec, t, now):  # type: ignore[no-untyped-def]
    """The pass of decode rank t, or its repetitions, ended at `now`."""
    rank, req, stamp, handed = ranks_of(dec), requests_of(dec), stamps_of(dec), handed_of(dec)
    replicas, output = rank.shape[0], req[0, OUTPUT]
    steps = rank[t, REPEATS]
    numbers_of(dec)[EVENTS_LEFT] -= steps >> 6
    log_regular_gaps(dec, t, steps)
    rank[t, PHASE] = IDLE
    step = rank[t, STEP] + steps
    rank[t, STEP] = step
    rank[t, CONTEXT_SUM] += rank[t, NUM_DECODING] * steps
    new = rank[t, NEW_HEAD]
    for h in range(rank[t, YOUNG_HEAD], new, replicas):
        stamp[handed[h], SECOND_TOKEN] = passes_of(dec)[t, FIRST_END]
    rank[t, YOUNG_HEAD] = new
    while rank[t, RUN_HEAD] < new and req[handed[rank[t, RUN_HEAD]], DUE_STEP] == step:
        rank[t, NUM_DECODING] -= 1
        rank[t, CONTEXT_SUM] -= req[0, PROMPT] + output
        _end(dec, t, now)
    for h in range(new, new + rank[t, NUM_FRESH] * replicas, replicas):
        r = handed[h]
        stamp[r, FIRST_TOKEN] = now
        req[r, ADMISSIONS] += 1
        if output == 1:
            _end(dec, t, now)
            rank[t, YOUNG_HEAD] += replicas
            continue
        req[r, DUE_STEP] = step + output - 1
        rank[t, NUM_DECODING] += 1
        rank[t, CONTEXT_SUM] += req[0, PROMPT] + 1
    rank[t, NEW_HEAD] = new + rank[t, NUM_FRESH] * replicas


@inner
def _end(dec, t, now):  # type: ignore[no-untyped-def]
    """The oldest request of decode rank t has its last token at `now`."""
    rank, req, stamp, number = ranks_of(dec), requests_of(dec), stamps_of(dec), numbers_of(dec)
    r = handed_of(dec)[rank[t, RUN_HEAD]]
    rank[t, RUN_HEAD] += rank.shape[0]
    rank[t, NUM_RUNNING] -= 1
    rank[t, RESERVED_BLOCKS] -= blocks_for(limits_of(dec), req[0, PROMPT] + req[0, OUTPUT])
    req[r, STATUS] = DONE
    req[r, GENERATED] = req[0, OUTPUT]
    stamp[r, LAST_TOKEN] = now
    stamp[r, END] = now
    number[NUM_DONE] += 1
    number[FREED_NOW] += 1


@inner
def _end_service(dec):  # type: ignore[no-untyped-def]
    target = targets_of(dec)
    for t in range(target.shape[0]):
        target[t, MAY_SERVE] = 0


@inner
def _release(pre, dec, now):  # type: ignore[no-untyped-def]
    """A prompt for every free slot, round robin over the prefill engines; how many."""
    rank, number = ranks_of(pre), numbers_of(dec)
    replicas = rank.shape[0]
    first = number[NEXT_SESSION]
    last = min(number[NUM_SESSIONS], first + number[FREED_NOW])
    number[FREED_NOW] = 0
    number[NEXT_SESSION] = last
    w = first % replicas
    for r in range(first, last):
        stamps_of(dec)[r, ARRIVAL] = now
        requests_of(pre)[r, WORKER] = w
        requests_of(pre)[r, DP_RANK] = 0
        rank[w, NUM_WAITING] += 1
        w = w + 1 if w + 1 < replicas else 0
    return last - first
