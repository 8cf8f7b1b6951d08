"""Passes of vLLM and TensorRT-LLM ranks, request by request: drafts, starved budgets, deferred prefill.

Slower than `vllm` (work per running request and pass) and needed only where a running request may go without a token in a
pass or get several. Per request: `computed` and `generated` are always current; `before`, `tokens` and `charged` are the
tokens computed before this pass, in it, and charged to its budget (tokens is NONE when not scheduled); `burst` is how many
tokens it may emit at the end of this pass, 0 when it emits none; `asked` is its output before a context limit cuts it.
Source: engine specification, sections 3, 4, 8 and 9.
"""

from workers.replay.backends.admission import (
    bill_prompt,
    can_never_run,
    enter,
    find,
    finish_refused,
    is_admissible,
    leave,
    refuse,
)
from workers.replay.backends.destination import next_waiting, run_arrived
from workers.replay.compiled import inner
from workers.replay.drafts import accepted_drafts
from workers.replay.kv_cache import register, release, take
from workers.replay.pass_records import note_decoding
from workers.replay.router import note_first_token
from workers.replay.state import (
    ASKED,
    BACKEND,
    BEFORE,
    BLOCK_SIZE,
    BURST,
    CHARGED,
    CHUNKED,
    COMPUTED,
    CONTEXT_LENGTH,
    DECODE_CONTEXT,
    DECODE_N,
    DEFER,
    DRAFTED,
    EFFECT,
    FIRST_TOKEN,
    FREE_BLOCKS,
    GAP_N,
    GENERATED,
    HELD,
    HELD_BLOCKS,
    INACTIVE_BLOCKS,
    LAST_TOKEN,
    MAX_BATCHED_TOKENS,
    MAX_SEQS,
    NEWCOMERS,
    NONE,
    NUM_BLOCKS,
    NUM_DP,
    NUM_DRAFTS,
    NUM_PASSES,
    NUM_RUNNING,
    NUM_WAITING,
    OUTGREW,
    OUTPUT,
    PREFILL_SCHEDULE_INTERVAL,
    PROMPT,
    RESERVED_AS,
    RESERVED_BLOCKS,
    RUN_HEAD,
    RUN_NEXT,
    RUN_TAIL,
    SECOND_TOKEN,
    SILENT,
    TIMES_RELEASED,
    TOKENS,
    TRTLLM,
    blocks_for,
    limits_of,
    log_gap,
    note_preempted,
    ranks_of,
    requests_of,
    run_remove,
    stamps_of,
    wait_push_front,
    whole_blocks,
)


@inner
def begin(st, s, now):  # type: ignore[no-untyped-def]
    """Form one pass of rank s; never repeatable. See state for the contract."""
    rank, req = ranks_of(st), requests_of(st)
    r = rank[s, RUN_HEAD]
    while r != NONE:
        req[r, TOKENS] = NONE
        r = req[r, RUN_NEXT]
    rank[s, DECODE_N] = 0
    rank[s, DECODE_CONTEXT] = 0
    rank[s, GAP_N] = 0
    rank[s, EFFECT] = 0
    rank[s, NEWCOMERS] = 0
    defer = _defers_prefill(st, s)
    budget, preempted = _serve_running(st, s, defer)
    if not preempted:
        _admit(st, s, now, budget, defer)
    _bill_prompts(st, s)
    preempted |= _make_room_for_bursts(st, s)
    if not defer and not preempted:
        rank[s, DEFER] = 0 if rank[s, NUM_WAITING] > 0 else 1
    _bill_decodes(st, s)
    return 1


@inner
def _defers_prefill(st, s):  # type: ignore[no-untyped-def]
    """Attention DP: prefill only on every m-th group pass while something decodes here (R-PSI)."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    interval = limits[PREFILL_SCHEDULE_INTERVAL]
    if interval <= 1 or limits[NUM_DP] <= 1 or rank[s // limits[NUM_DP] * limits[NUM_DP], NUM_PASSES] % interval == 0:
        return False
    if rank[s, DEFER] == 0:
        return False
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if req[r, COMPUTED] >= req[r, PROMPT]:
            return True
        r = req[r, RUN_NEXT]
    return False


@inner
def _serve_running(st, s, defer):  # type: ignore[no-untyped-def]
    """Every running request computes what it misses, in admission order, while budget lasts: (budget left, preempted)."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    budget = limits[MAX_BATCHED_TOKENS]
    drafts = 0 if limits[BACKEND] == TRTLLM else limits[NUM_DRAFTS]
    preempted = False
    r = rank[s, RUN_HEAD]
    while r != NONE and budget > 0:
        missing = req[r, PROMPT] + req[r, GENERATED] - req[r, COMPUTED]
        is_decoding = req[r, COMPUTED] >= req[r, PROMPT] and missing == 1
        if defer and not is_decoding:
            r = req[r, RUN_NEXT]
            continue
        if missing > budget and limits[CHUNKED] == 0:
            break
        tokens = min(missing, budget)
        if tokens > 0:
            kept, lost, refund = _grow(st, s, r, req[r, COMPUTED] + tokens)
            preempted |= lost
            budget += refund
            if not kept:
                break
            charge = min(tokens + _drafts_within_context(st, r, drafts), budget) if is_decoding else tokens
            _schedule(st, s, r, req[r, COMPUTED], tokens, charge)
            budget -= charge
        r = req[r, RUN_NEXT]
    return budget, preempted


