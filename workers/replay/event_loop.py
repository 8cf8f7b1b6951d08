"""The compiled event loop: passes, completions, releases and routing in one total order.

At one instant: finished passes (ascending replica), then releases (by instant and request), then new passes (ascending
replica). Source: traffic specification, sections 1, 2.5, 2.6 and 4.1; engine specification, sections 2 and 9. The loop
stops with a code whenever it needs the host and continues exactly there when called again.
"""

import math

import numpy as np

from workers.replay.backends import sglang, vllm
from workers.replay.compiled import bare_entry, entry, inner
from workers.replay.completion import next_thinker
from workers.replay.drafts import draws_suffice
from workers.replay.router import is_routed, pick, show_cache
from workers.replay.state import (
    ACTIVE,
    ARRIVAL,
    BACKEND,
    BEGUN,
    BUSY,
    CUTTABLE,
    DECODE,
    DECODE_CONTEXT,
    DECODE_N,
    DP_RANK,
    EFFECT,
    EVENTS_LEFT,
    EXACT_HORIZON,
    FIRST_END,
    FIRST_REPLICA,
    FREED_NOW,
    GAP_CONTEXT,
    GAP_COUNT,
    GAP_MS,
    GAP_N,
    GAP_STEPS,
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
    NUM_DRAFTS,
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
    ROLE,
    ROUTED,
    SESSION_STRIDE,
    SGLANG,
    STOP_AFTER,
    THINKING,
    WORKER,
    gaps_of,
    limits_of,
    log_gap,
    log_stretch,
    moments_of,
    numbers_of,
    passes_of,
    ranks_of,
    rates_of,
    requests_of,
    sessions_of,
    stamps_of,
    thinkers_of,
    timing_of,
    wait_push_back,
)
from workers.replay.step_lookup import CONSTANT, DECODE_MS, TIMING, decode_duration, prefill_duration, walk

FINISHED, PAUSED, NEED_PREFILL, NEED_DECODE, GROW_GAPS, NEED_DRAWS, STUCK = range(7)


@bare_entry
def run(st):  # type: ignore[no-untyped-def]
    """Advance the replay until it ends or the host is needed; returns one of the codes above."""
    number, moment = numbers_of(st), moments_of(st)
    while True:
        code = _start_passes(st)
        if code != FINISHED:
            return code
        number[EVENTS_LEFT] -= 1
        if number[EVENTS_LEFT] < 0:
            return PAUSED
        if not gap_log_suffices(st):
            return GROW_GAPS
        if not all_draws_suffice(st):
            return NEED_DRAWS
        now = _next_instant(st)
        if now == math.inf or now > moment[STOP_AFTER]:
            return FINISHED
        # In a second round at one instant the passes that begin there have begun already: who comes now waits for the next.
        boundary = np.nextafter(now, math.inf) if now == moment[NOW] else now
        moment[NOW] = now
        finish_passes(st, now)
        _release(st, now, boundary)


@inner
def _start_passes(st):  # type: ignore[no-untyped-def]
    rank, number = ranks_of(st), numbers_of(st)
    num_dp = limits_of(st)[NUM_DP]
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        if rank[w * num_dp, PHASE] == IDLE:
            begin(st, w)
        if rank[w * num_dp, PHASE] == BEGUN:
            code = plan(st, w, _horizon(st, w))
            if code != FINISHED:
                return code
    return FINISHED


@inner
def _horizon(st, w):  # type: ignore[no-untyped-def]
    """Instant at which the next arrival may join replica w, as far as it is known."""
    if numbers_of(st)[EXACT_HORIZON] == 1 and _can_join(st, w):
        return next_release(st)
    return math.inf


@inner
def begin(st, w):  # type: ignore[no-untyped-def]
    """Form a pass of replica w if it has work."""
    limits, rank, passed, moment = limits_of(st), ranks_of(st), passes_of(st), moments_of(st)
    num_dp = limits[NUM_DP]
    now = moment[NOW]
    repeats = np.int64(1) << 40
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, NUM_WAITING] + rank[s, NUM_RUNNING] == 0:
            rank[s, ACTIVE] = 0
            continue
        rank[s, ACTIVE] = 1
        rank[w * num_dp, PHASE] = BEGUN
        steps = sglang.begin(st, s, now) if limits[BACKEND] == SGLANG else vllm.begin(st, s, now)
        repeats = min(repeats, steps)
    if rank[w * num_dp, PHASE] == BEGUN:
        rank[w * num_dp, REPEATS] = repeats
        rank[w * num_dp, NUM_PASSES] += 1
        passed[w, PASS_START] = now


