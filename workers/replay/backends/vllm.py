"""Passes of vLLM and TensorRT-LLM ranks: admission, chunked prefill, block growth, preemption, tokens.

A decoding request is never touched per token. Its last token comes when the rank's STEP, which counts passes, reaches its
`due_step`; its length is that distance from prompt + output; it needs a block whenever its `residue` comes up.

Applies when every running request can have its token in every pass: no drafts, token budget >= running requests, no
deferred prefill. Then decoding requests precede at most one partly computed prompt in running order. Otherwise
`explicit` takes over, request by request. Source: engine specification, sections 3 to 6.
"""

from numba import njit

from workers.replay.backends import explicit
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
    BLOCK_SIZE,
    CHUNKED,
    CONTEXT_SUM,
    CUTTABLE,
    DECODE_CONTEXT,
    DECODE_N,
    DONE,
    EFFECT,
    EXPLICIT,
    FREE_BLOCKS,
    GAP_N,
    HELD_BLOCKS,
    INACTIVE_BLOCKS,
    LAZY,
    MAX_BATCHED_TOKENS,
    MAX_SEQS,
    NEW_HEAD,
    NEW_TAIL,
    NONE,
    NUM_DECODING,
    NUM_RUNNING,
    PARTIAL,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    RESERVED_BLOCKS,
    RING_MASK,
    RUN_HEAD,
    RUN_TAIL,
    STEP,
    WAIT_HEAD,
    YOUNG_HEAD,
    finish,
    log_gap,
    run_remove,
    wait_push_front,
)


@njit(cache=True, nogil=True)
def begin(st, s, now):  # type: ignore[no-untyped-def]
    """Start a pass of rank s; see state for the contract."""
    rank, limits = st.rank, st.limits
    rank[s, PREFILL_N] = 0
    rank[s, PREFILL_ISL] = 0
    rank[s, PREFILL_PREFIX] = 0
    rank[s, EFFECT] = 1
    rank[s, LAZY] = 0
    rank[s, CUTTABLE] = 0
    if limits[EXPLICIT] == 1:
        return explicit.begin(st, s, now)
    decoding = rank[s, NUM_DECODING]
    need = growth_of_step(st, s, 1) if decoding > 0 else 0
    enough = need <= rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]
    if decoding > 0 and enough and rank[s, PARTIAL] == NONE and _is_head_blocked(st, s, limits[MAX_BATCHED_TOKENS] - decoding):
        return _stretch(st, s, decoding)
    preempted = False
    if enough:
        take(st, s, need)
        rank[s, HELD_BLOCKS] += need
    else:
        preempted = _grow_one_by_one(st, s, now)
    budget = limits[MAX_BATCHED_TOKENS] - rank[s, NUM_DECODING]
    changed = preempted or rank[s, NUM_DECODING] > 0
    rank[s, DECODE_N] = rank[s, NUM_DECODING]
    rank[s, DECODE_CONTEXT] = rank[s, CONTEXT_SUM]
    rank[s, GAP_N] = rank[s, NUM_DECODING]
    if rank[s, PARTIAL] != NONE and not preempted and budget > 0:
        changed = True
        before = budget
        budget = _continue_prompt(st, s, budget, now)
        preempted = budget < 0
        if preempted:
            budget = before
    if not preempted:
        changed |= _admit(st, s, budget, now)
    rank[s, EFFECT] = 1 if changed else 0
    return 1


