"""SGLang decode passes: room for the next tokens, retraction, stretches of equal passes (specification 7.7 to 7.10)."""

import math

from workers.replay.backends.sglang_prefill import (
    NEAR_TIE,
    chunk_of,
    first_computed,
)
from workers.replay.backends.sglang_room import (
    growth_pages,
    pages_needed,
    retract_until_it_fits,
    room_of,
)
from workers.replay.backends.sglang_state import (
    CHUNK_TOKENS,
    RESERVED_OUTPUT_LIMIT,
    bucket_of,
    end_request,
    leave_decode,
    make_room,
    remaining_output,
)
from workers.replay.compiled import inner
from workers.replay.drafts import (
    accepted_drafts,
)
from workers.replay.radix import (
    FREE_PAGES,
    evict,
)
from workers.replay.retained import FRESH, radix_tree_of
from workers.replay.router import note_first_token
from workers.replay.state import (
    BLOCK_SIZE,
    COMPUTED,
    CONTEXT_SUM,
    CUTTABLE,
    DECODE_CONTEXT,
    DECODE_N,
    DUE_NEXT,
    EFFECT,
    FIRST_TOKEN,
    GAP_N,
    GATE_PASSES,
    GENERATED,
    HEAD_ASK,
    LAST_DECODE_MS,
    LAST_TOKEN,
    LAZY,
    MAX_SEQS,
    MAY_REFUSE,
    NEXT_DUE,
    NONE,
    NUM_DP,
    NUM_DRAFTS,
    NUM_FRESH,
    NUM_LONG,
    NUM_RUNNING,
    NUM_WAITING,
    OTHERS_WAIT,
    OUTPUT,
    PROMISED,
    PROMPT,
    RATIO,
    RATIO_FALL,
    RATIO_FLOOR,
    RETRACTED,
    RUN_HEAD,
    RUN_NEXT,
    RUN_PREV,
    RUN_TAIL,
    SECOND_TOKEN,
    SETTLED,
    SILENT,
    STALLED,
    STEP,
    STOP_AFTER,
    WAIT_HEAD,
    limits_of,
    log_gap,
    log_stretch,
    moments_of,
    ranks_of,
    rates_of,
    requests_of,
    ring_of,
    sgl_reals_of,
    stamps_of,
    timing_of,
)
from workers.replay.step_lookup import (
    CONSTANT,
    DECODE_MS,
    TIMING,
)


@inner
def plan_decode(st, s):  # type: ignore[no-untyped-def]
    """Start a decode pass of all running requests; returns how often it may be repeated unchanged."""
    limits, rank = limits_of(st), ranks_of(st)
    retract_until_it_fits(st, s)
    if pages_needed(st, s) > room_of(st, s):
        rank[s, EFFECT] = rank[s, RETRACTED]
        rank[s, STALLED] = 1
        return 1
    n = rank[s, NUM_RUNNING]
    rank[s, DECODE_N] = n
    rank[s, DECODE_CONTEXT] = rank[s, CONTEXT_SUM]
    rank[s, EFFECT] = 1
    crossing = _count_long(st, s)
    is_regular = rank[s, STALLED] == 0 and rank[s, NUM_FRESH] == 0
    rank[s, GAP_N] = n if is_regular else 0
    if moments_of(st)[STOP_AFTER] < math.inf:  # every pass end counts, and not every request's gaps
        if is_regular:
            rank[s, GAP_N] -= _count_silent(st, s)
        return 1
    if rank[s, RETRACTED] == 1 or limits[NUM_DRAFTS] > 0:
        return 1
    rank[s, LAZY] = 1
    accepts = rank[s, NUM_WAITING] == 0 and n < limits[MAX_SEQS]
    rank[s, CUTTABLE] = 1 if accepts or rank[s, MAY_REFUSE] == 1 else 0
    if not is_regular and (limits[NUM_DP] > 1 or _has_late_first_token(st, s)):
        return 1
    steps = min(_next_due(st, s) - rank[s, STEP], crossing)
    steps = _steps_that_fit(st, s, steps)
    if rank[s, NUM_WAITING] > 0 and n < limits[MAX_SEQS] and rank[s, OTHERS_WAIT] == 0:
        steps = _steps_until_admission(st, s, steps)
    return steps


@inner
def _count_silent(st, s):  # type: ignore[no-untyped-def]
    """Running requests that have had a decode pass and whose token gaps must not be logged."""
    rank, req = ranks_of(st), requests_of(st)
    count = 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if req[r, SILENT] == 1 and req[r, FRESH] == 0:
            count += 1
        r = req[r, RUN_NEXT]
    return count


