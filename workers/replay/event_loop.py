"""The compiled event loop: passes, completions, releases and routing in one total order.

At one instant: finished passes (ascending replica), then releases (by instant and request), then new passes (ascending
replica). Source: traffic specification, sections 1, 2.5, 2.6 and 4.1; engine specification, sections 2 and 9. The loop
stops with a code whenever it needs the host and continues exactly there when called again.
"""

import math

import numpy as np
from numba import njit

from workers.replay.backends import vllm
from workers.replay.state import (
    ACTIVE,
    BEGUN,
    BUSY,
    CUTTABLE,
    DECODE_CONTEXT,
    DECODE_N,
    EFFECT,
    EVENTS_LEFT,
    EXACT_HORIZON,
    FIRST_END,
    FIRST_REPLICA,
    FREED_NOW,
    GAP_N,
    GAPS_USED,
    IDLE,
    IN_FLIGHT_CAP,
    LAST_REPLICA,
    MISS_A,
    MISS_B,
    MISS_N,
    NEXT_SESSION,
    NONE,
    NOW,
    NUM_DP,
    NUM_PASSES,
    NUM_RUNNING,
    NUM_SESSIONS,
    NUM_WAITING,
    PASS_END,
    PASS_START,
    PHASE,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    RANK_COUNTER,
    REPEATS,
    ROUTED,
    SESSION_STRIDE,
    STOP_AFTER,
    THINKING,
    log_gap,
    log_stretch,
    next_thinker,
    wait_push_back,
)
from workers.replay.step_lookup import CONSTANT, DECODE_MS, TIMING, decode_duration, prefill_duration, walk

FINISHED, PAUSED, NEED_PREFILL, NEED_DECODE, GROW_GAPS, STUCK = range(6)


@njit(cache=True, nogil=True)
def run(st):  # type: ignore[no-untyped-def]
    """Advance the replay until it ends or the host is needed; returns one of the codes above."""
    number, time_ms = st.clock.number, st.clock.time_ms
    while True:
        code = _start_passes(st)
        if code != FINISHED:
            return code
        number[EVENTS_LEFT] -= 1
        if number[EVENTS_LEFT] < 0:
            return PAUSED
        if not _gap_log_suffices(st):
            return GROW_GAPS
        moment = _next_instant(st)
        if moment == math.inf or moment > time_ms[STOP_AFTER]:
            return FINISHED
        time_ms[NOW] = moment
        _finish_passes(st, moment)
        _release(st, moment)


@njit(cache=True, nogil=True)
def _start_passes(st):  # type: ignore[no-untyped-def]
    number, group = st.clock.number, st.group
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        if group[w, PHASE] == IDLE:
            _begin(st, w)
        if group[w, PHASE] == BEGUN:
            code = _plan(st, w)
            if code != FINISHED:
                return code
    return FINISHED


@njit(cache=True, nogil=True)
def _begin(st, w):  # type: ignore[no-untyped-def]
    rank, group = st.rank, st.group
    num_dp = st.limits[NUM_DP]
    now = st.clock.time_ms[NOW]
    repeats = np.int64(1) << 40
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, NUM_WAITING] + rank[s, NUM_RUNNING] == 0:
            rank[s, ACTIVE] = 0
            continue
        rank[s, ACTIVE] = 1
        group[w, PHASE] = BEGUN
        repeats = min(repeats, vllm.begin(st, s, now))
    if group[w, PHASE] == BEGUN:
        group[w, REPEATS] = repeats
        group[w, NUM_PASSES] += 1
        st.group_ms[w, PASS_START] = now


@njit(cache=True, nogil=True)
def _plan(st, w):  # type: ignore[no-untyped-def]
    """Find out when the begun pass of replica w, with its repetitions, ends."""
    group, group_ms, rank = st.group, st.group_ms, st.rank
    num_dp = st.limits[NUM_DP]
    steps = group[w, REPEATS]
    if steps > 1:
        horizon = math.inf
        if st.clock.number[EXACT_HORIZON] == 1 and _can_join(st, w):
            horizon = _next_release(st)
        if not _walk_group(st, w, steps, horizon):
            return NEED_DECODE
        return FINISHED
    duration = 0.0
    effect = False
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, ACTIVE] == 0:
            continue
        effect |= rank[s, EFFECT] != 0
        code, ranks_part = _pass_duration(st, s)
        if code != FINISHED:
            return code
        duration = max(duration, ranks_part)
    if duration == 0.0 and not effect:
        return STUCK
    start = group_ms[w, PASS_START]
    group_ms[w, FIRST_END] = start + duration
    group_ms[w, PASS_END] = start + duration
    group[w, PHASE] = BUSY
    return FINISHED