@njit(cache=True, nogil=True)
def commit(st, s, steps, first_end, end):  # type: ignore[no-untyped-def]
    """The pass, or its `steps` repetitions, ended; see state for the contract."""
    rank, req, blocks, limits = st.rank, st.req, st.blocks, st.limits
    if limits[EXPLICIT] == 1:
        explicit.commit(st, s, end)
        return
    if rank[s, LAZY] == 1:
        need = growth_of_step(st, s, steps)
        take(st, s, need)
        rank[s, HELD_BLOCKS] += need
    rank[s, STEP] += steps
    step = rank[s, STEP]
    rank[s, CONTEXT_SUM] += rank[s, NUM_DECODING] * steps
    r = rank[s, YOUNG_HEAD]
    while r != NONE:
        if req.young[r] == 1:
            req.young[r] = 0
            req.second_token_ms[r] = first_end
        r = req.young_next[r]
    rank[s, YOUNG_HEAD] = NONE
    slot = step & limits[RING_MASK]
    r = blocks.ring_head[s, slot]
    blocks.ring_head[s, slot] = NONE
    blocks.ring_tail[s, slot] = NONE
    while r != NONE:
        after = req.due_next[r]
        blocks.growth[s, req.residue[r]] -= 1
        rank[s, NUM_DECODING] -= 1
        rank[s, CONTEXT_SUM] -= req.prompt[r] + req.output[r]
        req.generated[r] = req.output[r]
        req.last_token_ms[r] = end
        _leave(st, s, r, req.prompt[r] + req.output[r] - 1, end)
        r = after
    r = rank[s, NEW_HEAD]
    while r != NONE:
        after = req.new_next[r]
        _first_token(st, s, r, end)
        r = after
    rank[s, NEW_HEAD] = NONE
    rank[s, NEW_TAIL] = NONE
    finish_refused(st, s, end)


@njit(cache=True, nogil=True)
def growth_of_step(st, s, steps):  # type: ignore[no-untyped-def]
    """Blocks that rank s's decoding requests need in the next `steps` passes."""
    rank = st.rank
    size = st.limits[BLOCK_SIZE]
    growth = st.blocks.growth
    total = 0
    cycles = steps // size
    if cycles > 0:
        total = cycles * rank[s, NUM_DECODING]
        steps -= cycles * size
    residue = (1 - rank[s, STEP]) % size
    for _ in range(steps):
        total += growth[s, residue]
        residue = residue - 1 if residue > 0 else size - 1
    return total


