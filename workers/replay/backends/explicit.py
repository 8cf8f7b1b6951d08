"""Passes of vLLM and TensorRT-LLM ranks, request by request: drafts, starved budgets, deferred prefill.

Slower than `vllm` (work per running request and pass) and needed only where a running request may go without a token in a
pass or get several. Per request: `computed` and `generated` are always current; `before`, `tokens` and `charged` are the
tokens computed before this pass, in it, and charged to its budget (tokens is NONE when not scheduled); `burst` is how many
tokens it may emit at the end of this pass, 0 when it emits none; `asked` is its output before a context limit cuts it.
Source: engine specification, sections 3, 4, 8 and 9.
"""

import numpy as np
from numba import njit

from workers.replay.backends.admission import (
    bill_prompt,
    can_never_run,
    enter,
    find,
    finish_refused,
    is_admissible,
    refuse,
)
from workers.replay.kv_cache import register, release, take
from workers.replay.state import (
    BACKEND,
    BLOCK_SIZE,
    CHUNKED,
    CONTEXT_LENGTH,
    DECODE_CONTEXT,
    DECODE_N,
    DEFER,
    DONE,
    EFFECT,
    FREE_BLOCKS,
    GAP_N,
    HELD_BLOCKS,
    INACTIVE_BLOCKS,
    MAX_BATCHED_TOKENS,
    MAX_SEQS,
    NONE,
    NUM_DP,
    NUM_DRAFTS,
    NUM_PASSES,
    NUM_RUNNING,
    NUM_WAITING,
    PREFILL_SCHEDULE_INTERVAL,
    RESERVED_BLOCKS,
    RUN_HEAD,
    RUN_TAIL,
    TRTLLM,
    WAIT_HEAD,
    finish,
    log_gap,
    run_remove,
    wait_push_front,
)


@njit(cache=True, nogil=True)
def begin(st, s, now):  # type: ignore[no-untyped-def]
    """Form one pass of rank s; never repeatable. See state for the contract."""
    rank, req = st.rank, st.req
    r = rank[s, RUN_HEAD]
    while r != NONE:
        req.tokens[r] = NONE
        r = req.run_next[r]
    rank[s, DECODE_N] = 0
    rank[s, DECODE_CONTEXT] = 0
    rank[s, GAP_N] = 0
    rank[s, EFFECT] = 0
    defer = _defers_prefill(st, s)
    budget, preempted = _serve_running(st, s, defer)
    if not preempted:
        _admit(st, s, now, budget, defer)
    preempted |= _make_room_for_bursts(st, s)
    if not defer and not preempted:
        rank[s, DEFER] = 0 if rank[s, NUM_WAITING] > 0 else 1
    _bill(st, s)
    if preempted:
        rank[s, EFFECT] = 1
    return 1


