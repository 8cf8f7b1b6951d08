"""SGLang decode passes: room for the next tokens, retraction, stretches of equal passes (specification 7.7 to 7.10)."""

import math

from workers.replay.backends.sglang_prefill import NEAR_TIE, chunk_of, first_computed
from workers.replay.backends.sglang_state import (
    CHUNK_TOKENS,
    FRESH,
    GATE_PASSES,
    HEAD_ASK,
    LAST_DECODE_MS,
    MAY_REFUSE,
    NEXT_DUE,
    NUM_FRESH,
    NUM_LONG,
    PROMISED,
    RATIO,
    RATIO_FALL,
    RATIO_FLOOR,
    RESERVED_OUTPUT_LIMIT,
    RETRACT_STEPS,
    RETRACTED,
    STALLED,
    end_request,
    leave_decode,
    make_room,
    release,
    remaining_output,
)
from workers.replay.compiled import inner
from workers.replay.drafts import accepted_drafts
from workers.replay.radix import evict
from workers.replay.state import (
    BLOCK_SIZE,
    CONTEXT_SUM,
    CUTTABLE,
    DECODE_CONTEXT,
    DECODE_N,
    EFFECT,
    GAP_N,
    LAZY,
    MAX_SEQS,
    NONE,
    NUM_DP,
    NUM_DRAFTS,
    NUM_RUNNING,
    NUM_WAITING,
    RING_MASK,
    RUN_HEAD,
    RUN_TAIL,
    STEP,
    WAIT_HEAD,
    log_gap,
    log_stretch,
    wait_push_back,
)
from workers.replay.step_lookup import CONSTANT, DECODE_MS, TIMING


@inner
def plan_decode(st, s):  # type: ignore[no-untyped-def]
    """Start a decode pass of all running requests; returns how often it may be repeated unchanged."""
    rank, limits, number = st.rank, st.limits, st.sglang.number
    _retract_until_it_fits(st, s)
    if _need(st, s) > _room(st, s):
        rank[s, EFFECT] = number[s, RETRACTED]
        return 1
    n = rank[s, NUM_RUNNING]
    rank[s, DECODE_N] = n
    rank[s, DECODE_CONTEXT] = rank[s, CONTEXT_SUM]
    rank[s, EFFECT] = 1
    is_regular = number[s, STALLED] == 0 and number[s, NUM_FRESH] == 0
    rank[s, GAP_N] = n if is_regular else 0
    if number[s, RETRACTED] == 1 or limits[NUM_DRAFTS] > 0:
        return 1
    rank[s, LAZY] = 1
    accepts = rank[s, NUM_WAITING] == 0 and n < limits[MAX_SEQS]
    rank[s, CUTTABLE] = 1 if accepts or number[s, MAY_REFUSE] == 1 else 0
    crossing = _count_long(st, s)
    if not is_regular and (limits[NUM_DP] > 1 or _has_late_first_token(st, s)):
        return 1
    steps = min(_next_due(st, s) - rank[s, STEP], crossing)
    steps = _steps_that_fit(st, s, steps)
    if rank[s, NUM_WAITING] > 0 and n < limits[MAX_SEQS]:
        steps = _steps_until_admission(st, s, steps)
    return steps


@inner
def _room(st, s):  # type: ignore[no-untyped-def]
    return st.sglang.tree.free_pages[s] + st.sglang.tree.evictable_pages[s]


@inner
def _growth(st, s, passes):  # type: ignore[no-untyped-def]
    """New pages that decode pass number `passes` from now (0: the next one) needs: one per request with full pages."""
    page = st.limits[BLOCK_SIZE]
    return st.blocks.growth[s, -(st.rank[s, STEP] + passes) % page]


@inner
def _need(st, s):  # type: ignore[no-untyped-def]
    """New pages the next decode pass must be sure of; with speculation for the longest possible bursts."""
    num_drafts = st.limits[NUM_DRAFTS]
    if num_drafts == 0:
        return _growth(st, s, 0)
    req, page = st.req, st.limits[BLOCK_SIZE]
    need = 0
    r = st.rank[s, RUN_HEAD]
    while r != NONE:
        length = req.prompt[r] + req.generated[r]
        burst = min(1 + num_drafts, req.output[r] - req.generated[r])
        need += (length + burst + page - 1) // page - (length + page - 1) // page
        r = req.run_next[r]
    return need


@inner
def _retract_until_it_fits(st, s):  # type: ignore[no-untyped-def]
    """Send requests back to the queue until the others have room, then trust the ratio they have shown so far."""
    rank, req, sg = st.rank, st.req, st.sglang
    number = sg.number
    while rank[s, NUM_RUNNING] > 1 and _need(st, s) > _room(st, s):
        _retract(st, s, _victim(st, s))
        number[s, RETRACTED] = 1
    if number[s, RETRACTED] == 0:
        return
    generated, outputs = 0, 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        generated += req.output[r] - remaining_output(st, s, r)
        outputs += req.output[r]
        r = req.run_next[r]
    sg.real[s, RATIO] = min(1.0, (generated + RETRACT_STEPS * rank[s, NUM_RUNNING]) / (outputs + 1.0))