@njit(cache=True, nogil=True)
def _pass_duration(st, s):  # type: ignore[no-untyped-def]
    """(FINISHED, ms) of rank s's own pass, or what the host must look up."""
    rank, number, times = st.rank, st.clock.number, st.times
    duration = 0.0
    n = rank[s, PREFILL_N]
    if n > 0:
        isl, prefix = rank[s, PREFILL_ISL] // n, rank[s, PREFILL_PREFIX] // n
        if isl > prefix:
            duration = prefill_duration(times, n, isl, prefix)
            if math.isnan(duration):
                number[MISS_N], number[MISS_A], number[MISS_B] = n, isl, prefix
                return NEED_PREFILL, 0.0
    n = rank[s, DECODE_N]
    if n > 0:
        decode = decode_duration(times, n, rank[s, DECODE_CONTEXT])
        if math.isnan(decode):
            number[MISS_N], number[MISS_A], number[MISS_B] = n, rank[s, DECODE_CONTEXT], 1
            return NEED_DECODE, 0.0
        duration += decode
    return FINISHED, duration


@njit(cache=True, nogil=True)
def _walk_group(st, w, steps, horizon):  # type: ignore[no-untyped-def]
    """Plan up to `steps` repetitions, ending with the first that reaches `horizon`; False when a duration is unknown."""
    group_ms, rank = st.group_ms, st.rank
    num_dp = st.limits[NUM_DP]
    now = group_ms[w, PASS_START]
    if num_dp == 1:
        walked, first, now = walk(st, rank[w, DECODE_N], rank[w, DECODE_CONTEXT], steps, now, horizon)
        if walked == 0:
            return False
    else:
        walked = 0
        first = now
        while walked < steps and now < horizon:
            duration = _lockstep_duration(st, w, walked)
            if math.isnan(duration):
                return False
            now += duration
            walked += 1
            if walked == 1:
                first = now
    st.group[w, REPEATS] = walked
    st.group[w, PHASE] = BUSY
    group_ms[w, FIRST_END] = first
    group_ms[w, PASS_END] = now
    return True


@njit(cache=True, nogil=True)
def _lockstep_duration(st, w, repetition):  # type: ignore[no-untyped-def]
    """ms of one repetition of the group's decode pass: that of its slowest rank."""
    rank, number = st.rank, st.clock.number
    num_dp = st.limits[NUM_DP]
    slowest = 0.0
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, ACTIVE] == 0:
            continue
        n = rank[s, DECODE_N]
        context_sum = rank[s, DECODE_CONTEXT] + repetition * n
        duration = decode_duration(st.times, n, context_sum)
        if math.isnan(duration):
            number[MISS_N], number[MISS_A], number[MISS_B] = n, context_sum, st.group[w, REPEATS] - repetition
            return duration
        slowest = max(slowest, duration)
    return slowest


@njit(cache=True, nogil=True)
def _can_join(st, w):  # type: ignore[no-untyped-def]
    """True when an arrival could change the next pass of replica w."""
    rank = st.rank
    num_dp = st.limits[NUM_DP]
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, ACTIVE] == 0 or rank[s, CUTTABLE] == 1:
            return True
    return False


@njit(cache=True, nogil=True)
def _gap_log_suffices(st):  # type: ignore[no-untyped-def]
    number, group, rank = st.clock.number, st.group, st.rank
    num_dp = st.limits[NUM_DP]
    need = 0
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        if group[w, PHASE] == BUSY:
            need += 2 + (group[w, REPEATS] if num_dp > 1 else 0)
            for s in range(w * num_dp, (w + 1) * num_dp):
                if group[w, REPEATS] == 1:
                    need += 2 * rank[s, NUM_RUNNING]
    return number[GAPS_USED] + need <= st.clock.gap_ms.size


@njit(cache=True, nogil=True)
def _next_release(st):  # type: ignore[no-untyped-def]
    """Instant of the next release that is known now."""
    clock = st.clock
    number = clock.number
    moment = math.inf
    if number[NEXT_SESSION] < number[NUM_SESSIONS]:
        if number[IN_FLIGHT_CAP] == NONE:
            moment = st.req.arrival_ms[clock.session_order[number[NEXT_SESSION]]]
        elif number[FREED_NOW] > 0:
            moment = clock.time_ms[NOW]
    if number[THINKING] > 0:
        moment = min(moment, clock.think_ms[0])
    return moment


