"""The compiled event loop: passes, completions, releases and routing in one total order.

At one instant: finished passes (ascending replica), then releases (by instant and request), then new passes (ascending
replica). Source: traffic specification, sections 1, 2.5, 2.6 and 4.1; engine specification, sections 2 and 9. The loop
stops with a code whenever it needs the host and continues exactly there when called again.
"""

import math

import numpy as np

from workers.replay.compiled import bare_entry, entry, inner
from workers.replay.completion import next_thinker
from workers.replay.drafts import draws_suffice
from workers.replay.pass_records import note_here
from workers.replay.passes import (
    FINISHED,
    GROW_GAPS,
    NEED_CACHE,
    NEED_DRAWS,
    PAUSED,
    TICK_DUE,
    begin,
    finish_pass,
    finish_passes,
    gap_log_suffices,
    next_pass_end,
    plan,
    walk_group,
)
from workers.replay.router import is_routed, pick
from workers.replay.state import (
    ACTIVE,
    ARRIVAL,
    ARRIVED,
    BEGUN,
    BUSY,
    CUTTABLE,
    DP_RANK,
    EVENTS_LEFT,
    EXACT_HORIZON,
    FIRST_REPLICA,
    FOR_CACHE,
    FREED_NOW,
    GAP_CONTEXT,
    GAP_COUNT,
    GAP_MS,
    GAP_STEPS,
    GAPS_USED,
    GIVEN_UP,
    IDLE,
    IN_FLIGHT_CAP,
    LAST_EVENT,
    LAST_REPLICA,
    NEXT_SESSION,
    NONE,
    NOW,
    NUM_DP,
    NUM_DRAFTS,
    NUM_READY,
    NUM_SESSIONS,
    PASS_END,
    PHASE,
    RANK_COUNTER,
    REPEATS,
    ROUTED,
    SESSION_STRIDE,
    STOP_AFTER,
    THINKING,
    TICK,
    WORKER,
    gaps_of,
    is_elastic,
    limits_of,
    moments_of,
    numbers_of,
    passes_of,
    ranks_of,
    ready_of,
    requests_of,
    sessions_of,
    stamps_of,
    thinkers_of,
    wait_push_back,
)
from workers.replay.step_lookup import decode_duration
from workers.replay.stretches import settle
from workers.replay.tables import fetch_ahead

_AHEAD = 3


@bare_entry
def run(st):  # type: ignore[no-untyped-def]
    """Advance the replay until it ends or the host is needed; returns one of the codes above."""
    moment = moments_of(st)
    while True:
        code = _start_passes(st)
        if code != FINISHED:
            return code
        code = _needs_host(st)
        if code != FINISHED:
            return code
        now = _next_instant(st)
        if now == math.inf:
            return FINISHED
        if now > moment[TICK]:
            return TICK_DUE
        if now > moment[STOP_AFTER]:
            return FINISHED
        # In a second round at one instant the passes that begin there have begun already: who comes now waits for the next.
        boundary = np.nextafter(now, math.inf) if now == moment[NOW] else now
        moment[NOW] = now
        moment[LAST_EVENT] = max(moment[LAST_EVENT], now)
        finish_passes(st, now)
        _release(st, now, boundary)


@inner
def _start_passes(st):  # type: ignore[no-untyped-def]
    """A pass without duration ends at once and the next one starts, before what it releases is routed."""
    rank, number, passed, now = ranks_of(st), numbers_of(st), passes_of(st), moments_of(st)[NOW]
    num_dp = limits_of(st)[NUM_DP]
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        while True:
            if rank[w * num_dp, PHASE] == IDLE:
                begin(st, w)
            if rank[w * num_dp, PHASE] == BEGUN:
                code = plan(st, w, _horizon(st, w))
                if code != FINISHED:
                    return code
            if rank[w * num_dp, PHASE] != BUSY or passed[w, PASS_END] > now:
                break
            code = _needs_host(st)
            if code != FINISHED:
                return code
            finish_pass(st, w, now)
    return FINISHED


@inner
def _needs_host(st):  # type: ignore[no-untyped-def]
    """FINISHED, or what the host has to do before passes may end."""
    number = numbers_of(st)
    if number[GIVEN_UP] == FOR_CACHE:
        return NEED_CACHE
    number[EVENTS_LEFT] -= 1
    if number[EVENTS_LEFT] < 0:
        return PAUSED
    if not gap_log_suffices(st):
        return GROW_GAPS
    if not all_draws_suffice(st):
        return NEED_DRAWS
    return FINISHED


@inner
def _horizon(st, w):  # type: ignore[no-untyped-def]
    """Instant at which the next arrival may join replica w, as far as it is known."""
    if numbers_of(st)[EXACT_HORIZON] == 1 and _can_join(st, w):
        return next_release(st)
    return math.inf


@inner
def _can_join(st, w):  # type: ignore[no-untyped-def]
    """True when an arrival could change the next pass of replica w."""
    limits, rank = limits_of(st), ranks_of(st)
    num_dp = limits[NUM_DP]
    joinable = False
    for s in range(w * num_dp, (w + 1) * num_dp):
        joinable |= rank[s, ACTIVE] == 0 or rank[s, CUTTABLE] == 1
    return joinable


@inner
def all_draws_suffice(st):  # type: ignore[no-untyped-def]
    """True when no rank can run out of draws in its next pass."""
    if limits_of(st)[NUM_DRAFTS] == 0:
        return True
    enough = True
    for s in range(ranks_of(st).shape[0]):
        enough &= draws_suffice(st, s)
    return enough