@inner
def _victim(st, s):  # type: ignore[no-untyped-def]
    """The running request with the fewest tokens; of those the longest prompt, of those the last in the list."""
    req = st.req
    victim, fewest = NONE, 0
    r = st.rank[s, RUN_HEAD]
    while r != NONE:
        generated = req.output[r] - remaining_output(st, s, r)
        if victim == NONE or generated < fewest or (generated == fewest and req.prompt[r] >= req.prompt[victim]):
            victim, fewest = r, generated
        r = req.run_next[r]
    return victim


@inner
def _retract(st, s, r):  # type: ignore[no-untyped-def]
    rank, req, sg = st.rank, st.req, st.sglang
    page = st.limits[BLOCK_SIZE]
    req.generated[r] = req.output[r] - remaining_output(st, s, r)
    if sg.request[r, FRESH] == 0:
        req.last_token_ms[r] = sg.real[s, LAST_DECODE_MS]
    leave_decode(st, s, r)
    release(st, s, r, req.prompt[r] + req.generated[r])
    wait_push_back(st, s, r)
    wanted = (RETRACT_STEPS * rank[s, NUM_RUNNING] + page - 1) // page
    evict(sg.tree, s, wanted - sg.tree.free_pages[s])


@inner
def _count_long(st, s):  # type: ignore[no-untyped-def]
    """Recount NUM_LONG; returns the passes until the first of them gets within the reservation limit."""
    number, req = st.sglang.number, st.req
    crossing = 1 << 40
    if number[s, NUM_LONG] == 0:
        return crossing
    number[s, NUM_LONG] = 0
    r = st.rank[s, RUN_HEAD]
    while r != NONE:
        beyond = remaining_output(st, s, r) - RESERVED_OUTPUT_LIMIT
        if beyond > 0:
            number[s, NUM_LONG] += 1
            crossing = min(crossing, beyond)
        r = req.run_next[r]
    return crossing


@inner
def _has_late_first_token(st, s):  # type: ignore[no-untyped-def]
    """True when a fresh request could not get its first token from its prefill pass."""
    r = st.rank[s, RUN_TAIL]
    while r != NONE and st.sglang.request[r, FRESH] == 1:
        if math.isnan(st.req.first_token_ms[r]):
            return True
        r = st.req.run_prev[r]
    return False


@inner
def _next_due(st, s):  # type: ignore[no-untyped-def]
    """The step at which the next running request ends."""
    number, ring_head, mask = st.sglang.number, st.blocks.ring_head, st.limits[RING_MASK]
    due = max(number[s, NEXT_DUE], st.rank[s, STEP] + 1)
    while ring_head[s, due & mask] == NONE:
        due += 1
    number[s, NEXT_DUE] = due
    return due


