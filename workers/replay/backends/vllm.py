"""Passes of vLLM and TensorRT-LLM ranks: admission, chunked prefill, block growth, preemption, tokens.

A decoding request is never touched per token. Its last token comes when the rank's STEP, which counts passes, reaches its
`due_step`; its length is that distance from prompt + output; it needs a block whenever its `residue` comes up.

Applies when every running request can have its token in every pass: no drafts, token budget >= running requests, no
deferred prefill. Then decoding requests precede at most one partly computed prompt in running order. Otherwise
`explicit` takes over, request by request. Source: engine specification, sections 3 to 6.
"""

from workers.replay.backends import explicit
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
from workers.replay.backends.decoding import (
    growth_of_step,
    schedule,
    steps_of_stretch,
    unmark_due,
    unschedule,
)
from workers.replay.backends.destination import next_waiting, publish_arrived, run_arrived
from workers.replay.compiled import inner
from workers.replay.kv_cache import register, release, take
from workers.replay.pass_records import note_decoding
from workers.replay.router import note_first_token
from workers.replay.state import (
    BLOCK_SIZE,
    CHUNKED,
    COMPUTED,
    CONTEXT_SUM,
    CUTTABLE,
    DECODE_CONTEXT,
    DECODE_N,
    DUE_NEXT,
    DUE_STEP,
    EFFECT,
    EXPLICIT,
    FIRST_TOKEN,
    FOR_EXPLICIT,
    FREE_BLOCKS,
    GAP_N,
    GENERATED,
    GIVEN_UP,
    HELD_BLOCKS,
    INACTIVE_BLOCKS,
    LAST_TOKEN,
    LAZY,
    MAX_BATCHED_TOKENS,
    MAX_SEQS,
    NEW_HEAD,
    NEW_NEXT,
    NEW_TAIL,
    NONE,
    NUM_DECODING,
    NUM_RUNNING,
    OUTPUT,
    PARTIAL,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    PROMPT,
    RESERVED_AS,
    RESERVED_BLOCKS,
    RESIDUE,
    RING_MASK,
    RUN_HEAD,
    RUN_NEXT,
    RUN_TAIL,
    SECOND_TOKEN,
    SETTLED,
    STEP,
    WAIT_HEAD,
    YOUNG,
    YOUNG_HEAD,
    YOUNG_NEXT,
    beyond_block,
    blocks_for,
    growth_of,
    limits_of,
    log_gap,
    note_preempted,
    numbers_of,
    ranks_of,
    requests_of,
    ring_of,
    run_remove,
    stamps_of,
    wait_push_front,
    whole_blocks,
)


@inner
def begin(st, s, now):  # type: ignore[no-untyped-def]
    """Start a pass of rank s; see state for the contract."""
    limits, rank = limits_of(st), ranks_of(st)
    rank[s, PREFILL_N] = 0
    rank[s, PREFILL_ISL] = 0
    rank[s, PREFILL_PREFIX] = 0
    rank[s, EFFECT] = 1
    rank[s, LAZY] = 0
    rank[s, CUTTABLE] = 0
    publish_arrived(st, s)
    if limits[EXPLICIT] == 1:
        return explicit.begin(st, s, now)
    decoding = rank[s, NUM_DECODING]
    need = growth_of_step(st, s, 1) if decoding > 0 else 0
    enough = need <= rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]
    if (
        decoding > 0
        and enough
        and rank[s, PARTIAL] == NONE
        and _is_head_blocked(st, s, limits[MAX_BATCHED_TOKENS] - decoding)
    ):
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