@inner
def next_release(st):  # type: ignore[no-untyped-def]
    """Instant of the next release that is known now."""
    number, heap = numbers_of(st), thinkers_of(st)
    instant = math.inf
    if number[NEXT_SESSION] < number[NUM_SESSIONS]:
        if number[IN_FLIGHT_CAP] == NONE:
            instant = stamps_of(st)[sessions_of(st)[number[NEXT_SESSION]], ARRIVAL]
        elif number[FREED_NOW] > 0:
            instant = moments_of(st)[NOW]
    if number[THINKING] > 0:
        instant = min(instant, heap[0, 0])
    return instant


@inner
def _next_instant(st):  # type: ignore[no-untyped-def]
    return min(next_release(st), next_pass_end(st))


@inner
def _release(st, now, boundary):  # type: ignore[no-untyped-def]
    """Release and route everything due."""
    r = pop_release(st, now)
    while r != NONE:
        _route(st, r, boundary)
        r = pop_release(st, now)


@inner
def pop_release(st, now):  # type: ignore[no-untyped-def]
    """The next request due, stamped with its release, in order of (instant, request); NONE when there are no more."""
    number, stamp, order, heap = numbers_of(st), stamps_of(st), sessions_of(st), thinkers_of(st)
    chosen, instant, from_sessions = np.int64(NONE), math.inf, False
    if number[NEXT_SESSION] < number[NUM_SESSIONS]:
        r = order[number[NEXT_SESSION]]
        if number[IN_FLIGHT_CAP] == NONE:
            if stamp[r, ARRIVAL] <= now:
                chosen, instant, from_sessions = r, stamp[r, ARRIVAL], True
        elif number[FREED_NOW] > 0:
            chosen, instant, from_sessions = r, now, True
    if number[THINKING] > 0:
        r = np.int64(heap[0, 1])
        due = heap[0, 0]
        if due <= now and (due < instant or (due == instant and r < chosen)):
            chosen, instant, from_sessions = r, due, False
    if chosen == NONE:
        number[FREED_NOW] = 0
        return chosen
    if from_sessions:
        number[NEXT_SESSION] += number[SESSION_STRIDE]
        number[FREED_NOW] -= 1
        # Requests of one replica lie far apart: their rows would be waited for one by one.
        ahead = number[NEXT_SESSION] + _AHEAD * number[SESSION_STRIDE]
        if ahead < number[NUM_SESSIONS]:
            fetch_ahead(requests_of(st), order[ahead])  # type: ignore[call-arg]
            fetch_ahead(stamp, order[ahead])
    else:
        next_thinker(st)
    stamp[chosen, ARRIVAL] = instant
    number[ARRIVED] += 1
    return chosen


@inner
def _next_in_turn(st):  # type: ignore[no-untyped-def]
    """(replica, rank) of the next request by round robin."""
    rank, number = ranks_of(st), numbers_of(st)
    num_dp = limits_of(st)[NUM_DP]
    if is_elastic(st):
        place = number[ROUTED] % number[NUM_READY]
        w = ready_of(st)[place]
    else:
        place = number[ROUTED] % (number[LAST_REPLICA] - number[FIRST_REPLICA])
        w = number[FIRST_REPLICA] + place
    number[ROUTED] = place + 1
    dp_rank = rank[w * num_dp, RANK_COUNTER] % num_dp
    rank[w * num_dp, RANK_COUNTER] += 1
    return w, dp_rank


@inner
def _route(st, r, boundary):  # type: ignore[no-untyped-def]
    """By cost, or round robin over replicas and their ranks; a stretch the arrival may join ends at `boundary` or later.

    So does any stretch of an elastic pool: what waits does not change during one, except in its last pass.
    """
    rank, req = ranks_of(st), requests_of(st)
    num_dp = limits_of(st)[NUM_DP]
    if is_routed(st):
        settle(st, moments_of(st)[NOW])
        s = pick(st, r)
        w, dp_rank = s // num_dp, s % num_dp
    else:
        w, dp_rank = _next_in_turn(st)
    req[r, WORKER] = w
    req[r, DP_RANK] = dp_rank
    s = w * num_dp + dp_rank
    wait_push_back(st, s, r)
    note_here(st, s)
    if (
        rank[w * num_dp, PHASE] == BUSY
        and rank[w * num_dp, REPEATS] > 1
        and (rank[s, ACTIVE] == 0 or rank[s, CUTTABLE] == 1 or is_elastic(st))
    ):
        walk_group(st, w, rank[w * num_dp, REPEATS], boundary)


@entry
def expand_gaps(st, gap_ms):  # type: ignore[no-untyped-def]
    """Write the gap of every logged entry or, for stretches, of every pass, in order: float64, one element for each."""
    gap_log = gaps_of(st)
    at = 0
    for i in range(numbers_of(st)[GAPS_USED]):
        steps = np.int64(gap_log[i, GAP_STEPS])
        if steps == 0:
            gap_ms[at] = gap_log[i, GAP_MS]
            at += 1
            continue
        n, context_sum = np.int64(gap_log[i, GAP_COUNT]), np.int64(gap_log[i, GAP_CONTEXT])
        for _ in range(steps):
            gap_ms[at] = decode_duration(st, n, context_sum)
            context_sum += n
            at += 1