@inner
def _count_long(st, s):  # type: ignore[no-untyped-def]
    """Recount NUM_LONG; returns the passes until the first of them gets within the reservation limit."""
    rank, req = ranks_of(st), requests_of(st)
    crossing = 1 << 40
    if rank[s, NUM_LONG] == 0:
        return crossing
    rank[s, NUM_LONG] = 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        beyond = remaining_output(st, s, r) - RESERVED_OUTPUT_LIMIT
        if beyond > 0:
            rank[s, NUM_LONG] += 1
            crossing = min(crossing, beyond)
        r = req[r, RUN_NEXT]
    return crossing


@inner
def _has_late_first_token(st, s):  # type: ignore[no-untyped-def]
    """True when a fresh request could not get its first token from its prefill pass."""
    rank, req, stamp = ranks_of(st), requests_of(st), stamps_of(st)
    r = rank[s, RUN_TAIL]
    while r != NONE and req[r, FRESH] == 1:
        if math.isnan(stamp[r, FIRST_TOKEN]):
            return True
        r = req[r, RUN_PREV]
    return False


@inner
def _next_due(st, s):  # type: ignore[no-untyped-def]
    """The step at which the next running request ends."""
    _limits, rank, ring = limits_of(st), ranks_of(st), ring_of(st)
    due = max(rank[s, NEXT_DUE], rank[s, STEP] + 1)
    while ring[bucket_of(st, s, due)] == NONE:
        due += 1
    rank[s, NEXT_DUE] = due
    return due


