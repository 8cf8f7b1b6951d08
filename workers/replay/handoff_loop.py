"""The compiled clock of a disaggregated fleet: prefill passes, hand-over, decode passes, releases in one total order.

At one instant: finished passes, prefill engines first; reservations of the queues, then the prompts just computed; hand-over
until stable; new passes; releases; hand-over and new passes again. Source: traffic specification, sections 1 and 5. `pre` and
`dec` are the address books of both pools, see handoff. The loop stops with a code of `event_loop` whenever it needs the host
and continues exactly there when called again.

A stretch of decode passes ends where something else could happen at a pass boundary: at the landing of a transfer, after one
pass while the head of the queue fits, and wherever a new request or transfer cuts it.
"""

import math

import numpy as np

from workers.replay.compiled import bare_entry, inner
from workers.replay.completion import finish, follow_those_before
from workers.replay.event_loop import all_draws_suffice, next_release, pop_release
from workers.replay.handoff import (
    cut,
    depart,
    hand_over,
    is_busy,
    is_destination_first,
    note_prefilled,
    queue_prompt,
    request_destination,
    serve_queues,
    serves_next,
    transfer_ms,
)
from workers.replay.pass_records import in_order, num_ready, ready_rank
from workers.replay.passes import (
    FINISHED,
    GROW_GAPS,
    NEED_CACHE,
    NEED_DRAWS,
    PAUSED,
    STUCK,
    TICK_DUE,
    begin,
    finish_passes,
    gap_log_suffices,
    next_pass_end,
    plan,
)
from workers.replay.radix import OVERFLOW
from workers.replay.router import is_routed
from workers.replay.state import (
    ACTIVE,
    ASKING,
    BEGUN,
    BUSY,
    DECODE_N,
    EVENTS_LEFT,
    FOR_CACHE,
    FOR_EXPLICIT,
    FREED_NOW,
    GIVEN_UP,
    IDLE,
    LAST_EVENT,
    LATER,
    MAY_SERVE,
    NONE,
    NOW,
    NUM_ARRIVALS,
    NUM_DONE,
    NUM_DP,
    NUM_PASSES,
    NUM_REPLICAS,
    NUM_RUNNING,
    NUM_WAITING,
    OTHERS_WAIT,
    PASS_END,
    PHASE,
    PLACE,
    PREFILLED_HEAD,
    PREFILLED_TAIL,
    REFUSED,
    REPEATS,
    REQUEST_HEAD,
    ROUTED,
    STAGE,
    STATUS,
    STOP_AFTER,
    TARGET,
    TICK,
    TRAVEL_HEAD,
    WAIT_NEXT,
    handoffs_of,
    lands_of,
    limits_of,
    moments_of,
    note_queued,
    numbers_of,
    passes_of,
    ranks_of,
    requests_of,
    sgl_counters_of,
    targets_of,
)

NEED_EXPLICIT, NEED_RADIX_NODES = 100, 101
"""Start anew: with the explicit backend in the decode pool; with more room for SGLang's radix trees."""
MOST_PASSES_AT_ONCE = 1000
"""Of one decode engine at one instant without a token: beyond them a request recomputes for ever what it loses each time."""
_NEXT_INSTANT, _FIRST_PREFILLS, _FIRST_DECODES, _ARRIVALS, _LAST_PREFILLS, _LAST_DECODES, _NUM_STAGES = range(7)


@bare_entry
def run(pre, dec):  # type: ignore[no-untyped-def]
    """Advance the replay until it ends or the host is needed; returns a code of event_loop or one of those above."""
    number, moment = numbers_of(dec), moments_of(dec)
    while True:
        if number[STAGE] == _NEXT_INSTANT:
            code = _needs_host(pre, dec)
            if code != FINISHED:
                return code
            now = _next_instant(pre, dec)
            if now == math.inf and number[NUM_DONE] < requests_of(dec).shape[0]:
                return STUCK
            if now == math.inf:
                return FINISHED
            # What is released at the instant of a tick comes after it.
            if now > moment[TICK] or (now == moment[TICK] and _next_own_instant(pre, dec) > now):
                return TICK_DUE
            if now > moment[STOP_AFTER]:
                return FINISHED
            # In a second round at one instant the passes that begin there have begun already, as in event_loop.
            boundary = np.nextafter(now, math.inf) if now == moment[NOW] else now
            moment[NOW], moments_of(pre)[NOW], moment[LAST_EVENT] = now, now, now
            _finish_passes(pre, dec, now, boundary)
            hand_over(pre, dec, now)
        elif number[STAGE] == _ARRIVALS:
            if moment[NOW] < moment[TICK]:
                _release(pre, dec, moment[NOW])
            hand_over(pre, dec, moment[NOW])
        elif number[STAGE] == _FIRST_PREFILLS or number[STAGE] == _LAST_PREFILLS:
            code = _start_prefills(pre, dec)
            if code != FINISHED:
                return code
        else:
            code = _start_decodes(pre, dec)
            if code != FINISHED:
                return code
            if number[STAGE] == _LAST_DECODES:
                _end_service(dec)
                follow_those_before(dec)
        number[STAGE] = (number[STAGE] + 1) % _NUM_STAGES