@njit(cache=True, nogil=True)
def _stretch(st, s, decoding):  # type: ignore[no-untyped-def]
    """Passes in which the decoding requests alone advance, up to the next last token or shortage of blocks."""
    rank, limits, blocks = st.rank, st.limits, st.blocks
    mask = limits[RING_MASK]
    step = rank[s, STEP] + 1
    while blocks.ring_head[s, step & mask] == NONE:
        step += 1
    steps = step - rank[s, STEP]
    size = limits[BLOCK_SIZE]
    spare = rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]
    if spare < decoding * (steps // size + 1):
        steps = _steps_that_fit(st, s, steps, spare)
    rank[s, DECODE_N] = decoding
    rank[s, DECODE_CONTEXT] = rank[s, CONTEXT_SUM]
    rank[s, GAP_N] = decoding
    rank[s, LAZY] = 1
    rank[s, CUTTABLE] = 1 if rank[s, WAIT_HEAD] == NONE and rank[s, NUM_RUNNING] < limits[MAX_SEQS] else 0
    return steps


@njit(cache=True, nogil=True)
def _steps_that_fit(st, s, steps, spare):  # type: ignore[no-untyped-def]
    size = st.limits[BLOCK_SIZE]
    growth = st.blocks.growth
    residue = (1 - st.rank[s, STEP]) % size
    for done in range(steps):
        spare -= growth[s, residue]
        if spare < 0:
            return done
        residue = residue - 1 if residue > 0 else size - 1
    return steps


@njit(cache=True, nogil=True)
def _is_head_blocked(st, s, budget):  # type: ignore[no-untyped-def]
    """True when nothing can be taken from the waiting queue before a running request leaves."""
    rank, req, limits = st.rank, st.req, st.limits
    r = rank[s, WAIT_HEAD]
    if r == NONE or rank[s, NUM_RUNNING] >= limits[MAX_SEQS]:
        return True
    if can_never_run(st, r):
        return False
    length = req.prompt[r] + req.generated[r]
    found, held = find(st, s, r, length)
    if not is_admissible(st, s, r, length, held):
        return True
    missing = length - found * limits[BLOCK_SIZE]
    return missing > 0 and (budget <= 0 or (limits[CHUNKED] == 0 and missing > budget))


@njit(cache=True, nogil=True)
def _compute(st, s, r, before, after):  # type: ignore[no-untyped-def]
    """Request r computes its tokens [before, after) in this pass."""
    rank, req = st.rank, st.req
    register(st, s, r, min(after, req.prompt[r]) // st.limits[BLOCK_SIZE])
    req.computed[r] = after
    billed = bill_prompt(st, s, r, before, after)
    length = req.prompt[r] + req.generated[r]
    if after < length:
        rank[s, PARTIAL] = r
        return
    rank[s, PARTIAL] = NONE
    req.new_next[r] = NONE
    if rank[s, NEW_TAIL] == NONE:
        rank[s, NEW_HEAD] = r
    else:
        req.new_next[rank[s, NEW_TAIL]] = r
    rank[s, NEW_TAIL] = r
    is_fresh = req.generated[r] == 0 and billed
    if not is_fresh and req.generated[r] < req.output[r]:
        rank[s, DECODE_N] += 1
        rank[s, DECODE_CONTEXT] += length


@njit(cache=True, nogil=True)
def _continue_prompt(st, s, budget, now):  # type: ignore[no-untyped-def]
    """The partly computed prompt goes on; returns the budget left, -1 if it had to be preempted."""
    rank, req, limits = st.rank, st.req, st.limits
    size = limits[BLOCK_SIZE]
    r = rank[s, PARTIAL]
    before = req.computed[r]
    after = min(req.prompt[r] + req.generated[r], before + budget)
    fresh = (after + size - 1) // size - (before + size - 1) // size
    if fresh > rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]:
        _preempt(st, s, r, now)
        return -1
    take(st, s, fresh)
    rank[s, HELD_BLOCKS] += fresh
    _compute(st, s, r, before, after)
    return budget - (after - before)


@njit(cache=True, nogil=True)
def _admit(st, s, budget, now):  # type: ignore[no-untyped-def]
    """First come first served; the first head that does not fit ends it. True if anything was admitted or refused."""
    rank, req, limits = st.rank, st.req, st.limits
    size = limits[BLOCK_SIZE]
    changed = False
    while rank[s, NUM_RUNNING] < limits[MAX_SEQS]:
        r = rank[s, WAIT_HEAD]
        if r == NONE:
            break
        if can_never_run(st, r):
            refuse(st, s, r)
            changed = True
            continue
        length = req.prompt[r] + req.generated[r]
        found, held = find(st, s, r, length)
        missing = length - found * size
        if not is_admissible(st, s, r, length, held) or (missing > budget and limits[CHUNKED] == 0):
            break
        tokens = min(missing, budget)
        if missing > 0 and tokens == 0:
            break
        enter(st, s, r, found, tokens, now)
        budget -= tokens
        _compute(st, s, r, found * size, found * size + tokens)
        changed = True
    return changed


@njit(cache=True, nogil=True)
def _grow_one_by_one(st, s, now):  # type: ignore[no-untyped-def]
    """Blocks are short: in admission order every decoding request takes its block, at the cost of the last admitted."""
    rank, req = st.rank, st.req
    due = (1 - rank[s, STEP]) % st.limits[BLOCK_SIZE]
    preempted = False
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if r == rank[s, PARTIAL]:
            break
        gone = False
        if req.residue[r] == due:
            while rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS] < 1 and not gone:
                victim = rank[s, RUN_TAIL]
                gone = victim == r
                _preempt(st, s, victim, now)
                preempted = True
            if gone:
                break
            take(st, s, 1)
            rank[s, HELD_BLOCKS] += 1
        r = req.run_next[r]
    return preempted


