"""SGLang prefill passes: forming the batch, entering it into the tree, first tokens (specification 7.3 to 7.7)."""

import math

from workers.replay.backends.sglang_state import (
    CHUNK_TOKENS,
    RESERVED_OUTPUT_LIMIT,
    end_request,
    join_decode,
    make_room,
    publish,
    remaining_output,
)
from workers.replay.compiled import inner
from workers.replay.completion import finish
from workers.replay.pass_records import note_cut
from workers.replay.radix import (
    EVICTABLE_PAGES,
    FREE_PAGES,
    evict,
    lock_prefix,
    matched_pages,
    unlock,
)
from workers.replay.retained import END_RUN, FIRST_RUN, LAST_NODE, TREE_PAGES, radix_tree_of
from workers.replay.router import note_first_token
from workers.replay.state import (
    BLOCK_SIZE,
    CACHING,
    COMPUTED,
    COMPUTED_NOW,
    DONE,
    FIRST_TOKEN,
    GENERATED,
    HEAD_ASK,
    HELD,
    LAST_TOKEN,
    MAX_SEQS,
    NEW_HEAD,
    NEW_NEXT,
    NEW_TAIL,
    NONE,
    NUM_DP,
    NUM_RUNNING,
    NUM_WAITING,
    OUTPUT,
    PREFILL,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    PROMISED,
    PROMPT,
    RATIO,
    ROLE,
    RUN_HEAD,
    RUN_NEXT,
    SECOND_TOKEN,
    SILENT,
    STALLED,
    WAIT_HEAD,
    limits_of,
    log_gap,
    note_admission,
    ranks_of,
    requests_of,
    sgl_reals_of,
    sgl_runs_of,
    stamps_of,
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
    limits, req, runs, tree = limits_of(st), requests_of(st), sgl_runs_of(st), radix_tree_of(st)
    if req[r, COMPUTED] > 0 or limits[CACHING] == 0:
        return req[r, COMPUTED]
    page = limits[BLOCK_SIZE]
    limit = req[r, PROMPT] + req[r, GENERATED] - (1 if req[r, OUTPUT] > 0 else 0)
    return matched_pages(tree, s, runs, req[r, FIRST_RUN], req[r, END_RUN], limit // page, page) * page


@inner
def chunk_of(st, r, start, budget):  # type: ignore[no-untyped-def]
    """(tokens to compute, the same in whole pages, output tokens to reserve) of request r under a chunk budget."""
    limits, req = limits_of(st), requests_of(st)
    page = limits[BLOCK_SIZE]
    missing = req[r, PROMPT] + req[r, GENERATED] - start
    paged = (missing + page - 1) // page * page
    if paged <= budget:
        return missing, paged, min(req[r, OUTPUT] - req[r, GENERATED], RESERVED_OUTPUT_LIMIT)
    cut = budget // page * page
    return cut, cut, 0


@inner
def form_batch(st, s, now):  # type: ignore[no-untyped-def]
    """Admit heads of the queue while slots, chunk budget and room last; the first that fails blocks the rest."""
    limits, rank, req, real, runs, tree = (
        limits_of(st),
        ranks_of(st),
        requests_of(st),
        sgl_reals_of(st),
        sgl_runs_of(st),
        radix_tree_of(st),
    )
    page = limits[BLOCK_SIZE]
    room = (tree.nodes[s, FREE_PAGES] + tree.nodes[s, EVICTABLE_PAGES]) * page
    available = room - real[s, RATIO] * rank[s, PROMISED]
    budget = CHUNK_TOKENS // limits[NUM_DP]
    slots = limits[MAX_SEQS] - rank[s, NUM_RUNNING]
    asked = 0
    while rank[s, PREFILL_N] < slots and rank[s, NUM_WAITING] > 0 and budget > 0:
        r = rank[s, WAIT_HEAD]
        continues = req[r, COMPUTED] > 0
        start = first_computed(st, s, r)
        tokens, paged, reserve = chunk_of(st, r, start, budget)
        rank[s, HEAD_ASK] = paged + reserve
        if tokens == 0 and start < req[r, PROMPT] + req[r, GENERATED]:
            break
        if abs(available - paged - reserve) < NEAR_TIE:
            available = room - _reserved_in_order(st, s) - asked
        if not paged + reserve < available:
            break
        if not continues:
            req[r, TREE_PAGES] = start // page
            req[r, LAST_NODE] = s
            if limits[CACHING] == 1:
                req[r, LAST_NODE] = lock_prefix(tree, s, runs, req[r, FIRST_RUN], start // page, page)
        if paged > (tree.nodes[s, FREE_PAGES] + tree.nodes[s, EVICTABLE_PAGES]) * page:
            if not continues and limits[CACHING] == 1:
                unlock(tree, s, req[r, LAST_NODE])
            break
        make_room(st, s, paged // page)
        wait_pop(st, s)
        if not continues:
            note_admission(st, r, now, start)
        req[r, COMPUTED] = start + tokens
        if start + tokens < req[r, PROMPT] + req[r, GENERATED]:
            note_cut(st, s, r)
        _append(st, s, r)
        rank[s, PREFILL_N] += 1
        rank[s, PREFILL_ISL] += start + tokens
        rank[s, PREFILL_PREFIX] += start
        rank[s, COMPUTED_NOW] += tokens
        asked += paged + reserve
        available -= paged + reserve
        budget -= paged


@inner
def _reserved_in_order(st, s):  # type: ignore[no-untyped-def]
    rank, req = ranks_of(st), requests_of(st)
    ratio = sgl_reals_of(st)[s, RATIO]
    step_sum = 0.0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        step_sum += min(remaining_output(st, s, r), RESERVED_OUTPUT_LIMIT) * ratio
        r = req[r, RUN_NEXT]
    return step_sum


@inner
def _append(st, s, r):  # type: ignore[no-untyped-def]
    rank, req = ranks_of(st), requests_of(st)
    req[r, NEW_NEXT] = NONE
    if rank[s, NEW_HEAD] == NONE:
        rank[s, NEW_HEAD] = r
    else:
        req[rank[s, NEW_TAIL], NEW_NEXT] = r
    rank[s, NEW_TAIL] = r


@inner
def commit_prefill(st, s, end):  # type: ignore[no-untyped-def]
    """The batch's tokens enter the tree; complete members get a token, cut ones go back to the front of the queue.

    A token needs a slot unless it is the request's last. When the slots do not all fit, even after eviction, those
    members run without their token and get it from the next decode pass.
    """
    limits, rank, req, tree = limits_of(st), ranks_of(st), requests_of(st), radix_tree_of(st)
    page = limits[BLOCK_SIZE]
    if rank[s, NUM_RUNNING] > 0:
        rank[s, STALLED] = 1
    need = 0
    r = rank[s, NEW_HEAD]
    while r != NONE:
        publish(st, s, r, req[r, COMPUTED])
        length = req[r, PROMPT] + req[r, GENERATED]
        if req[r, COMPUTED] == length and req[r, OUTPUT] - req[r, GENERATED] > 1 and length % page == 0:
            need += 1
        r = req[r, NEW_NEXT]
    fits = need <= tree.nodes[s, FREE_PAGES] + tree.nodes[s, EVICTABLE_PAGES]
    if fits:
        make_room(st, s, need)
    else:
        evict(tree, s, need - tree.nodes[s, FREE_PAGES])
    r = rank[s, NEW_HEAD]
    while r != NONE:
        after = req[r, NEW_NEXT]
        computed = req[r, COMPUTED]
        remaining = req[r, OUTPUT] - req[r, GENERATED]
        if computed < req[r, PROMPT] + req[r, GENERATED]:
            wait_push_front(st, s, r)
        else:
            req[r, COMPUTED] = 0
            if remaining == 1 or (remaining > 1 and fits):
                _give_token(st, r, end)
            if remaining <= 1 and limits[ROLE] == PREFILL:
                req[r, HELD] = req[r, PROMPT]
                finish(st, r, DONE, end)
            elif remaining <= 1:
                end_request(st, s, r, computed, end)
            else:
                join_decode(st, s, r)
        r = after
    rank[s, NEW_HEAD] = NONE


@inner
def _give_token(st, r, end):  # type: ignore[no-untyped-def]
    req, stamp = requests_of(st), stamps_of(st)
    if req[r, GENERATED] == 0:
        stamp[r, FIRST_TOKEN] = end
        note_first_token(st, r)
    else:
        if req[r, SILENT] == 0:
            log_gap(st, end - stamp[r, LAST_TOKEN], 1)
        if math.isnan(stamp[r, SECOND_TOKEN]):
            stamp[r, SECOND_TOKEN] = end
    stamp[r, LAST_TOKEN] = end
    req[r, GENERATED] += 1
