"""SGLang prefill passes: forming the batch, entering it into the tree, first tokens (specification 7.3 to 7.7)."""

import math

from workers.replay.backends.sglang_state import (
    BATCH_HEAD,
    BATCH_NEXT,
    BATCH_TAIL,
    CHUNK_TOKENS,
    HEAD_ASK,
    LAST_NODE,
    PROMISED,
    RATIO,
    RESERVED_OUTPUT_LIMIT,
    STALLED,
    TREE_PAGES,
    end_request,
    join_decode,
    make_room,
    publish,
    remaining_output,
)
from workers.replay.compiled import inner
from workers.replay.radix import evict, lock_prefix, matched_pages, unlock
from workers.replay.state import (
    BLOCK_SIZE,
    CACHING,
    COMMITTED_PREFILL,
    MAX_SEQS,
    NONE,
    NUM_DP,
    NUM_RUNNING,
    NUM_WAITING,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    RUN_HEAD,
    WAIT_HEAD,
    log_gap,
    note_admission,
    wait_pop,
    wait_push_front,
)

# Reservations this close to the room, in tokens, are summed again request by request, in the order the modelled engine
# sums them: the comparison is strict and its outcome may hang on the last bit.
NEAR_TIE = 1e-6


@inner
def first_computed(st, s, r):  # type: ignore[no-untyped-def]
    """Where the prefill of waiting request r would start, tokens: its earlier chunks or its cached whole pages.

    At least one token is left to compute for a request that wants output.
    """
    req, limits, sg = st.req, st.limits, st.sglang
    if req.computed[r] > 0 or limits[CACHING] == 0:
        return req.computed[r]
    page = limits[BLOCK_SIZE]
    limit = req.prompt[r] + req.generated[r] - (1 if req.output[r] > 0 else 0)
    return matched_pages(sg.tree, s, sg.runs, r, limit // page, page) * page


@inner
def chunk_of(st, r, start, budget):  # type: ignore[no-untyped-def]
    """(tokens to compute, the same in whole pages, output tokens to reserve) of request r under a chunk budget."""
    page = st.limits[BLOCK_SIZE]
    missing = st.req.prompt[r] + st.req.generated[r] - start
    paged = (missing + page - 1) // page * page
    if paged <= budget:
        return missing, paged, min(st.req.output[r] - st.req.generated[r], RESERVED_OUTPUT_LIMIT)
    cut = budget // page * page
    return cut, cut, 0


@inner
def form_batch(st, s, now):  # type: ignore[no-untyped-def]
    """Admit heads of the queue while slots, chunk budget and room last; the first that fails blocks the rest."""
    rank, req, limits, sg = st.rank, st.req, st.limits, st.sglang
    number, tree = sg.number, sg.tree
    page = limits[BLOCK_SIZE]
    room = (tree.free_pages[s] + tree.evictable_pages[s]) * page
    available = room - sg.real[s, RATIO] * number[s, PROMISED]
    budget = CHUNK_TOKENS // limits[NUM_DP]
    slots = limits[MAX_SEQS] - rank[s, NUM_RUNNING]
    asked = 0
    while rank[s, PREFILL_N] < slots and rank[s, NUM_WAITING] > 0 and budget > 0:
        r = rank[s, WAIT_HEAD]
        continues = req.computed[r] > 0
        start = first_computed(st, s, r)
        tokens, paged, reserve = chunk_of(st, r, start, budget)
        number[s, HEAD_ASK] = paged + reserve
        if tokens == 0 and start < req.prompt[r] + req.generated[r]:
            break
        if abs(available - paged - reserve) < NEAR_TIE:
            available = room - _reserved_in_order(st, s) - asked
        if not paged + reserve < available:
            break
        if not continues:
            sg.request[r, TREE_PAGES] = start // page
            sg.request[r, LAST_NODE] = s
            if limits[CACHING] == 1:
                sg.request[r, LAST_NODE] = lock_prefix(tree, s, sg.runs, r, start // page, page)
        if paged > (tree.free_pages[s] + tree.evictable_pages[s]) * page:
            if not continues and limits[CACHING] == 1:
                unlock(tree, s, sg.request[r, LAST_NODE])
            break
        make_room(st, s, paged // page)
        wait_pop(st, s)
        if not continues:
            note_admission(st, r, now, start)
        req.computed[r] = start + tokens
        _append(st, s, r)
        rank[s, PREFILL_N] += 1
        rank[s, PREFILL_ISL] += start + tokens
        rank[s, PREFILL_PREFIX] += start
        st.clock.number[COMMITTED_PREFILL] += tokens
        asked += paged + reserve
        available -= paged + reserve
        budget -= paged


@inner
def _reserved_in_order(st, s):  # type: ignore[no-untyped-def]
    req, ratio = st.req, st.sglang.real[s, RATIO]
    step_sum = 0.0
    r = st.rank[s, RUN_HEAD]
    while r != NONE:
        step_sum += min(remaining_output(st, s, r), RESERVED_OUTPUT_LIMIT) * ratio
        r = req.run_next[r]
    return step_sum


@inner
def _append(st, s, r):  # type: ignore[no-untyped-def]
    number, request = st.sglang.number, st.sglang.request
    request[r, BATCH_NEXT] = NONE
    if number[s, BATCH_HEAD] == NONE:
        number[s, BATCH_HEAD] = r
    else:
        request[number[s, BATCH_TAIL], BATCH_NEXT] = r
    number[s, BATCH_TAIL] = r


@inner
def commit_prefill(st, s, end):  # type: ignore[no-untyped-def]
    """The batch's tokens enter the tree; complete members get a token, cut ones go back to the front of the queue.

    A token needs a slot unless it is the request's last. When the slots do not all fit, even after eviction, those
    members run without their token and get it from the next decode pass.
    """
    req, rank, sg, tree = st.req, st.rank, st.sglang, st.sglang.tree
    number, request = sg.number, sg.request
    page = st.limits[BLOCK_SIZE]
    if rank[s, NUM_RUNNING] > 0:
        number[s, STALLED] = 1
    need = 0
    r = number[s, BATCH_HEAD]
    while r != NONE:
        publish(st, s, r, req.computed[r])
        length = req.prompt[r] + req.generated[r]
        if req.computed[r] == length and req.output[r] - req.generated[r] > 1 and length % page == 0:
            need += 1
        r = request[r, BATCH_NEXT]
    fits = need <= tree.free_pages[s] + tree.evictable_pages[s]
    if fits:
        make_room(st, s, need)
    else:
        evict(tree, s, need - tree.free_pages[s])
    r = number[s, BATCH_HEAD]
    while r != NONE:
        after = request[r, BATCH_NEXT]
        computed = req.computed[r]
        remaining = req.output[r] - req.generated[r]
        if computed < req.prompt[r] + req.generated[r]:
            wait_push_front(st, s, r)
        else:
            req.computed[r] = 0
            if remaining == 1 or (remaining > 1 and fits):
                _give_token(st, r, end)
            if remaining <= 1:
                end_request(st, s, r, computed, end)
            else:
                join_decode(st, s, r)
        r = after
    number[s, BATCH_HEAD] = NONE


@inner
def _give_token(st, r, end):  # type: ignore[no-untyped-def]
    req = st.req
    if req.generated[r] == 0:
        req.first_token_ms[r] = end
    else:
        log_gap(st, end - req.last_token_ms[r], 1)
        if math.isnan(req.second_token_ms[r]):
            req.second_token_ms[r] = end
    req.last_token_ms[r] = end
    req.generated[r] += 1
