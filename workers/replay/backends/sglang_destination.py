"""Hand-over of prompts between SGLang ranks: room at the destination, pages and tree path kept at the source.

Outputs are not budgeted for at the destination. Arrived requests take free slots before anything else, in the order of their
arrival. Source: traffic specification, section 5.
"""

import numpy as np

from workers.replay.backends.sglang_state import (
    end_request,
    join_decode,
    make_room,
    publish,
    release,
)
from workers.replay.compiled import inner
from workers.replay.radix import EVICTABLE_PAGES, FREE_PAGES, lock_prefix, matched_pages, unlock
from workers.replay.retained import END_RUN, FIRST_RUN, LAST_NODE, TREE_PAGES, radix_tree_of
from workers.replay.state import (
    ARRIVED_HEAD,
    ARRIVED_TAIL,
    BLOCK_SIZE,
    CACHING,
    HELD,
    MAX_SEQS,
    NEW_NEXT,
    NONE,
    NUM_RUNNING,
    NUM_WAITING,
    OUTPUT,
    PROMPT,
    QUIET_HEAD,
    WAIT_NEXT,
    blocks_for,
    limits_of,
    note_admission,
    note_queued,
    ranks_of,
    requests_of,
    sgl_runs_of,
)


@inner
def _cached_prompt(st, s, r):  # type: ignore[no-untyped-def]
    """Tokens of prompt r that the tree of rank s holds as whole pages; nothing of it is recomputed."""
    limits, req = limits_of(st), requests_of(st)
    if limits[CACHING] == 0:
        return np.int64(0)
    page = limits[BLOCK_SIZE]
    pages = req[r, PROMPT] // page
    runs = sgl_runs_of(st)
    return matched_pages(radix_tree_of(st), s, runs, req[r, FIRST_RUN], req[r, END_RUN], pages, page) * page


@inner
def may_fit(st, s, r):  # type: ignore[no-untyped-def]
    """False when prompt r surely gets no room on decode rank s before a request leaves it."""
    limits, tree = limits_of(st), radix_tree_of(st)
    missing = requests_of(st)[r, PROMPT] - _cached_prompt(st, s, r)
    return blocks_for(limits, missing) <= tree.nodes[s, FREE_PAGES] + tree.nodes[s, EVICTABLE_PAGES]


@inner
def reserve(st, s, r):  # type: ignore[no-untyped-def]
    """Give prompt r its pages on decode rank s; returns the tokens cached there already, NONE if it must wait."""
    limits, req, tree = limits_of(st), requests_of(st), radix_tree_of(st)
    page = limits[BLOCK_SIZE]
    start = _cached_prompt(st, s, r)
    pages = blocks_for(limits, req[r, PROMPT] - start)
    req[r, TREE_PAGES] = start // page
    req[r, LAST_NODE] = s
    if limits[CACHING] == 1:
        req[r, LAST_NODE] = lock_prefix(tree, s, sgl_runs_of(st), req[r, FIRST_RUN], start // page, page)
    if pages > tree.nodes[s, FREE_PAGES] + tree.nodes[s, EVICTABLE_PAGES]:
        if limits[CACHING] == 1:
            unlock(tree, s, req[r, LAST_NODE])
        return NONE
    make_room(st, s, pages)
    return start


@inner
def activate(st, s, r):  # type: ignore[no-untyped-def]
    """The KV of request r has landed on rank s: the request may run from the next pass on."""
    rank, req = ranks_of(st), requests_of(st)
    req[r, WAIT_NEXT] = NONE
    if rank[s, ARRIVED_TAIL] == NONE:
        rank[s, ARRIVED_HEAD] = r
    else:
        req[rank[s, ARRIVED_TAIL], WAIT_NEXT] = r
    rank[s, ARRIVED_TAIL] = r
    rank[s, NUM_WAITING] += 1


@inner
def run_arrived(st, s, now):  # type: ignore[no-untyped-def]
    """Arrived requests of rank s join its decode batch while slots last; those without output hold one for this pass.

    Only now their prompts enter the tree.
    """
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    quiet = 0
    r = rank[s, ARRIVED_HEAD]
    while r != NONE and rank[s, NUM_RUNNING] + quiet < limits[MAX_SEQS]:
        rank[s, ARRIVED_HEAD] = req[r, WAIT_NEXT]
        rank[s, NUM_WAITING] -= 1
        note_queued(st, s, r, -1)
        publish(st, s, r, req[r, PROMPT])
        note_admission(st, r, now, 0)
        if req[r, OUTPUT] > 0:
            join_decode(st, s, r)
        else:
            quiet += 1
            _append_quiet(st, s, r)
        r = rank[s, ARRIVED_HEAD]
    if r == NONE:
        rank[s, ARRIVED_TAIL] = NONE


@inner
def _append_quiet(st, s, r):  # type: ignore[no-untyped-def]
    rank, req = ranks_of(st), requests_of(st)
    req[r, NEW_NEXT] = NONE
    last = rank[s, QUIET_HEAD]
    if last == NONE:
        rank[s, QUIET_HEAD] = r
        return
    while req[last, NEW_NEXT] != NONE:
        last = req[last, NEW_NEXT]
    req[last, NEW_NEXT] = r


@inner
def finish_quiet(st, s, end):  # type: ignore[no-untyped-def]
    """The requests without output that held a slot of this pass end with it."""
    rank, req = ranks_of(st), requests_of(st)
    r = rank[s, QUIET_HEAD]
    rank[s, QUIET_HEAD] = NONE
    while r != NONE:
        after = req[r, NEW_NEXT]
        end_request(st, s, r, req[r, PROMPT], end)
        r = after


@inner
def release_source(st, s, r):  # type: ignore[no-untyped-def]
    """The destination runs: prefill rank s frees the pages of prompt r outside the tree, uses and unlocks its path."""
    publish(st, s, r, requests_of(st)[r, PROMPT])
    release(st, s, r, requests_of(st)[r, HELD])