@njit(cache=True, nogil=True)
def _next_instant(st):  # type: ignore[no-untyped-def]
    number = st.clock.number
    moment = _next_release(st)
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        if st.group[w, PHASE] == BUSY:
            moment = min(moment, st.group_ms[w, PASS_END])
    return moment


@njit(cache=True, nogil=True)
def _finish_passes(st, now):  # type: ignore[no-untyped-def]
    number, group, group_ms, rank = st.clock.number, st.group, st.group_ms, st.rank
    num_dp = st.limits[NUM_DP]
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        if group[w, PHASE] != BUSY or group_ms[w, PASS_END] > now:
            continue
        steps = group[w, REPEATS]
        number[EVENTS_LEFT] -= steps >> 6
        _log_regular_gaps(st, w, steps)
        has_work = False
        for s in range(w * num_dp, (w + 1) * num_dp):
            if rank[s, ACTIVE] == 1:
                vllm.commit(st, s, steps, group_ms[w, FIRST_END], now)
            has_work |= rank[s, NUM_WAITING] + rank[s, NUM_RUNNING] > 0
        if not has_work:
            group[w, NUM_PASSES] = 0
        group[w, PHASE] = IDLE


@njit(cache=True, nogil=True)
def _log_regular_gaps(st, w, steps):  # type: ignore[no-untyped-def]
    rank, group_ms = st.rank, st.group_ms
    num_dp = st.limits[NUM_DP]
    count = 0
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, ACTIVE] == 1:
            count += rank[s, GAP_N]
    if count == 0:
        return
    if steps == 1:
        log_gap(st, group_ms[w, PASS_END] - group_ms[w, PASS_START], count)
    elif st.times.kind[TIMING] == CONSTANT:
        log_gap(st, st.times.constant[DECODE_MS], count * steps)
    elif num_dp == 1:
        log_stretch(st, rank[w, DECODE_N], rank[w, DECODE_CONTEXT], steps)
    else:
        for repetition in range(steps):
            log_gap(st, _lockstep_duration(st, w, repetition), count)


@njit(cache=True, nogil=True)
def _release(st, now):  # type: ignore[no-untyped-def]
    """Release and route everything due, in order of (instant, request)."""
    clock, req = st.clock, st.req
    number = clock.number
    while True:
        chosen, moment, from_sessions = np.int64(NONE), math.inf, False
        if number[NEXT_SESSION] < number[NUM_SESSIONS]:
            r = clock.session_order[number[NEXT_SESSION]]
            if number[IN_FLIGHT_CAP] == NONE:
                if req.arrival_ms[r] <= now:
                    chosen, moment, from_sessions = r, req.arrival_ms[r], True
            elif number[FREED_NOW] > 0:
                chosen, moment, from_sessions = r, now, True
        if number[THINKING] > 0:
            r = clock.think_request[0]
            due = clock.think_ms[0]
            if due <= now and (due < moment or (due == moment and r < chosen)):
                chosen, moment, from_sessions = r, due, False
        if chosen == NONE:
            break
        if from_sessions:
            number[NEXT_SESSION] += number[SESSION_STRIDE]
            number[FREED_NOW] -= 1
        else:
            next_thinker(clock)
        req.arrival_ms[chosen] = moment
        _route(st, chosen, moment)
    number[FREED_NOW] = 0


@njit(cache=True, nogil=True)
def _route(st, r, now):  # type: ignore[no-untyped-def]
    """Round robin over replicas, inside a replica over its ranks; cut a stretch that the arrival may join."""
    number, group, rank = st.clock.number, st.group, st.rank
    num_dp = st.limits[NUM_DP]
    w = number[FIRST_REPLICA] + number[ROUTED] % (number[LAST_REPLICA] - number[FIRST_REPLICA])
    number[ROUTED] += 1
    dp_rank = group[w, RANK_COUNTER] % num_dp
    group[w, RANK_COUNTER] += 1
    st.req.worker[r] = w
    st.req.dp_rank[r] = dp_rank
    s = w * num_dp + dp_rank
    wait_push_back(st, s, r)
    if group[w, PHASE] == BUSY and group[w, REPEATS] > 1 and (rank[s, ACTIVE] == 0 or rank[s, CUTTABLE] == 1):
        _walk_group(st, w, group[w, REPEATS], now)