@inner
def _needs_host(pre, dec):  # type: ignore[no-untyped-def]
    """FINISHED, or what the host has to do before the next instant; ASKING says for which pool."""
    number = numbers_of(dec)
    number[EVENTS_LEFT] -= 1
    if number[EVENTS_LEFT] < 0:
        return PAUSED
    if number[GIVEN_UP] == FOR_EXPLICIT:
        return NEED_EXPLICIT
    if number[GIVEN_UP] == FOR_CACHE or numbers_of(pre)[GIVEN_UP] == FOR_CACHE:
        return NEED_CACHE
    if _overflows(pre) or _overflows(dec):
        return NEED_RADIX_NODES
    number[ASKING] = 0
    if not gap_log_suffices(pre):
        return GROW_GAPS
    if not all_draws_suffice(pre):
        return NEED_DRAWS
    number[ASKING] = 1
    if not gap_log_suffices(dec):
        return GROW_GAPS
    if not all_draws_suffice(dec):
        return NEED_DRAWS
    return FINISHED


@inner
def _overflows(st):  # type: ignore[no-untyped-def]
    counters = sgl_counters_of(st)
    return counters.shape[0] > 0 and counters[OVERFLOW] == 1


@inner
def _next_instant(pre, dec):  # type: ignore[no-untyped-def]
    """The next pass end, landing or release."""
    return min(next_release(dec), _next_own_instant(pre, dec))


@inner
def _next_own_instant(pre, dec):  # type: ignore[no-untyped-def]
    """The next pass end or landing; a landing at a busy engine waits for its pass end."""
    target, lands = targets_of(dec), lands_of(dec)
    instant = min(next_pass_end(pre), next_pass_end(dec))
    for t in range(target.shape[0]):
        r = target[t, TRAVEL_HEAD]
        if r != NONE and not is_busy(dec, t):
            instant = min(instant, lands[r])
    return instant


@inner
def _finish_passes(pre, dec, now, boundary):  # type: ignore[no-untyped-def]
    """Pass ends of both roles; queues are served before the prompts just computed ask for room or leave."""
    req, number = requests_of(pre), numbers_of(pre)
    finish_passes(pre, now)
    first = number[PREFILLED_HEAD]
    number[PREFILLED_HEAD] = NONE
    number[PREFILLED_TAIL] = NONE
    if first != NONE:
        _cut_for(pre, dec, first, now, boundary)
    _allow_service(dec, now)
    finish_passes(dec, now)
    serve_queues(pre, dec)
    r = first
    while r != NONE:
        after = req[r, WAIT_NEXT]
        note_prefilled(pre, dec, r)
        if req[r, STATUS] == REFUSED:
            if is_destination_first(dec):
                note_queued(dec, handoffs_of(dec)[r, TARGET], r, -1)
            finish(dec, r, REFUSED, now)
        elif is_destination_first(dec):
            depart(dec, r)
        else:
            request_destination(pre, dec, r)
        r = after


