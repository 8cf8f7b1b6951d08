"""What the SGLang backend keeps per rank and per request, and how requests enter and leave the decode batch."""

import numpy as np

from workers.replay.compiled import inner
from workers.replay.completion import finish
from workers.replay.fleet import Pool
from workers.replay.page_runs import (
    page_runs,
)
from workers.replay.radix import (
    FREE_PAGES,
    evict,
    insert_prefix,
    new_tree,
    unlock,
)
from workers.replay.retained import END_RUN, FIRST_RUN, FRESH, LAST_NODE, TREE_PAGES, radix_tree_of
from workers.replay.state import (
    BLOCK_SIZE,
    CACHING,
    CONTEXT_SUM,
    DONE,
    DUE_NEXT,
    DUE_PREV,
    DUE_STEP,
    GENERATED,
    LAST_TOKEN,
    MAY_REFUSE,
    NEXT_DUE,
    NONE,
    NUM_DRAFTS,
    NUM_FRESH,
    NUM_LONG,
    NUM_REALS,
    OUTPUT,
    PROMISED,
    PROMPT,
    RATIO,
    RATIO_FALL,
    RATIO_FLOOR,
    RATIO_START,
    RESIDUE,
    RING_MASK,
    STEP,
    State,
    growth_of,
    limits_of,
    ranks_of,
    requests_of,
    ring_of,
    run_append,
    run_remove,
    sgl_runs_of,
    stamps_of,
)
from workers.traffic.requests import RequestBatch

CHUNK_TOKENS = 8192
RESERVED_OUTPUT_LIMIT = 4096
RETRACT_STEPS = 20
START_RATIO, START_RATIO_DP = 0.7, 0.21
FLOOR_OF_START, FALL_OF_START, FALL_PASSES = 0.14, 0.86, 600


def add_sglang(
    st: State, pool: Pool, batch: RequestBatch, node_capacity: int | None = None, is_routed: bool = False
) -> None:
    """Fill the arrays of the SGLang backend in a state at time 0.

    node_capacity: radix-tree nodes alive at one time over all ranks; the default is enough for most loads and to be
    doubled when a replay ends with the tree's overflow flag set.
    """
    output = st["requests"][:, OUTPUT].astype(np.int64)
    spans = (batch.span_offset, batch.span_id, batch.span_tokens, batch.output_span)
    offset, runs = page_runs(batch.input_tokens + output, pool.block_size, *spans)
    st["requests"][:, FIRST_RUN], st["requests"][:, END_RUN] = offset[:-1], offset[1:]
    if node_capacity is None:
        node_capacity = len(runs) + 2 * batch.num_requests + 64
    num_ranks = pool.replicas * pool.attention_dp
    tree = new_tree(num_ranks, pool.num_blocks, node_capacity, keeps_lost=is_routed)
    st["sgl_runs"], st["sgl_nodes"], st["sgl_slots"], st["sgl_counters"] = runs, tree.nodes, tree.slots, tree.counters
    limit = pool.context_length
    st["ranks"][:, MAY_REFUSE] = limit is not None and bool((batch.input_tokens >= limit).any())
    reals = np.zeros((num_ranks, NUM_REALS))
    start = START_RATIO_DP if pool.attention_dp > 1 else START_RATIO
    reals[:, RATIO] = reals[:, RATIO_START] = start
    reals[:, RATIO_FLOOR] = FLOOR_OF_START * start
    reals[:, RATIO_FALL] = FALL_OF_START * start / FALL_PASSES
    st["sgl_reals"] = reals


@inner
def bucket_of(st, s, step):  # type: ignore[no-untyped-def]
    """Place in `ring` of the first request of rank s due at `step`; the last one follows."""
    mask = limits_of(st)[RING_MASK]
    return 2 * (s * (mask + 1) + (step & mask))


