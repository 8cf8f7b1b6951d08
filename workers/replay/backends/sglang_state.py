"""What the SGLang backend keeps per rank and per request, and how requests enter and leave the decode batch."""

import numpy as np
from numpy.typing import NDArray

from workers.replay.compiled import inner
from workers.replay.fleet import Pool
from workers.replay.radix import NONE, evict, insert_prefix, new_tree, page_runs, unlock
from workers.replay.state import (
    BLOCK_SIZE,
    CACHING,
    CONTEXT_SUM,
    DONE,
    NUM_DRAFTS,
    RING_MASK,
    STEP,
    Sglang,
    finish,
    run_append,
    run_remove,
)

# Columns of Sglang.number. PROMISED: sum of min(O - g, RESERVED_OUTPUT_LIMIT) over running requests. NUM_LONG: running
# requests beyond that limit. NUM_FRESH: running requests without a decode pass yet. STALLED: 1 when a prefill pass came
# after the last decode pass. NEXT_DUE: no request is due before this step. GATE_PASSES: group passes that may not
# prefill; PREFILLED: 1 when a rank prefills in this group pass (both kept by the group's first rank). RETRACTED: 1 when
# this pass retracted. BATCH_HEAD, BATCH_TAIL, REFUSED_HEAD: lists of this pass. MAY_REFUSE: 1 when some prompt exceeds
# the context limit. HEAD_ASK: tokens the blocked head of the queue asks for.
(PROMISED, NUM_LONG, NUM_FRESH, STALLED, NEXT_DUE, GATE_PASSES, PREFILLED, RETRACTED, BATCH_HEAD, BATCH_TAIL,
 REFUSED_HEAD, MAY_REFUSE, HEAD_ASK, NUM_INTEGERS) = range(14)  # fmt: skip

# Columns of Sglang.real: the reservation ratio, its start, floor and fall per decode pass; end of the last decode pass.
RATIO, RATIO_START, RATIO_FLOOR, RATIO_FALL, LAST_DECODE_MS, NUM_REALS = range(6)

# Columns of Sglang.request. LAST_NODE: end of the locked path in the tree, TREE_PAGES: its pages. FRESH: see NUM_FRESH.
LAST_NODE, TREE_PAGES, FRESH, BATCH_NEXT, NUM_REQUEST_COLUMNS = range(5)

CHUNK_TOKENS = 8192
RESERVED_OUTPUT_LIMIT = 4096
RETRACT_STEPS = 20
START_RATIO, START_RATIO_DP = 0.7, 0.21
FLOOR_OF_START, FALL_OF_START, FALL_PASSES = 0.14, 0.86, 600


def sglang_arrays(
    pool: Pool,
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
    spans: tuple[NDArray[np.int64] | None, ...] = (None, None, None, None),
    node_capacity: int | None = None,
) -> Sglang:
    """Fresh arrays for one replay of a pool.

    Args: prompt and output, int64 [R], tokens; spans = (span_offset, span_id, span_tokens, output_span) of RequestBatch;
    node_capacity, prefix-tree nodes alive at one time over all ranks: enough for most loads by default, and to be
    doubled when a replay ends with the tree's overflow flag set.
    """
    num_ranks = pool.replicas * pool.attention_dp
    runs = page_runs(prompt + output, pool.block_size, *spans)
    if node_capacity is None:
        node_capacity = runs.run_id.size + 2 * prompt.size + 64
    number = np.zeros((num_ranks, NUM_INTEGERS), np.int64)
    number[:, [BATCH_HEAD, BATCH_TAIL, REFUSED_HEAD]] = NONE
    number[:, MAY_REFUSE] = pool.context_length is not None and bool((prompt >= pool.context_length).any())
    real = np.zeros((num_ranks, NUM_REALS))
    start = START_RATIO_DP if pool.attention_dp > 1 else START_RATIO
    real[:, RATIO] = real[:, RATIO_START] = start
    real[:, RATIO_FLOOR] = FLOOR_OF_START * start
    real[:, RATIO_FALL] = FALL_OF_START * start / FALL_PASSES
    request = np.zeros((prompt.size, NUM_REQUEST_COLUMNS), np.int64)
    return Sglang(number, real, request, new_tree(num_ranks, pool.num_blocks, node_capacity), runs)


@inner
def remaining_output(st, s, r):  # type: ignore[no-untyped-def]
    """O - g of running request r: steps until it is due, or with speculation what its current count says."""
    if st.limits[NUM_DRAFTS] > 0:
        return st.req.output[r] - st.req.generated[r]
    return st.req.due_step[r] - st.rank[s, STEP]