@inner
def _drafts_within_context(st, r, drafts):  # type: ignore[no-untyped-def]
    """Drafts that can be verified before the context limit."""
    limits, req = limits_of(st), requests_of(st)
    if limits[CONTEXT_LENGTH] == NONE:
        return drafts
    return max(0, min(drafts, limits[CONTEXT_LENGTH] - req[r, PROMPT] - req[r, GENERATED] - 1))


@inner
def _admit(st, s, now, budget, defer):  # type: ignore[no-untyped-def]
    """First come first served; ended by a head that does not fit, or needs nothing when the budget is used up."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    size = limits[BLOCK_SIZE]
    while rank[s, NUM_RUNNING] < limits[MAX_SEQS]:
        waits_behind, r = next_waiting(st, s)
        if r == NONE:
            return
        if req[r, RESERVED_AS] > 0:
            run_arrived(st, s, waits_behind, r, now)
            rank[s, NEWCOMERS] += 1
            _schedule(st, s, r, req[r, PROMPT], 0, 0)
            if budget <= 0:
                return
            continue
        if can_never_run(st, r):
            refuse(st, s, r)
            rank[s, EFFECT] = 1
            continue
        length = req[r, PROMPT] + req[r, GENERATED]
        found, held = find(st, s, r, length)
        missing = length - found * size
        if not is_admissible(st, s, r, length, held) or (defer and missing > 1):
            return
        tokens = min(missing, budget)
        if (missing > budget and limits[CHUNKED] == 0) or (missing > 0 and tokens == 0):
            return
        enter(st, s, r, found, tokens, now)
        rank[s, NEWCOMERS] += 1
        req[r, HELD] = blocks_for(limits, found * size + tokens)
        _schedule(st, s, r, found * size, tokens, tokens)
        budget -= tokens
        if tokens == 0 and budget <= 0:
            return


@inner
def _schedule(st, s, r, before, tokens, charge):  # type: ignore[no-untyped-def]
    limits, req = limits_of(st), requests_of(st)
    req[r, BEFORE] = before
    req[r, TOKENS] = tokens
    req[r, CHARGED] = charge
    req[r, COMPUTED] = before + tokens
    register(st, s, r, whole_blocks(limits, req[r, COMPUTED]))


@inner
def _grow(st, s, r, tokens):  # type: ignore[no-untyped-def]
    """Room for `tokens`, at the cost of the most recently admitted: (r keeps running, any preempted, budget returned)."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    lost, refund = False, 0
    fresh = max(0, blocks_for(limits, tokens) - req[r, HELD])
    while fresh > rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]:
        victim = rank[s, RUN_TAIL]
        lost = True
        if req[r, HELD] == limits[NUM_BLOCKS] - rank[s, FREE_BLOCKS] - rank[s, INACTIVE_BLOCKS]:
            rank[s, OUTGREW] = 1
        if req[victim, TOKENS] != NONE:
            refund += req[victim, CHARGED]
        _preempt(st, s, victim)
        if victim == r:
            return False, lost, refund
    take(st, s, fresh)
    req[r, HELD] += fresh
    rank[s, HELD_BLOCKS] += fresh
    return True, lost, refund


@inner
def _preempt(st, s, victim):  # type: ignore[no-untyped-def]
    """Recompute later: drop its blocks, keep its tokens, put it first in the queue, undo its work of this pass.

    A pass that does nothing but lose what it has just admitted has no effect: it would be repeated for ever.
    """
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    note_preempted(st)
    run_remove(st, s, victim)
    if rank[s, NEWCOMERS] > 0:
        rank[s, NEWCOMERS] -= 1
    else:
        rank[s, EFFECT] = 1
    release(st, s, victim, req[victim, COMPUTED], req[victim, HELD])
    rank[s, HELD_BLOCKS] -= req[victim, HELD]
    rank[s, RESERVED_BLOCKS] -= blocks_for(limits, req[victim, PROMPT] + req[victim, OUTPUT])
    req[victim, COMPUTED] = 0
    req[victim, HELD] = 0
    req[victim, TOKENS] = NONE
    req[victim, BURST] = 0
    wait_push_front(st, s, victim)


