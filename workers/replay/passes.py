"""Passes of one engine group: begin, how long, where they end, what they leave behind; shared by both event loops."""

import math

import numpy as np

from workers.replay.backends import sglang, vllm
from workers.replay.compiled import inner
from workers.replay.pass_records import in_order, note_pass_ended, note_pass_formed
from workers.replay.router import show_cache
from workers.replay.state import (
    ACTIVE,
    BACKEND,
    BEGUN,
    BUSY,
    COMMITTED_PREFILL,
    COMPUTED_NOW,
    DECODE,
    DECODE_CONTEXT,
    DECODE_N,
    EFFECT,
    EVENTS_LEFT,
    FIRST_END,
    FIRST_REPLICA,
    GAP_N,
    GAPS_USED,
    IDLE,
    LAST_REPLICA,
    MISS_A,
    MISS_B,
    MISS_N,
    NOW,
    NUM_DP,
    NUM_PASSES,
    NUM_RUNNING,
    NUM_WAITING,
    OUTGREW,
    PASS_END,
    PASS_START,
    PHASE,
    PREFILL,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    PREFILLED_SILENT,
    PREFILLED_TAIL,
    REPEATS,
    ROLE,
    SETTLED,
    SGLANG,
    gaps_of,
    is_elastic,
    limits_of,
    log_gap,
    log_stretch,
    moments_of,
    numbers_of,
    passes_of,
    ranks_of,
    rates_of,
    timing_of,
)
from workers.replay.step_lookup import CONSTANT, DECODE_MS, TIMING, decode_duration, prefill_duration, walk

FINISHED, PAUSED, NEED_PREFILL, NEED_DECODE, GROW_GAPS, NEED_DRAWS, STUCK, TICK_DUE, NEED_CACHE = range(9)


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
        rank[s, COMPUTED_NOW] = 0
        rank[s, SETTLED] = 0
        rank[w * num_dp, PHASE] = BEGUN
        steps = sglang.begin(st, s, now) if limits[BACKEND] == SGLANG else vllm.begin(st, s, now)
        note_pass_formed(st, s)
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
        if rank[s, OUTGREW] == 1:
            return STUCK
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

    Decode pools are not billed for recomputing what they preempted, prefill pools not for tokens of cached prompts.
    """
    limits, rank, number = limits_of(st), ranks_of(st), numbers_of(st)
    duration = 0.0
    n = rank[s, PREFILL_N]
    if n > 0 and limits[ROLE] != DECODE:
        isl, prefix = rank[s, PREFILL_ISL] // n, rank[s, PREFILL_PREFIX] // n
        if isl > prefix:
            duration = prefill_duration(st, n, isl, prefix)
            if math.isnan(duration):
                number[MISS_N], number[MISS_A], number[MISS_B] = n, isl, prefix
                return NEED_PREFILL, 0.0
    n = rank[s, DECODE_N]
    if n > 0 and limits[ROLE] != PREFILL:
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
        while walked < steps and (walked == 0 or now < horizon):
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
    for i in range(number[FIRST_REPLICA], number[LAST_REPLICA]):
        w = in_order(st, i)
        if rank[w * num_dp, PHASE] == BUSY and passed[w, PASS_END] <= now:
            finish_pass(st, w, now)


@inner
def finish_pass(st, w, now):  # type: ignore[no-untyped-def]
    """Commit the pass of replica w, or its repetitions, at `now`."""
    limits, rank, passed, number = limits_of(st), ranks_of(st), passes_of(st), numbers_of(st)
    num_dp = limits[NUM_DP]
    steps = rank[w * num_dp, REPEATS]
    number[EVENTS_LEFT] -= steps >> 6
    if is_elastic(st):
        wall = passed[w, PASS_END] - passed[w, PASS_START] if steps == 1 else lockstep_duration(st, w, steps - 1)
        note_pass_ended(st, w, steps - 1, wall, now)
    log_regular_gaps(st, w, steps)
    has_work = False
    for s in range(w * num_dp, (w + 1) * num_dp):
        number[PREFILLED_SILENT] = number[PREFILLED_TAIL]
        if rank[s, ACTIVE] == 1 and limits[BACKEND] == SGLANG:
            sglang.commit(st, s, steps, passed[w, FIRST_END], now)
        elif rank[s, ACTIVE] == 1:
            vllm.commit(st, s, steps, passed[w, FIRST_END], now)
        if rank[s, ACTIVE] == 1:
            number[COMMITTED_PREFILL] += rank[s, COMPUTED_NOW]
        has_work |= rank[s, NUM_WAITING] + rank[s, NUM_RUNNING] > 0
        show_cache(st, s)
    if not has_work:
        rank[w * num_dp, NUM_PASSES] = 0
    rank[w * num_dp, PHASE] = IDLE


@inner
def log_regular_gaps(st, w, steps):  # type: ignore[no-untyped-def]
    """Log the gaps that are exactly the pass of replica w, in each of its `steps` repetitions."""
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