@inner
def _cut_for(pre, dec, first, now, boundary):  # type: ignore[no-untyped-def]
    """Cut the stretches in which the prompts just computed, chained from `first`, will have something to do.

    `boundary`: the earliest pass end that may serve them.
    """
    req = requests_of(pre)
    num_dp, num_ranks = limits_of(dec)[NUM_DP], ranks_of(dec).shape[0]
    if is_routed(dec) and not is_destination_first(dec):
        for w in range(num_ranks // num_dp):
            cut(dec, w, boundary)
        return
    turn = numbers_of(dec)[ROUTED]
    r = first
    while r != NONE:
        if req[r, STATUS] != REFUSED:
            if is_destination_first(dec):
                cut(dec, handoffs_of(dec)[r, TARGET] // num_dp, max(boundary, now + transfer_ms(dec, r)))
            else:
                place = turn % num_ready(dec)
                cut(dec, ready_rank(dec, place) // num_dp, boundary)
                turn = place + 1
        r = req[r, WAIT_NEXT]


@inner
def _allow_service(dec, now):  # type: ignore[no-untyped-def]
    """Every rank whose pass ends now may serve one of its queue."""
    passed, target = passes_of(dec), targets_of(dec)
    num_dp = limits_of(dec)[NUM_DP]
    for t in range(target.shape[0]):
        if is_busy(dec, t) and passed[t // num_dp, PASS_END] <= now:
            target[t, MAY_SERVE] = 1


@inner
def _end_service(dec):  # type: ignore[no-untyped-def]
    target = targets_of(dec)
    for t in range(target.shape[0]):
        target[t, MAY_SERVE] = 0


@inner
def _release(pre, dec, now):  # type: ignore[no-untyped-def]
    """Route everything due: its prompt to a prefill engine, or (SGLang) its request to a decode engine.

    A pass boundary at this very instant is over already, so a stretch is cut behind it.
    """
    num_dp, number, handoff = limits_of(dec)[NUM_DP], numbers_of(dec), handoffs_of(dec)
    freed = 0
    r = pop_release(dec, now)
    while r != NONE:
        handoff[r, PLACE] = number[NUM_ARRIVALS]
        number[NUM_ARRIVALS] += 1
        if is_destination_first(dec):
            # The slot of one that no engine can ever hold is free in the next round.
            left = number[FREED_NOW]
            request_destination(pre, dec, r)
            freed += number[FREED_NOW] - left
            number[FREED_NOW] = left
            cut(dec, handoff[r, TARGET] // num_dp, np.nextafter(now, np.inf))
        else:
            queue_prompt(pre, dec, r)
        r = pop_release(dec, now)
    number[FREED_NOW] += freed


@inner
def _start_prefills(pre, dec):  # type: ignore[no-untyped-def]
    """Idle prefill engines with work start a pass; one that could do nothing stays idle."""
    numbers_of(dec)[ASKING] = 0
    for w in range(limits_of(pre)[NUM_REPLICAS]):
        code = _start_pass(pre, w, math.inf)
        if code != FINISHED:
            return code
    return FINISHED


@inner
def _start_decodes(pre, dec):  # type: ignore[no-untyped-def]
    """Idle decode engines with work start a pass; what they hand over meanwhile is prefilled in the next round of starts."""
    # Planning beyond the next computed prompt would mostly be in vain: it cuts a stretch.
    next_prefill = next_pass_end(pre)
    numbers_of(dec)[ASKING] = 1
    for i in range(limits_of(dec)[NUM_REPLICAS]):
        code = _start_decode(pre, dec, in_order(dec, i), next_prefill)
        if code != FINISHED:
            return code
    return FINISHED


@inner
def _start_decode(pre, dec, w, next_prefill):  # type: ignore[no-untyped-def]
    """Start a pass of decode replica w if it is idle and has work.

    One without duration ends at once, one that could do nothing serves its queues as if it had ended; the next may start then.
    """
    rank, passed, target, number = ranks_of(dec), passes_of(dec), targets_of(dec), numbers_of(dec)
    num_dp, now = limits_of(dec)[NUM_DP], moments_of(dec)[NOW]
    at_once = 0
    while True:
        has_ended = rank[w * num_dp, PHASE] == BUSY
        if has_ended and passed[w, PASS_END] > now:
            return FINISHED
        if has_ended:
            if number[GIVEN_UP] == FOR_CACHE:
                return NEED_CACHE
            at_once += 1
            for t in range(w * num_dp, (w + 1) * num_dp):
                if rank[t, ACTIVE] == 1 and rank[t, DECODE_N] > 0:
                    at_once = 0
            if at_once > MOST_PASSES_AT_ONCE:
                return STUCK
            number[EVENTS_LEFT] -= 1
            if number[EVENTS_LEFT] < 0:
                return PAUSED
            if not gap_log_suffices(dec):
                return GROW_GAPS
            if not all_draws_suffice(dec):
                return NEED_DRAWS
            number[LATER] = 1
            finish_passes(dec, now)
            number[LATER] = 0
        else:
            has_work = rank[w * num_dp, PHASE] == BEGUN
            for t in range(w * num_dp, (w + 1) * num_dp):
                rank[t, OTHERS_WAIT] = 0 if target[t, REQUEST_HEAD] == NONE else 1
                has_work |= rank[t, NUM_WAITING] + rank[t, NUM_RUNNING] > 0
            if not has_work:
                return FINISHED
            code = _start_pass(dec, w, min(_next_landing(dec, w), next_prefill))
            if code != FINISHED:
                return code
            if rank[w * num_dp, PHASE] == BUSY:
                continue
        for t in range(w * num_dp, (w + 1) * num_dp):
            target[t, MAY_SERVE] = 1
        if not hand_over(pre, dec, now) and not has_ended:
            return FINISHED


@inner
def _start_pass(st, w, horizon):  # type: ignore[no-untyped-def]
    rank = ranks_of(st)
    first = w * limits_of(st)[NUM_DP]
    if rank[first, PHASE] == IDLE:
        begin(st, w)
        if rank[first, PHASE] == BEGUN and targets_of(st).shape[0] > 0 and serves_next(st, w):
            rank[first, REPEATS] = 1
    if rank[first, PHASE] == BEGUN:
        code = plan(st, w, horizon)
        if code == STUCK:
            rank[first, PHASE] = IDLE
            rank[first, NUM_PASSES] -= 1
        elif code != FINISHED:
            return code
    return FINISHED


@inner
def _next_landing(dec, w):  # type: ignore[no-untyped-def]
    target, lands = targets_of(dec), lands_of(dec)
    num_dp = limits_of(dec)[NUM_DP]
    instant = math.inf
    for t in range(w * num_dp, (w + 1) * num_dp):
        if target[t, TRAVEL_HEAD] != NONE:
            instant = min(instant, lands[target[t, TRAVEL_HEAD]])
    return instant