@inner
def _make_room_for_bursts(st, s):  # type: ignore[no-untyped-def]
    """Decide who emits and at most how much; with drafts the room is taken before timing. True if anyone was preempted."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    is_trt = limits[BACKEND] == TRTLLM
    preempted = False
    r = rank[s, RUN_HEAD]
    while r != NONE:
        length = req[r, PROMPT] + req[r, GENERATED]
        left = req[r, ASKED] - req[r, GENERATED]
        req[r, BURST] = 0
        if req[r, COMPUTED] == length and left > 0 and req[r, TOKENS] != NONE:
            drafts = 0
            if is_trt:
                drafts = limits[NUM_DRAFTS]
            elif not is_fresh(st, r):
                drafts = req[r, CHARGED] - req[r, TOKENS]
            burst = min(1 + drafts, left)
            if limits[NUM_DRAFTS] > 0:
                kept, lost, _ = _grow(st, s, r, length + burst)
                preempted |= lost
                if not kept:
                    break
            req[r, BURST] = burst
            req[r, DRAFTED] = drafts
        r = req[r, RUN_NEXT]
    return preempted


@inner
def is_fresh(st, r):  # type: ignore[no-untyped-def]
    """True when request r computed its last prompt token in this pass and has no token yet."""
    req = requests_of(st)
    return req[r, GENERATED] == 0 and req[r, BEFORE] < min(req[r, BEFORE] + req[r, TOKENS], req[r, PROMPT])


@inner
def _bill_prompts(st, s):  # type: ignore[no-untyped-def]
    """Prefill of the prompt tokens computed now, also of requests that lose their room before they emit."""
    rank, req = ranks_of(st), requests_of(st)
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if req[r, TOKENS] != NONE:
            billed = bill_prompt(st, s, r, req[r, BEFORE], req[r, BEFORE] + req[r, TOKENS])
            if not billed and req[r, GENERATED] < req[r, OUTPUT]:
                note_decoding(st, s, 1, req[r, PROMPT] + req[r, GENERATED])
        r = req[r, RUN_NEXT]


@inner
def _bill_decodes(st, s):  # type: ignore[no-untyped-def]
    """One decode step of all that emit and are not fresh."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    first_is_decoded = limits[BACKEND] == TRTLLM and limits[NUM_DRAFTS] > 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if req[r, TOKENS] != NONE:
            rank[s, EFFECT] = 1
        if req[r, BURST] > 0 and (first_is_decoded or not is_fresh(st, r)):
            rank[s, DECODE_N] += 1
            rank[s, DECODE_CONTEXT] += req[r, PROMPT] + req[r, GENERATED]
        r = req[r, RUN_NEXT]


@inner
def commit(st, s, end):  # type: ignore[no-untyped-def]
    """The pass ended: everyone due emits its token or burst; finished requests leave in running order."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    context = limits[CONTEXT_LENGTH]
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if req[r, BURST] > 0:
            tokens = min(1 + accepted_drafts(st, s, req[r, DRAFTED]), req[r, BURST])
            if context != NONE:
                tokens = min(tokens, context - req[r, PROMPT] - req[r, GENERATED])
            _stamp(st, r, tokens, end)
            req[r, GENERATED] += tokens
            req[r, COMPUTED] = req[r, PROMPT] + req[r, GENERATED] - 1
            if tokens > 1:
                register(st, s, r, whole_blocks(limits, req[r, COMPUTED]))
            if limits[NUM_DRAFTS] > 0:
                _give_back_drafts(st, s, r)
        r = req[r, RUN_NEXT]
    r = rank[s, RUN_HEAD]
    while r != NONE:
        after = req[r, RUN_NEXT]
        generated = req[r, GENERATED]
        length = req[r, PROMPT] + generated
        is_done = generated >= req[r, ASKED] and req[r, COMPUTED] >= length - min(generated, 1)
        if is_done or (context != NONE and generated > 0 and length >= context):
            leave(st, s, r, req[r, COMPUTED], req[r, HELD], end)
        r = after
    finish_refused(st, s, end)


@inner
def _give_back_drafts(st, s, r):  # type: ignore[no-untyped-def]
    """Blocks taken for drafts of request r that were not accepted are free again."""
    rank, req = ranks_of(st), requests_of(st)
    spare = req[r, HELD] - blocks_for(limits_of(st), req[r, PROMPT] + req[r, GENERATED])
    if spare > 0:
        req[r, HELD] -= spare
        rank[s, FREE_BLOCKS] += spare
        rank[s, TIMES_RELEASED] += 1
        rank[s, HELD_BLOCKS] -= spare


@inner
def _stamp(st, r, tokens, end):  # type: ignore[no-untyped-def]
    req, stamp = requests_of(st), stamps_of(st)
    generated = req[r, GENERATED]
    zero_gaps = tokens - 1
    if generated == 0:
        stamp[r, FIRST_TOKEN] = end
        note_first_token(st, r)
    else:
        if req[r, SILENT] == 0:
            log_gap(st, end - stamp[r, LAST_TOKEN], 1)
    if generated < 2 <= generated + tokens:
        stamp[r, SECOND_TOKEN] = end
    if zero_gaps > 0 and req[r, SILENT] == 0:
        log_gap(st, 0.0, zero_gaps)
    stamp[r, LAST_TOKEN] = end