@inner
def commit(st, s, steps, first_end, end):  # type: ignore[no-untyped-def]
    """The pass, or its `steps` repetitions, ended; see state for the contract."""
    limits, rank, req, stamp, grow, last_tokens = (
        limits_of(st),
        ranks_of(st),
        requests_of(st),
        stamps_of(st),
        growth_of(st),
        ring_of(st),
    )
    if limits[EXPLICIT] == 1:
        explicit.commit(st, s, end)
        return
    if rank[s, LAZY] == 1:
        need = growth_of_step(st, s, steps) - growth_of_step(st, s, rank[s, SETTLED])
        take(st, s, need)
        rank[s, HELD_BLOCKS] += need
    rank[s, STEP] += steps
    step = rank[s, STEP]
    rank[s, CONTEXT_SUM] += rank[s, NUM_DECODING] * steps
    r = rank[s, YOUNG_HEAD]
    while r != NONE:
        if req[r, YOUNG] == 1:
            req[r, YOUNG] = 0
            stamp[r, SECOND_TOKEN] = first_end
        r = req[r, YOUNG_NEXT]
    rank[s, YOUNG_HEAD] = NONE
    slot = step & limits[RING_MASK]
    r = last_tokens[2 * (s * (limits[RING_MASK] + 1) + (slot))]
    last_tokens[2 * (s * (limits[RING_MASK] + 1) + (slot))] = NONE
    last_tokens[2 * (s * (limits[RING_MASK] + 1) + (slot)) + 1] = NONE
    unmark_due(st, s, slot)
    while r != NONE:
        after = req[r, DUE_NEXT]
        grow[s * limits[BLOCK_SIZE] + req[r, RESIDUE]] -= 1
        rank[s, NUM_DECODING] -= 1
        rank[s, CONTEXT_SUM] -= req[r, PROMPT] + req[r, OUTPUT]
        req[r, GENERATED] = req[r, OUTPUT]
        stamp[r, LAST_TOKEN] = end
        leave(
            st, s, r, req[r, PROMPT] + req[r, OUTPUT] - 1, blocks_for(limits, req[r, PROMPT] + req[r, OUTPUT] - 1), end
        )
        r = after
    r = rank[s, NEW_HEAD]
    while r != NONE:
        after = req[r, NEW_NEXT]
        _first_token(st, s, r, end)
        r = after
    rank[s, NEW_HEAD] = NONE
    rank[s, NEW_TAIL] = NONE
    finish_refused(st, s, end)


@inner
def _stretch(st, s, decoding):  # type: ignore[no-untyped-def]
    """Passes in which the decoding requests alone advance, up to the next last token or shortage of blocks."""
    limits, rank = limits_of(st), ranks_of(st)
    steps = steps_of_stretch(st, s)
    rank[s, DECODE_N] = decoding
    rank[s, DECODE_CONTEXT] = rank[s, CONTEXT_SUM]
    rank[s, GAP_N] = decoding
    rank[s, LAZY] = 1
    rank[s, CUTTABLE] = 1 if rank[s, WAIT_HEAD] == NONE and rank[s, NUM_RUNNING] < limits[MAX_SEQS] else 0
    return steps


@inner
def _is_head_blocked(st, s, budget):  # type: ignore[no-untyped-def]
    """True when nothing can be taken from the waiting queue before a running request leaves."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    _, r = next_waiting(st, s)
    if r == NONE or rank[s, NUM_RUNNING] >= limits[MAX_SEQS]:
        return True
    if req[r, RESERVED_AS] > 0:
        return False
    if can_never_run(st, r):
        return False
    length = req[r, PROMPT] + req[r, GENERATED]
    found, held = find(st, s, r, length)
    if not is_admissible(st, s, r, length, held):
        return True
    missing = length - found * limits[BLOCK_SIZE]
    return missing > 0 and (budget <= 0 or (limits[CHUNKED] == 0 and missing > budget))


@inner
def _compute(st, s, r, before, after):  # type: ignore[no-untyped-def]
    """Request r computes its tokens [before, after) in this pass."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    register(st, s, r, whole_blocks(limits, min(after, req[r, PROMPT])))
    req[r, COMPUTED] = after
    billed = bill_prompt(st, s, r, before, after)
    length = req[r, PROMPT] + req[r, GENERATED]
    if not billed and req[r, GENERATED] < req[r, OUTPUT]:
        note_decoding(st, s, 1, length)
    if after < length:
        rank[s, PARTIAL] = r
        return
    rank[s, PARTIAL] = NONE
    req[r, NEW_NEXT] = NONE
    if rank[s, NEW_TAIL] == NONE:
        rank[s, NEW_HEAD] = r
    else:
        req[rank[s, NEW_TAIL], NEW_NEXT] = r
    rank[s, NEW_TAIL] = r
    is_fresh = req[r, GENERATED] == 0 and billed
    if not is_fresh and req[r, GENERATED] < req[r, OUTPUT]:
        rank[s, DECODE_N] += 1
        rank[s, DECODE_CONTEXT] += length