@njit(cache=True, nogil=True)
def _defers_prefill(st, s):  # type: ignore[no-untyped-def]
    """Attention DP: prefill only on every m-th group pass while something decodes here (R-PSI)."""
    rank, req, limits = st.rank, st.req, st.limits
    interval = limits[PREFILL_SCHEDULE_INTERVAL]
    if interval <= 1 or limits[NUM_DP] <= 1 or st.group[s // limits[NUM_DP], NUM_PASSES] % interval == 0:
        return False
    if rank[s, DEFER] == 0:
        return False
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if req.computed[r] >= req.prompt[r]:
            return True
        r = req.run_next[r]
    return False


@njit(cache=True, nogil=True)
def _serve_running(st, s, defer):  # type: ignore[no-untyped-def]
    """Every running request computes what it misses, in admission order, while budget lasts: (budget left, preempted)."""
    rank, req, limits = st.rank, st.req, st.limits
    budget = limits[MAX_BATCHED_TOKENS]
    drafts = 0 if limits[BACKEND] == TRTLLM else limits[NUM_DRAFTS]
    preempted = False
    r = rank[s, RUN_HEAD]
    while r != NONE and budget > 0:
        missing = req.prompt[r] + req.generated[r] - req.computed[r]
        is_decoding = req.computed[r] >= req.prompt[r] and missing == 1
        if defer and not is_decoding:
            r = req.run_next[r]
            continue
        if missing > budget and limits[CHUNKED] == 0:
            break
        tokens = min(missing, budget)
        if tokens > 0:
            kept, lost, refund = _grow(st, s, r, req.computed[r] + tokens)
            preempted |= lost
            budget += refund
            if not kept:
                break
            charge = min(tokens + drafts, budget) if is_decoding else tokens
            _schedule(st, s, r, req.computed[r], tokens, charge)
            budget -= charge
        r = req.run_next[r]
    return budget, preempted


@njit(cache=True, nogil=True)
def _admit(st, s, now, budget, defer):  # type: ignore[no-untyped-def]
    """Strictly first come first served; the first head that does not fit ends the phase."""
    rank, req, limits = st.rank, st.req, st.limits
    size = limits[BLOCK_SIZE]
    while rank[s, NUM_RUNNING] < limits[MAX_SEQS] and rank[s, WAIT_HEAD] != NONE:
        r = rank[s, WAIT_HEAD]
        if can_never_run(st, r):
            refuse(st, s, r)
            rank[s, EFFECT] = 1
            continue
        length = req.prompt[r] + req.generated[r]
        found, held = find(st, s, r, length)
        missing = length - found * size
        if not is_admissible(st, s, r, length, held) or (defer and missing > 1):
            return
        tokens = min(missing, budget)
        if (missing > budget and limits[CHUNKED] == 0) or (missing > 0 and tokens == 0):
            return
        enter(st, s, r, found, tokens, now)
        req.held[r] = (found * size + tokens + size - 1) // size
        _schedule(st, s, r, found * size, tokens, tokens)
        budget -= tokens


@njit(cache=True, nogil=True)
def _schedule(st, s, r, before, tokens, charge):  # type: ignore[no-untyped-def]
    req = st.req
    req.before[r] = before
    req.tokens[r] = tokens
    req.charged[r] = charge
    req.computed[r] = before + tokens
    register(st, s, r, req.computed[r] // st.limits[BLOCK_SIZE])


@njit(cache=True, nogil=True)
def _grow(st, s, r, tokens):  # type: ignore[no-untyped-def]
    """Room for `tokens`, at the cost of the most recently admitted: (r keeps running, any preempted, budget returned)."""
    rank, req = st.rank, st.req
    size = st.limits[BLOCK_SIZE]
    lost, refund = False, 0
    fresh = max(0, (tokens + size - 1) // size - req.held[r])
    while fresh > rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]:
        victim = rank[s, RUN_TAIL]
        lost = True
        if req.tokens[victim] != NONE:
            refund += req.charged[victim]
        _preempt(st, s, victim)
        if victim == r:
            return False, lost, refund
    take(st, s, fresh)
    req.held[r] += fresh
    rank[s, HELD_BLOCKS] += fresh
    return True, lost, refund


@njit(cache=True, nogil=True)
def _preempt(st, s, victim):  # type: ignore[no-untyped-def]
    """Recompute later: drop its blocks, keep its tokens, put it first in the queue, undo its work of this pass."""
    rank, req = st.rank, st.req
    size = st.limits[BLOCK_SIZE]
    run_remove(st, s, victim)
    release(st, s, victim, req.computed[victim], req.held[victim])
    rank[s, HELD_BLOCKS] -= req.held[victim]
    rank[s, RESERVED_BLOCKS] -= (req.prompt[victim] + req.output[victim] + size - 1) // size
    req.computed[victim] = 0
    req.held[victim] = 0
    req.tokens[victim] = NONE
    req.burst[victim] = 0
    wait_push_front(st, s, victim)


@njit(cache=True, nogil=True)
def _make_room_for_bursts(st, s):  # type: ignore[no-untyped-def]
    """Decide who emits and at most how much; with drafts the room is taken before timing. True if anyone was preempted."""
    rank, req, limits = st.rank, st.req, st.limits
    is_trt = limits[BACKEND] == TRTLLM
    preempted = False
    r = rank[s, RUN_HEAD]
    while r != NONE:
        length = req.prompt[r] + req.generated[r]
        left = req.asked[r] - req.generated[r]
        req.burst[r] = 0
        if req.computed[r] == length and left > 0 and req.tokens[r] != NONE:
            drafts = 0
            if is_trt:
                drafts = limits[NUM_DRAFTS]
            elif not is_fresh(st, r):
                drafts = req.charged[r] - req.tokens[r]
            burst = min(1 + drafts, left)
            if limits[NUM_DRAFTS] > 0:
                kept, lost, _ = _grow(st, s, r, length + burst)
                preempted |= lost
                if not kept:
                    break
            req.burst[r] = burst
        r = req.run_next[r]
    return preempted


@njit(cache=True, nogil=True)
def is_fresh(st, r):  # type: ignore[no-untyped-def]
    """True when request r computed its last prompt token in this pass and has no token yet."""
    req = st.req
    return req.generated[r] == 0 and req.before[r] < min(req.before[r] + req.tokens[r], req.prompt[r])


@njit(cache=True, nogil=True)
def _bill(st, s):  # type: ignore[no-untyped-def]
    """Prefill of the prompt tokens computed now, and one decode step of all that emit and are not fresh."""
    rank, req, limits = st.rank, st.req, st.limits
    first_is_decoded = limits[BACKEND] == TRTLLM and limits[NUM_DRAFTS] > 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if req.tokens[r] != NONE:
            rank[s, EFFECT] = 1
            bill_prompt(st, s, r, req.before[r], req.before[r] + req.tokens[r])
        if req.burst[r] > 0 and (first_is_decoded or not is_fresh(st, r)):
            rank[s, DECODE_N] += 1
            rank[s, DECODE_CONTEXT] += req.prompt[r] + req.generated[r]
        r = req.run_next[r]


@njit(cache=True, nogil=True)
def commit(st, s, end):  # type: ignore[no-untyped-def]
    """The pass ended: everyone due emits its token or burst; finished requests leave in running order."""
    rank, req, limits = st.rank, st.req, st.limits
    size, context = limits[BLOCK_SIZE], limits[CONTEXT_LENGTH]
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if req.burst[r] > 0:
            tokens = 1 + _accepted(st, r, req.burst[r] - 1)
            if context != NONE:
                tokens = min(tokens, context - req.prompt[r] - req.generated[r])
            _stamp(st, r, tokens, end)
            req.generated[r] += tokens
            req.computed[r] = req.prompt[r] + req.generated[r] - 1
            if tokens > 1:
                register(st, s, r, req.computed[r] // size)
        r = req.run_next[r]
    r = rank[s, RUN_HEAD]
    while r != NONE:
        after = req.run_next[r]
        generated = req.generated[r]
        length = req.prompt[r] + generated
        is_done = generated >= req.asked[r] and req.computed[r] >= length - min(generated, 1)
        if is_done or (context != NONE and generated > 0 and length >= context):
            run_remove(st, s, r)
            release(st, s, r, req.computed[r], req.held[r])
            rank[s, HELD_BLOCKS] -= req.held[r]
            rank[s, RESERVED_BLOCKS] -= (req.prompt[r] + req.output[r] + size - 1) // size
            finish(st, r, DONE, end)
        r = after
    finish_refused(st, s, end)


@njit(cache=True, nogil=True)
def _stamp(st, r, tokens, end):  # type: ignore[no-untyped-def]
    req = st.req
    generated = req.generated[r]
    zero_gaps = tokens - 1
    if generated == 0:
        req.first_token_ms[r] = end
    else:
        log_gap(st, end - req.last_token_ms[r], 1)
    if generated < 2 <= generated + tokens:
        req.second_token_ms[r] = end
    if zero_gaps > 0:
        log_gap(st, 0.0, zero_gaps)
    req.last_token_ms[r] = end


@njit(cache=True, nogil=True)
def _accepted(st, r, limit):  # type: ignore[no-untyped-def]
    """Leading acceptances among `limit` drafts; a random draw depends on request and position only, not on event order."""
    for draft in range(min(limit, st.limits[NUM_DRAFTS])):
        probability = st.acceptance[draft]
        if probability <= 0.0:
            return draft
        if probability < 1.0 and _uniform(r, st.req.generated[r] + draft) >= probability:
            return draft
    return min(limit, st.limits[NUM_DRAFTS])


@njit(cache=True, nogil=True)
def _uniform(r, position):  # type: ignore[no-untyped-def]
    """A number in [0, 1) for one request and token position (SplitMix64 of both, seed 42)."""
    mixed = np.uint64(42) + np.uint64(r) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(position) * np.uint64(0xD1B54A32D192ED03)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