@inner
def remaining_output(st, s, r):  # type: ignore[no-untyped-def]
    """O - g of running request r: steps until it is due, or with speculation what its current count says."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    if limits[NUM_DRAFTS] > 0:
        return req[r, OUTPUT] - req[r, GENERATED]
    return req[r, DUE_STEP] - rank[s, STEP]


@inner
def make_room(st, s, pages):  # type: ignore[no-untyped-def]
    """Take `pages` pages of rank s, evicting what the free ones lack; the caller has checked that they exist."""
    tree = radix_tree_of(st)
    if pages > tree.nodes[s, FREE_PAGES]:
        evict(tree, s, pages - tree.nodes[s, FREE_PAGES])
    tree.nodes[s, FREE_PAGES] -= pages


@inner
def publish(st, s, r, tokens):  # type: ignore[no-untyped-def]
    """The first `tokens` tokens of request r enter the tree as whole pages; pages that were there already are freed."""
    limits, req, runs, tree = limits_of(st), requests_of(st), sgl_runs_of(st), radix_tree_of(st)
    page = limits[BLOCK_SIZE]
    if limits[CACHING] == 0:
        return
    held, pages = req[r, TREE_PAGES], tokens // page
    node, taken = insert_prefix(tree, s, req[r, LAST_NODE], held, runs, req[r, FIRST_RUN], pages, page)
    tree.nodes[s, FREE_PAGES] += pages - held - taken
    req[r, LAST_NODE] = node
    req[r, TREE_PAGES] = pages


@inner
def release(st, s, r, tokens):  # type: ignore[no-untyped-def]
    """Free the pages of request r, which has room for `tokens` tokens, beyond the tree, and unlock its path."""
    limits, req, tree = limits_of(st), requests_of(st), radix_tree_of(st)
    page = limits[BLOCK_SIZE]
    tree.nodes[s, FREE_PAGES] += (tokens + page - 1) // page - req[r, TREE_PAGES]
    if limits[CACHING] == 1:
        unlock(tree, s, req[r, LAST_NODE])


@inner
def end_request(st, s, r, tokens, end):  # type: ignore[no-untyped-def]
    """Request r is complete at `end` with `tokens` tokens in its pages, which stay in the tree as whole pages."""
    req, stamp = requests_of(st), stamps_of(st)
    publish(st, s, r, tokens)
    release(st, s, r, tokens)
    if req[r, OUTPUT] > 0:
        stamp[r, LAST_TOKEN] = end
    finish(st, r, DONE, end)


@inner
def join_decode(st, s, r):  # type: ignore[no-untyped-def]
    """Request r, its prompt computed, becomes the last of the running list and of the bucket of its last step."""
    limits, rank, req, growth, ring = limits_of(st), ranks_of(st), requests_of(st), growth_of(st), ring_of(st)
    page = limits[BLOCK_SIZE]
    run_append(st, s, r)
    length = req[r, PROMPT] + req[r, GENERATED]
    remaining = req[r, OUTPUT] - req[r, GENERATED]
    due = rank[s, STEP] + remaining
    req[r, DUE_STEP] = due
    place = bucket_of(st, s, due)
    tail = ring[place + 1]
    req[r, DUE_PREV] = tail
    req[r, DUE_NEXT] = NONE
    if tail == NONE:
        ring[place] = r
    else:
        req[tail, DUE_NEXT] = r
    ring[place + 1] = r
    rank[s, NEXT_DUE] = min(rank[s, NEXT_DUE], due)
    req[r, RESIDUE] = (length - rank[s, STEP]) % page
    growth[s * page + req[r, RESIDUE]] += 1
    rank[s, CONTEXT_SUM] += length
    rank[s, PROMISED] += min(remaining, RESERVED_OUTPUT_LIMIT)
    if remaining > RESERVED_OUTPUT_LIMIT:
        rank[s, NUM_LONG] += 1
    rank[s, NUM_FRESH] += 1
    req[r, FRESH] = 1


@inner
def leave_decode(st, s, r):  # type: ignore[no-untyped-def]
    """Undo `join_decode` for request r, whose `generated` is current."""
    rank, req, growth, ring = ranks_of(st), requests_of(st), growth_of(st), ring_of(st)
    page = limits_of(st)[BLOCK_SIZE]
    run_remove(st, s, r)
    place = bucket_of(st, s, req[r, DUE_STEP])
    before, after = req[r, DUE_PREV], req[r, DUE_NEXT]
    if before == NONE:
        ring[place] = after
    else:
        req[before, DUE_NEXT] = after
    if after == NONE:
        ring[place + 1] = before
    else:
        req[after, DUE_PREV] = before
    growth[s * page + req[r, RESIDUE]] -= 1
    rank[s, CONTEXT_SUM] -= req[r, PROMPT] + req[r, GENERATED]
    rank[s, PROMISED] -= min(req[r, OUTPUT] - req[r, GENERATED], RESERVED_OUTPUT_LIMIT)
    if req[r, FRESH] == 1:
        req[r, FRESH] = 0
        rank[s, NUM_FRESH] -= 1