@inner
def make_room(st, s, pages):  # type: ignore[no-untyped-def]
    """Take `pages` pages of rank s, evicting what the free ones lack; the caller has checked that they exist."""
    tree = st.sglang.tree
    if pages > tree.free_pages[s]:
        evict(tree, s, pages - tree.free_pages[s])
    tree.free_pages[s] -= pages


@inner
def publish(st, s, r, tokens):  # type: ignore[no-untyped-def]
    """The first `tokens` tokens of request r enter the tree as whole pages; pages that were there already are freed."""
    if st.limits[CACHING] == 0:
        return
    sg = st.sglang
    page = st.limits[BLOCK_SIZE]
    held, pages = sg.request[r, TREE_PAGES], tokens // page
    node, taken = insert_prefix(sg.tree, s, sg.request[r, LAST_NODE], held, sg.runs, r, pages, page)
    sg.tree.free_pages[s] += pages - held - taken
    sg.request[r, LAST_NODE] = node
    sg.request[r, TREE_PAGES] = pages


@inner
def release(st, s, r, tokens):  # type: ignore[no-untyped-def]
    """Free the pages of request r, which has room for `tokens` tokens, beyond the tree, and unlock its path."""
    sg = st.sglang
    page = st.limits[BLOCK_SIZE]
    sg.tree.free_pages[s] += (tokens + page - 1) // page - sg.request[r, TREE_PAGES]
    if st.limits[CACHING] == 1:
        unlock(sg.tree, s, sg.request[r, LAST_NODE])


@inner
def end_request(st, s, r, tokens, end):  # type: ignore[no-untyped-def]
    """Request r is complete at `end` with `tokens` tokens in its pages, which stay in the tree as whole pages."""
    publish(st, s, r, tokens)
    release(st, s, r, tokens)
    if st.req.output[r] > 0:
        st.req.last_token_ms[r] = end
    finish(st, r, DONE, end)


@inner
def join_decode(st, s, r):  # type: ignore[no-untyped-def]
    """Request r, its prompt computed, becomes the last of the running list and of the bucket of its last step."""
    req, rank, number, blocks = st.req, st.rank, st.sglang.number, st.blocks
    page = st.limits[BLOCK_SIZE]
    run_append(st, s, r)
    length = req.prompt[r] + req.generated[r]
    remaining = req.output[r] - req.generated[r]
    due = rank[s, STEP] + remaining
    req.due_step[r] = due
    bucket = due & st.limits[RING_MASK]
    tail = blocks.ring_tail[s, bucket]
    req.due_prev[r] = tail
    req.due_next[r] = NONE
    if tail == NONE:
        blocks.ring_head[s, bucket] = r
    else:
        req.due_next[tail] = r
    blocks.ring_tail[s, bucket] = r
    number[s, NEXT_DUE] = min(number[s, NEXT_DUE], due)
    req.residue[r] = (length - rank[s, STEP]) % page
    blocks.growth[s, req.residue[r]] += 1
    rank[s, CONTEXT_SUM] += length
    number[s, PROMISED] += min(remaining, RESERVED_OUTPUT_LIMIT)
    if remaining > RESERVED_OUTPUT_LIMIT:
        number[s, NUM_LONG] += 1
    number[s, NUM_FRESH] += 1
    st.sglang.request[r, FRESH] = 1


@inner
def leave_decode(st, s, r):  # type: ignore[no-untyped-def]
    """Undo `join_decode` for request r, whose `generated` is current."""
    req, rank, number, blocks = st.req, st.rank, st.sglang.number, st.blocks
    run_remove(st, s, r)
    bucket = req.due_step[r] & st.limits[RING_MASK]
    before, after = req.due_prev[r], req.due_next[r]
    if before == NONE:
        blocks.ring_head[s, bucket] = after
    else:
        req.due_next[before] = after
    if after == NONE:
        blocks.ring_tail[s, bucket] = before
    else:
        req.due_prev[after] = before
    blocks.growth[s, req.residue[r]] -= 1
    rank[s, CONTEXT_SUM] -= req.prompt[r] + req.generated[r]
    number[s, PROMISED] -= min(req.output[r] - req.generated[r], RESERVED_OUTPUT_LIMIT)
    if st.sglang.request[r, FRESH] == 1:
        st.sglang.request[r, FRESH] = 0
        number[s, NUM_FRESH] -= 1