@inner
def _steps_that_fit(st, s, steps):  # type: ignore[no-untyped-def]
    """How many of the next decode passes have room without retraction; the first does."""
    limits, rank = limits_of(st), ranks_of(st)
    room = room_of(st, s)
    if room >= rank[s, NUM_RUNNING] * (steps // limits[BLOCK_SIZE] + 1):
        return steps
    for passes in range(steps):
        room -= growth_pages(st, s, passes)
        if room < 0:
            return passes
    return steps


@inner
def _steps_until_admission(st, s, steps):  # type: ignore[no-untyped-def]
    """Passes until the blocked head of the queue may be admitted, at most `steps`.

    Evictions on the way can only shorten the head's cached prefix. Then it asks for more, unless that makes it too long
    for one chunk, which reserves no output: so the least it can ask for is what it asks for now or uncached.
    """
    limits, rank, req, real = limits_of(st), ranks_of(st), requests_of(st), sgl_reals_of(st)
    gate = rank[s - s % limits[NUM_DP], GATE_PASSES]
    r, budget = rank[s, WAIT_HEAD], CHUNK_TOKENS // limits[NUM_DP]
    least = rank[s, HEAD_ASK]
    if gate > 0:
        _, paged, reserve = chunk_of(st, r, first_computed(st, s, r), budget)
        least = paged + reserve
    if req[r, COMPUTED] == 0:
        _, paged, reserve = chunk_of(st, r, 0, budget)
        least = min(least, paged + reserve)
    page = limits[BLOCK_SIZE]
    room = room_of(st, s) * page
    promised = rank[s, PROMISED]
    fall = rank[s, NUM_RUNNING] - rank[s, NUM_LONG]
    ratio = real[s, RATIO]
    for passes in range(1, steps):
        room -= growth_pages(st, s, passes - 1) * page
        promised -= fall
        ratio = max(real[s, RATIO_FLOOR], ratio - real[s, RATIO_FALL])
        if passes >= gate and least < room - ratio * promised + NEAR_TIE:
            return passes
    return steps


@inner
def commit_decode(st, s, steps, first_end, end):  # type: ignore[no-untyped-def]
    """`steps` decode passes ended: pages, tokens, gaps, completions."""
    limits, rank, real = limits_of(st), ranks_of(st), sgl_reals_of(st)
    if rank[s, RETRACTED] == 0:
        _lower_ratio(st, s, steps)
    rank[s, RETRACTED] = 0
    if limits[NUM_DRAFTS] > 0:
        _commit_bursts(st, s, end)
        return
    n = rank[s, NUM_RUNNING]
    if rank[s, GAP_N] == 0:
        _log_first_gaps(st, s, first_end)
        _log_other_gaps(st, s, steps - 1)
    pages = 0
    for passes in range(rank[s, SETTLED], steps):
        pages += growth_pages(st, s, passes)
    make_room(st, s, pages)
    rank[s, STEP] += steps
    rank[s, CONTEXT_SUM] += n * steps
    rank[s, PROMISED] -= (n - rank[s, NUM_LONG]) * steps
    real[s, LAST_DECODE_MS] = end
    _finish_due(st, s, end)


@inner
def _finish_due(st, s, end):  # type: ignore[no-untyped-def]
    _limits, rank, req, ring = limits_of(st), ranks_of(st), requests_of(st), ring_of(st)
    r = ring[bucket_of(st, s, rank[s, STEP])]
    while r != NONE:
        after = req[r, DUE_NEXT]
        req[r, GENERATED] = req[r, OUTPUT]
        leave_decode(st, s, r)
        end_request(st, s, r, req[r, PROMPT] + req[r, OUTPUT], end)
        r = after


@inner
def _lower_ratio(st, s, steps):  # type: ignore[no-untyped-def]
    real = sgl_reals_of(st)
    for _ in range(steps):
        if real[s, RATIO] <= real[s, RATIO_FLOOR]:
            break
        real[s, RATIO] = max(real[s, RATIO_FLOOR], real[s, RATIO] - real[s, RATIO_FALL])


@inner
def _log_first_gaps(st, s, first_end):  # type: ignore[no-untyped-def]
    """Gaps of the first decode pass after prefill: since the last decode pass, for fresh requests since their prefill.

    While one of the fresh requests gets its first token only now, all of them stay fresh for another pass.
    """
    rank, req, stamp, real = ranks_of(st), requests_of(st), stamps_of(st), sgl_reals_of(st)
    since, count = real[s, LAST_DECODE_MS], rank[s, NUM_RUNNING] - rank[s, NUM_FRESH] - _count_silent(st, s)
    stays_fresh = 1 if _has_late_first_token(st, s) else 0
    r = rank[s, RUN_TAIL]
    fresh_since, fresh_count = 0.0, 0
    while r != NONE and req[r, FRESH] == 1:
        req[r, FRESH] = stays_fresh
        if math.isnan(stamp[r, FIRST_TOKEN]):
            stamp[r, FIRST_TOKEN] = first_end
            note_first_token(st, r)
        else:
            if math.isnan(stamp[r, SECOND_TOKEN]):
                stamp[r, SECOND_TOKEN] = first_end
            if fresh_count > 0 and stamp[r, LAST_TOKEN] != fresh_since:
                log_gap(st, first_end - fresh_since, fresh_count)
                fresh_count = 0
            fresh_since = stamp[r, LAST_TOKEN]
            fresh_count += 1 - req[r, SILENT]
        stamp[r, LAST_TOKEN] = first_end
        r = req[r, RUN_PREV]
    if fresh_count > 0:
        log_gap(st, first_end - fresh_since, fresh_count)
    if count > 0:
        log_gap(st, first_end - since, count)
    if stays_fresh == 0:
        rank[s, NUM_FRESH] = 0
    rank[s, STALLED] = 0


@inner
def _log_other_gaps(st, s, steps):  # type: ignore[no-untyped-def]
    rank = ranks_of(st)
    n = rank[s, DECODE_N]
    if steps == 0:
        return
    if timing_of(st)[TIMING] == CONSTANT:
        log_gap(st, rates_of(st)[DECODE_MS], n * steps)
    else:
        log_stretch(st, n, rank[s, DECODE_CONTEXT] + n, steps)


@inner
def _commit_bursts(st, s, end):  # type: ignore[no-untyped-def]
    """One speculative decode pass: every running request gets a token and the drafts accepted after it."""
    limits, rank, req, stamp, real, tree = (
        limits_of(st),
        ranks_of(st),
        requests_of(st),
        stamps_of(st),
        sgl_reals_of(st),
        radix_tree_of(st),
    )
    page = limits[BLOCK_SIZE]
    if rank[s, GAP_N] == 0:
        _log_first_gaps(st, s, end)
    evict(tree, s, pages_needed(st, s) - tree.nodes[s, FREE_PAGES])
    tokens, zero_gaps = 0, 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        length, remaining = req[r, PROMPT] + req[r, GENERATED], req[r, OUTPUT] - req[r, GENERATED]
        burst = min(1 + accepted_drafts(st, s, limits[NUM_DRAFTS]), remaining)
        make_room(st, s, (length + burst + page - 1) // page - (length + page - 1) // page)
        req[r, GENERATED] += burst
        if math.isnan(stamp[r, SECOND_TOKEN]) and req[r, GENERATED] > 1:
            stamp[r, SECOND_TOKEN] = end
        tokens += burst
        if req[r, SILENT] == 0:
            zero_gaps += burst - 1
        reserved = min(remaining, RESERVED_OUTPUT_LIMIT) - min(remaining - burst, RESERVED_OUTPUT_LIMIT)
        rank[s, PROMISED] -= reserved
        r = req[r, RUN_NEXT]
    rank[s, CONTEXT_SUM] += tokens
    if zero_gaps > 0:
        log_gap(st, 0.0, zero_gaps)
    real[s, LAST_DECODE_MS] = end
    r = rank[s, RUN_HEAD]
    while r != NONE:
        after = req[r, RUN_NEXT]
        if req[r, GENERATED] == req[r, OUTPUT]:
            leave_decode(st, s, r)
            end_request(st, s, r, req[r, PROMPT] + req[r, OUTPUT], end)
        r = after