@inner
def _steps_that_fit(st, s, steps):  # type: ignore[no-untyped-def]
    """How many of the next decode passes have room without retraction; the first does."""
    room = _room(st, s)
    if room >= st.rank[s, NUM_RUNNING] * (steps // st.limits[BLOCK_SIZE] + 1):
        return steps
    for passes in range(steps):
        room -= _growth(st, s, passes)
        if room < 0:
            return passes
    return steps


@inner
def _steps_until_admission(st, s, steps):  # type: ignore[no-untyped-def]
    """Passes until the blocked head of the queue may be admitted, at most `steps`.

    The head asks for at least what it asks for now: evictions can only shorten its cached prefix.
    """
    number, real, limits = st.sglang.number, st.sglang.real, st.limits
    gate = number[s - s % limits[NUM_DP], GATE_PASSES]
    if gate > 0:
        r = st.rank[s, WAIT_HEAD]
        _, paged, reserve = chunk_of(st, r, first_computed(st, s, r), CHUNK_TOKENS // limits[NUM_DP])
        number[s, HEAD_ASK] = paged + reserve
    page = limits[BLOCK_SIZE]
    room = _room(st, s) * page
    promised = number[s, PROMISED]
    fall = st.rank[s, NUM_RUNNING] - number[s, NUM_LONG]
    ratio = real[s, RATIO]
    for passes in range(1, steps):
        room -= _growth(st, s, passes - 1) * page
        promised -= fall
        ratio = max(real[s, RATIO_FLOOR], ratio - real[s, RATIO_FALL])
        if passes >= gate and number[s, HEAD_ASK] < room - ratio * promised + NEAR_TIE:
            return passes
    return steps


@inner
def commit_decode(st, s, steps, first_end, end):  # type: ignore[no-untyped-def]
    """`steps` decode passes ended: pages, tokens, gaps, completions."""
    rank, sg = st.rank, st.sglang
    number = sg.number
    if number[s, RETRACTED] == 0:
        _lower_ratio(st, s, steps)
    number[s, RETRACTED] = 0
    if st.limits[NUM_DRAFTS] > 0:
        _commit_bursts(st, s, end)
        return
    n = rank[s, NUM_RUNNING]
    if rank[s, GAP_N] == 0:
        _log_first_gaps(st, s, first_end)
        _log_other_gaps(st, s, steps - 1)
    pages = 0
    for passes in range(steps):
        pages += _growth(st, s, passes)
    make_room(st, s, pages)
    rank[s, STEP] += steps
    rank[s, CONTEXT_SUM] += n * steps
    number[s, PROMISED] -= (n - number[s, NUM_LONG]) * steps
    sg.real[s, LAST_DECODE_MS] = end
    _finish_due(st, s, end)


@inner
def _finish_due(st, s, end):  # type: ignore[no-untyped-def]
    req = st.req
    r = st.blocks.ring_head[s, st.rank[s, STEP] & st.limits[RING_MASK]]
    while r != NONE:
        after = req.due_next[r]
        req.generated[r] = req.output[r]
        leave_decode(st, s, r)
        end_request(st, s, r, req.prompt[r] + req.output[r], end)
        r = after


@inner
def _lower_ratio(st, s, steps):  # type: ignore[no-untyped-def]
    real = st.sglang.real
    for _ in range(steps):
        if real[s, RATIO] <= real[s, RATIO_FLOOR]:
            break
        real[s, RATIO] = max(real[s, RATIO_FLOOR], real[s, RATIO] - real[s, RATIO_FALL])


@inner
def _log_first_gaps(st, s, first_end):  # type: ignore[no-untyped-def]
    """Gaps of the first decode pass after prefill: since the last decode pass, for fresh requests since their prefill.

    While one of the fresh requests gets its first token only now, all of them stay fresh for another pass.
    """
    rank, req, sg = st.rank, st.req, st.sglang
    since, count = sg.real[s, LAST_DECODE_MS], rank[s, NUM_RUNNING] - sg.number[s, NUM_FRESH]
    stays_fresh = 1 if _has_late_first_token(st, s) else 0
    r = rank[s, RUN_TAIL]
    fresh_since, fresh_count = 0.0, 0
    while r != NONE and sg.request[r, FRESH] == 1:
        sg.request[r, FRESH] = stays_fresh
        if math.isnan(req.first_token_ms[r]):
            req.first_token_ms[r] = first_end
        else:
            if math.isnan(req.second_token_ms[r]):
                req.second_token_ms[r] = first_end
            if fresh_count > 0 and req.last_token_ms[r] != fresh_since:
                log_gap(st, first_end - fresh_since, fresh_count)
                fresh_count = 0
            fresh_since = req.last_token_ms[r]
            fresh_count += 1
        req.last_token_ms[r] = first_end
        r = req.run_prev[r]
    if fresh_count > 0:
        log_gap(st, first_end - fresh_since, fresh_count)
    if count > 0:
        log_gap(st, first_end - since, count)
    if stays_fresh == 0:
        sg.number[s, NUM_FRESH] = 0
    sg.number[s, STALLED] = 0


@inner
def _log_other_gaps(st, s, steps):  # type: ignore[no-untyped-def]
    rank, times = st.rank, st.times
    n = rank[s, DECODE_N]
    if steps == 0:
        return
    if times.kind[TIMING] == CONSTANT:
        log_gap(st, times.constant[DECODE_MS], n * steps)
    else:
        log_stretch(st, n, rank[s, DECODE_CONTEXT] + n, steps)


@inner
def _commit_bursts(st, s, end):  # type: ignore[no-untyped-def]
    """One speculative decode pass: every running request gets a token and the drafts accepted after it."""
    rank, req, sg = st.rank, st.req, st.sglang
    page = st.limits[BLOCK_SIZE]
    if rank[s, GAP_N] == 0:
        _log_first_gaps(st, s, end)
    evict(sg.tree, s, _need(st, s) - sg.tree.free_pages[s])
    tokens = 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        length, remaining = req.prompt[r] + req.generated[r], req.output[r] - req.generated[r]
        burst = 1 + accepted_drafts(st, r, remaining - 1)
        make_room(st, s, (length + burst + page - 1) // page - (length + page - 1) // page)
        req.generated[r] += burst
        if math.isnan(req.second_token_ms[r]) and req.generated[r] > 1:
            req.second_token_ms[r] = end
        tokens += burst
        reserved = min(remaining, RESERVED_OUTPUT_LIMIT) - min(remaining - burst, RESERVED_OUTPUT_LIMIT)
        sg.number[s, PROMISED] -= reserved
        r = req.run_next[r]
    rank[s, CONTEXT_SUM] += tokens
    if tokens > rank[s, NUM_RUNNING]:
        log_gap(st, 0.0, tokens - rank[s, NUM_RUNNING])
    sg.real[s, LAST_DECODE_MS] = end
    r = rank[s, RUN_HEAD]
    while r != NONE:
        after = req.run_next[r]
        if req.generated[r] == req.output[r]:
            leave_decode(st, s, r)
            end_request(st, s, r, req.prompt[r] + req.output[r], end)
        r = after