@njit(cache=True, nogil=True)
def _preempt(st, s, victim, now):  # type: ignore[no-untyped-def]
    """Recompute later: drop the victim's blocks, keep its tokens, put it first in the queue. `now` ended its last token's pass."""
    rank, req, blocks = st.rank, st.req, st.blocks
    size = st.limits[BLOCK_SIZE]
    run_remove(st, s, victim)
    if victim == rank[s, PARTIAL]:
        rank[s, PARTIAL] = NONE
        computed = req.computed[victim]
    else:
        left = req.due_step[victim] - rank[s, STEP]
        req.generated[victim] = req.output[victim] - left
        length = req.prompt[victim] + req.generated[victim]
        computed = length - 1
        req.last_token_ms[victim] = now
        req.young[victim] = 0
        blocks.growth[s, req.residue[victim]] -= 1
        rank[s, NUM_DECODING] -= 1
        rank[s, CONTEXT_SUM] -= length
        _unschedule(st, s, victim)
    held = (computed + size - 1) // size
    release(st, s, victim, computed, held)
    rank[s, HELD_BLOCKS] -= held
    rank[s, RESERVED_BLOCKS] -= (req.prompt[victim] + req.output[victim] + size - 1) // size
    wait_push_front(st, s, victim)


@njit(cache=True, nogil=True)
def _unschedule(st, s, r):  # type: ignore[no-untyped-def]
    """Take request r out of the ring of last tokens."""
    req, blocks = st.req, st.blocks
    slot = req.due_step[r] & st.limits[RING_MASK]
    before, after = req.due_prev[r], req.due_next[r]
    if before == NONE:
        blocks.ring_head[s, slot] = after
    else:
        req.due_next[before] = after
    if after == NONE:
        blocks.ring_tail[s, slot] = before
    else:
        req.due_prev[after] = before


@njit(cache=True, nogil=True)
def _first_token(st, s, r, end):  # type: ignore[no-untyped-def]
    """Request r, whose known tokens are all computed now, gets its token at `end` and decodes on, or is done."""
    rank, req, blocks, limits = st.rank, st.req, st.blocks, st.limits
    generated = req.generated[r]
    computed = req.prompt[r] + generated
    if generated < req.output[r]:
        if generated == 0:
            req.first_token_ms[r] = end
        else:
            log_gap(st, end - req.last_token_ms[r], 1)
            if generated == 1:
                req.second_token_ms[r] = end
        generated += 1
        req.generated[r] = generated
        req.last_token_ms[r] = end
    if generated >= req.output[r]:
        _leave(st, s, r, computed, end)
        return
    if generated == 1:
        req.young[r] = 1
        req.young_next[r] = rank[s, YOUNG_HEAD]
        rank[s, YOUNG_HEAD] = r
    step = rank[s, STEP]
    due = step + req.output[r] - generated
    req.due_step[r] = due
    req.residue[r] = (computed + 1 - step) % limits[BLOCK_SIZE]
    blocks.growth[s, req.residue[r]] += 1
    rank[s, NUM_DECODING] += 1
    rank[s, CONTEXT_SUM] += computed + 1
    slot = due & limits[RING_MASK]
    tail = blocks.ring_tail[s, slot]
    req.due_prev[r] = tail
    req.due_next[r] = NONE
    if tail == NONE:
        blocks.ring_head[s, slot] = r
    else:
        req.due_next[tail] = r
    blocks.ring_tail[s, slot] = r


@njit(cache=True, nogil=True)
def _leave(st, s, r, computed, end):  # type: ignore[no-untyped-def]
    """Request r is complete: give back its blocks."""
    rank, req = st.rank, st.req
    size = st.limits[BLOCK_SIZE]
    run_remove(st, s, r)
    held = (computed + size - 1) // size
    release(st, s, r, computed, held)
    rank[s, HELD_BLOCKS] -= held
    rank[s, RESERVED_BLOCKS] -= (req.prompt[r] + req.output[r] + size - 1) // size
    finish(st, r, DONE, end)