@inner
def plan(st, w, horizon):  # type: ignore[no-untyped-def]
    """Find out when the begun pass of replica w, with its repetitions up to `horizon`, ends."""
    limits, rank, passed = limits_of(st), ranks_of(st), passes_of(st)
    num_dp = limits[NUM_DP]
    steps = rank[w * num_dp, REPEATS]
    if steps > 1:
        if not walk_group(st, w, steps, horizon):
            return NEED_DECODE
        return FINISHED
    duration = 0.0
    effect = False
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, ACTIVE] == 0:
            continue
        effect |= rank[s, EFFECT] != 0
        code, ranks_part = pass_duration(st, s)
        if code != FINISHED:
            return code
        duration = max(duration, ranks_part)
    if duration == 0.0 and not effect:
        return STUCK
    start = passed[w, PASS_START]
    passed[w, FIRST_END] = start + duration
    passed[w, PASS_END] = start + duration
    rank[w * num_dp, PHASE] = BUSY
    return FINISHED


@inner
def pass_duration(st, s):  # type: ignore[no-untyped-def]
    """(FINISHED, ms) of rank s's own pass, or what the host must look up.

    vLLM and TensorRT-LLM decode pools are not billed for recomputing what they preempted.
    """
    limits, rank, number = limits_of(st), ranks_of(st), numbers_of(st)
    duration = 0.0
    n = rank[s, PREFILL_N]
    if n > 0 and (limits[ROLE] != DECODE or limits[BACKEND] == SGLANG):
        isl, prefix = rank[s, PREFILL_ISL] // n, rank[s, PREFILL_PREFIX] // n
        if isl > prefix:
            duration = prefill_duration(st, n, isl, prefix)
            if math.isnan(duration):
                number[MISS_N], number[MISS_A], number[MISS_B] = n, isl, prefix
                return NEED_PREFILL, 0.0
    n = rank[s, DECODE_N]
    if n > 0:
        decode = decode_duration(st, n, rank[s, DECODE_CONTEXT])
        if math.isnan(decode):
            number[MISS_N], number[MISS_A], number[MISS_B] = n, rank[s, DECODE_CONTEXT], 1
            return NEED_DECODE, 0.0
        duration += decode
    return FINISHED, duration


@inner
def walk_group(st, w, steps, horizon):  # type: ignore[no-untyped-def]
    """Plan up to `steps` repetitions, ending with the first that reaches `horizon`; False when a duration is unknown."""
    limits, rank, passed = limits_of(st), ranks_of(st), passes_of(st)
    num_dp = limits[NUM_DP]
    now = passed[w, PASS_START]
    if num_dp == 1:
        walked, first, now = walk(st, rank[w, DECODE_N], rank[w, DECODE_CONTEXT], steps, now, horizon)
        if walked == 0:
            return False
    else:
        walked = 0
        first = now
        while walked < steps and now < horizon:
            duration = lockstep_duration(st, w, walked)
            if math.isnan(duration):
                return False
            now += duration
            walked += 1
            if walked == 1:
                first = now
    rank[w * num_dp, REPEATS] = walked
    rank[w * num_dp, PHASE] = BUSY
    passed[w, FIRST_END] = first
    passed[w, PASS_END] = now
    return True


@inner
def lockstep_duration(st, w, repetition):  # type: ignore[no-untyped-def]
    """ms of one repetition of the group's decode pass: that of its slowest rank."""
    limits, rank, number = limits_of(st), ranks_of(st), numbers_of(st)
    num_dp = limits[NUM_DP]
    slowest = 0.0
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, ACTIVE] == 0:
            continue
        n = rank[s, DECODE_N]
        context_sum = rank[s, DECODE_CONTEXT] + repetition * n
        duration = decode_duration(st, n, context_sum)
        if math.isnan(duration):
            number[MISS_N], number[MISS_A], number[MISS_B] = n, context_sum, rank[w * num_dp, REPEATS] - repetition
            return duration
        slowest = max(slowest, duration)
    return slowest


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
def gap_log_suffices(st):  # type: ignore[no-untyped-def]
    """True when the passes under way cannot overflow the gap log."""
    limits, rank, number, gap_log = limits_of(st), ranks_of(st), numbers_of(st), gaps_of(st)
    num_dp = limits[NUM_DP]
    need = 0
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        if rank[w * num_dp, PHASE] == BUSY:
            need += 2 + (rank[w * num_dp, REPEATS] if num_dp > 1 else 0)
            for s in range(w * num_dp, (w + 1) * num_dp):
                if rank[w * num_dp, REPEATS] == 1 or limits[BACKEND] == SGLANG:
                    need += 2 + 2 * rank[s, NUM_RUNNING] + rank[s, PREFILL_N]
    return number[GAPS_USED] + need <= gap_log.shape[0]


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
def next_pass_end(st):  # type: ignore[no-untyped-def]
    """End of the first pass under way to end."""
    rank, passed, number = ranks_of(st), passes_of(st), numbers_of(st)
    num_dp = limits_of(st)[NUM_DP]
    instant = math.inf
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        if rank[w * num_dp, PHASE] == BUSY:
            instant = min(instant, passed[w, PASS_END])
    return instant