@inner
def _continue_prompt(st, s, budget, now):  # type: ignore[no-untyped-def]
    """The partly computed prompt goes on; returns the budget left, -1 if it had to be preempted."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    r = rank[s, PARTIAL]
    before = req[r, COMPUTED]
    after = min(req[r, PROMPT] + req[r, GENERATED], before + budget)
    fresh = blocks_for(limits, after) - blocks_for(limits, before)
    if fresh > rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]:
        _preempt(st, s, r, now)
        return -1
    take(st, s, fresh)
    rank[s, HELD_BLOCKS] += fresh
    _compute(st, s, r, before, after)
    return budget - (after - before)


@inner
def _admit(st, s, budget, now):  # type: ignore[no-untyped-def]
    """First come first served; the first head that does not fit ends it. True if anything was admitted or refused.

    So does one that needs nothing when the budget is used up.
    """
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    size = limits[BLOCK_SIZE]
    changed = False
    while rank[s, NUM_RUNNING] < limits[MAX_SEQS]:
        before, r = next_waiting(st, s)
        if r == NONE:
            break
        if req[r, RESERVED_AS] > 0:
            # It would decode behind a partly computed prompt, which only `explicit` can do.
            if rank[s, PARTIAL] != NONE:
                numbers_of(st)[GIVEN_UP] = FOR_EXPLICIT
            run_arrived(st, s, before, r, now)
            _compute(st, s, r, req[r, PROMPT], req[r, PROMPT])
            changed = True
            if budget <= 0:
                break
            continue
        if can_never_run(st, r):
            refuse(st, s, r)
            changed = True
            continue
        length = req[r, PROMPT] + req[r, GENERATED]
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
        if tokens == 0 and budget <= 0:
            break
    return changed


@inner
def _grow_one_by_one(st, s, now):  # type: ignore[no-untyped-def]
    """Blocks are short: in admission order every decoding request takes its block, at the cost of the last admitted."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    due = beyond_block(limits, 1 - rank[s, STEP])
    preempted = False
    r = rank[s, RUN_HEAD]
    while r != NONE:
        if r == rank[s, PARTIAL]:
            break
        gone = False
        if req[r, RESIDUE] == due:
            while rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS] < 1 and not gone:
                victim = rank[s, RUN_TAIL]
                gone = victim == r
                _preempt(st, s, victim, now)
                preempted = True
            if gone:
                break
            take(st, s, 1)
            rank[s, HELD_BLOCKS] += 1
        r = req[r, RUN_NEXT]
    return preempted


@inner
def _preempt(st, s, victim, now):  # type: ignore[no-untyped-def]
    """Recompute later: drop the victim's blocks, keep its tokens, put it first in the queue.

    Its last token came at the end of the pass before, which is `now`.
    """
    limits, rank, req, stamp, grow = limits_of(st), ranks_of(st), requests_of(st), stamps_of(st), growth_of(st)
    note_preempted(st)
    run_remove(st, s, victim)
    if victim == rank[s, PARTIAL]:
        rank[s, PARTIAL] = NONE
        computed = req[victim, COMPUTED]
    else:
        left = req[victim, DUE_STEP] - rank[s, STEP]
        req[victim, GENERATED] = req[victim, OUTPUT] - left
        length = req[victim, PROMPT] + req[victim, GENERATED]
        computed = length - 1
        stamp[victim, LAST_TOKEN] = now
        req[victim, YOUNG] = 0
        grow[s * limits[BLOCK_SIZE] + req[victim, RESIDUE]] -= 1
        rank[s, NUM_DECODING] -= 1
        rank[s, CONTEXT_SUM] -= length
        unschedule(st, s, victim)
    held = blocks_for(limits, computed)
    release(st, s, victim, computed, held)
    rank[s, HELD_BLOCKS] -= held
    rank[s, RESERVED_BLOCKS] -= blocks_for(limits, req[victim, PROMPT] + req[victim, OUTPUT])
    wait_push_front(st, s, victim)


@inner
def _first_token(st, s, r, end):  # type: ignore[no-untyped-def]
    """Request r, whose known tokens are all computed now, gets its token at `end` and decodes on, or is done."""
    rank, req, stamp = ranks_of(st), requests_of(st), stamps_of(st)
    generated = req[r, GENERATED]
    computed = req[r, PROMPT] + generated
    if generated < req[r, OUTPUT]:
        if generated == 0:
            stamp[r, FIRST_TOKEN] = end
            note_first_token(st, r)
        else:
            log_gap(st, end - stamp[r, LAST_TOKEN], 1)
            if generated == 1:
                stamp[r, SECOND_TOKEN] = end
        generated += 1
        req[r, GENERATED] = generated
        stamp[r, LAST_TOKEN] = end
    if generated >= req[r, OUTPUT]:
        leave(st, s, r, computed, blocks_for(limits_of(st), computed), end)
        return
    if generated == 1:
        req[r, YOUNG] = 1
        req[r, YOUNG_NEXT] = rank[s, YOUNG_HEAD]
        rank[s, YOUNG_HEAD] = r
    schedule(st, s, r, computed + 1)