@inner
def finish_passes(st, now):  # type: ignore[no-untyped-def]
    """Commit every pass due at `now`, ascending replica."""
    rank, passed, number = ranks_of(st), passes_of(st), numbers_of(st)
    num_dp = limits_of(st)[NUM_DP]
    for w in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        if rank[w * num_dp, PHASE] == BUSY and passed[w, PASS_END] <= now:
            _finish_pass(st, w, now)


@inner
def _finish_pass(st, w, now):  # type: ignore[no-untyped-def]
    limits, rank, passed, number = limits_of(st), ranks_of(st), passes_of(st), numbers_of(st)
    num_dp = limits[NUM_DP]
    steps = rank[w * num_dp, REPEATS]
    number[EVENTS_LEFT] -= steps >> 6
    _log_regular_gaps(st, w, steps)
    has_work = False
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, ACTIVE] == 1 and limits[BACKEND] == SGLANG:
            sglang.commit(st, s, steps, passed[w, FIRST_END], now)
        elif rank[s, ACTIVE] == 1:
            vllm.commit(st, s, steps, passed[w, FIRST_END], now)
        has_work |= rank[s, NUM_WAITING] + rank[s, NUM_RUNNING] > 0
        show_cache(st, s)
    if not has_work:
        rank[w * num_dp, NUM_PASSES] = 0
    rank[w * num_dp, PHASE] = IDLE


@inner
def _log_regular_gaps(st, w, steps):  # type: ignore[no-untyped-def]
    limits, rank, passed = limits_of(st), ranks_of(st), passes_of(st)
    num_dp = limits[NUM_DP]
    count = 0
    for s in range(w * num_dp, (w + 1) * num_dp):
        if rank[s, ACTIVE] == 1:
            count += rank[s, GAP_N]
    if count == 0:
        return
    if steps == 1:
        log_gap(st, passed[w, PASS_END] - passed[w, PASS_START], count)
    elif timing_of(st)[TIMING] == CONSTANT:
        log_gap(st, rates_of(st)[DECODE_MS], count * steps)
    elif num_dp == 1:
        log_stretch(st, rank[w, DECODE_N], rank[w, DECODE_CONTEXT], steps)
    else:
        for repetition in range(steps):
            log_gap(st, lockstep_duration(st, w, repetition), count)


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
    else:
        next_thinker(st)
    stamp[chosen, ARRIVAL] = instant
    return chosen


@inner
def _next_in_turn(st):  # type: ignore[no-untyped-def]
    """(replica, rank) of the next request by round robin."""
    rank, number = ranks_of(st), numbers_of(st)
    num_dp = limits_of(st)[NUM_DP]
    w = number[FIRST_REPLICA] + number[ROUTED] % (number[LAST_REPLICA] - number[FIRST_REPLICA])
    number[ROUTED] += 1
    dp_rank = rank[w * num_dp, RANK_COUNTER] % num_dp
    rank[w * num_dp, RANK_COUNTER] += 1
    return w, dp_rank


@inner
def _route(st, r, boundary):  # type: ignore[no-untyped-def]
    """By cost, or round robin over replicas and their ranks; a stretch the arrival may join ends at `boundary` or later."""
    rank, req = ranks_of(st), requests_of(st)
    num_dp = limits_of(st)[NUM_DP]
    if is_routed(st):
        s = pick(st, r)
        w, dp_rank = s // num_dp, s % num_dp
    else:
        w, dp_rank = _next_in_turn(st)
    req[r, WORKER] = w
    req[r, DP_RANK] = dp_rank
    s = w * num_dp + dp_rank
    wait_push_back(st, s, r)
    if (
        rank[w * num_dp, PHASE] == BUSY
        and rank[w * num_dp, REPEATS] > 1
        and (rank[s, ACTIVE] == 0 or rank[s, CUTTABLE] == 1)
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
