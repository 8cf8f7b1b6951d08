"""Arrays of one replay, laid out for the compiled loop; what depends on the batch alone is made once and kept."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.replay import kv_cache, state
from workers.replay.backends.sglang_state import add_sglang
from workers.replay.batch_facts import BatchFacts, facts_of
from workers.replay.fleet import KvRouter, Pool
from workers.replay.grouping import Grouping
from workers.replay.kept import Kept
from workers.replay.prefix_tree import PrefixTree, prefix_tree
from workers.replay.radix import OVERFLOW
from workers.replay.state import State
from workers.traffic.random_stream import RandomStream
from workers.traffic.requests import RequestBatch

BACKENDS = {"vllm": state.VLLM, "trtllm": state.TRTLLM, "sglang": state.SGLANG}
ROLES = {"agg": state.AGG, "prefill": state.PREFILL, "decode": state.DECODE}
_KEPT_TREES = 64
_FIRST_GAPS = 4096
_MOST_ROUTED_BLOCKS = 1 << 24


_trees = Kept[PrefixTree](_KEPT_TREES)


def tree_of(batch: RequestBatch, block_size: int, by_block: bool) -> PrefixTree:
    """The prefix tree of a batch, kept for the next candidates with the same block size."""
    return _trees.of(
        (batch,), lambda: prefix_tree(batch, block_size, by_block), (block_size, by_block), batch.num_requests
    )


def build(
    pool: Pool,
    batch: RequestBatch,
    radix_nodes: int | None = None,
    router: KvRouter | None = None,
    *,
    full_cache: bool = True,
    in_order: bool = False,
    grouping: Grouping | None = None,
) -> State:
    """State of a replay at time 0, without step times. Array meanings: see state.

    radix_nodes: room of SGLang's radix trees, None for a size that suffices for most loads; see `radix_overflow`.
    full_cache: False to leave the prefix cache out where nothing can be found in it before a request is preempted.
    grouping: how the rows of requests are ordered, see `State.rows`.
    in_order: for `cohorts` and `handoff_cohorts`, which need neither cache nor queues; see `order_queues`.
    """
    output = effective_output(pool, batch)
    by_block = has_single_blocks(pool, batch, router is not None)
    tree = tree_of(batch, pool.block_size, by_block)
    found = facts_of(batch)
    num_ranks = pool.replicas * pool.attention_dp
    limits = _limits(pool, batch)
    if not full_cache and router is None and pool.prefix_caching and tree.num_nodes == 0 and pool.backend != "sglang":
        limits[state.CACHING], limits[state.UNSHARED] = 0, 1
    requests, stamps = _requests_and_stamps(pool, batch, output, tree, grouping)
    thinkers = 0 if found.is_plain else found.first.size
    st = State(
        limits=limits,
        ranks=_ranks(pool, num_ranks),
        passes=np.zeros((pool.replicas, state.NUM_PASS_COLUMNS)),
        numbers=_numbers(batch, found),
        moments=_moments(batch),
        requests=requests,
        stamps=stamps,
        sessions=grouping.first if grouping else found.first,
        thinkers=np.zeros((thinkers, 2)),
        gaps=np.empty((_FIRST_GAPS, 4)),
        acceptance=np.array(pool.acceptance, dtype=np.float64),
        paths=tree.paths,
    )
    st.rows = grouping.requests if grouping else None
    if in_order:
        return st
    own_blocks = tree.own_blocks[grouping.requests] if grouping else tree.own_blocks
    st["extents"], st["copies"], requests[:, state.OWN_EXTENT] = _extents(
        pool, own_blocks, tree, num_ranks, limits, by_block
    )
    rings = num_ranks * 2 * (int(limits[state.RING_MASK]) + 1)
    st["growth"] = np.zeros(num_ranks * pool.block_size, dtype=np.int32)
    st["ring"] = np.full(rings, state.NONE, dtype=np.int32)
    st["due_bits"] = np.zeros(rings // 128, dtype=np.uint64)
    if pool.backend == "sglang":
        add_sglang(st, pool, batch, radix_nodes, is_routed=router is not None)
    if router is not None:
        _add_router(st, pool, router, batch.num_requests)
    return st


def order_queues(st: State) -> None:
    """Prepare a fresh state for `cohorts`: queues are ranges of requests, TensorRT-LLM's room for all tokens is a limit of
    sequences."""
    limits, ranks = st["limits"], st["ranks"]
    st["numbers"][state.LAST_REPLICA] = len(ranks)
    for column in (state.WAIT_HEAD, state.NEW_HEAD, state.YOUNG_HEAD, state.RUN_HEAD):
        ranks[:, column] = np.arange(len(ranks))
    ranks[:, state.PARTIAL] = 0
    if limits[state.BACKEND] == state.TRTLLM:
        tokens = int(st["requests"][0, state.PROMPT]) + int(st["requests"][0, state.OUTPUT])
        blocks = -(-tokens // int(limits[state.BLOCK_SIZE]))
        limits[state.MAX_SEQS] = min(limits[state.MAX_SEQS], limits[state.NUM_BLOCKS] // blocks)


def order_handoffs(pre: State, dec: State) -> None:
    """Prepare the fresh states of both roles for `handoff_cohorts`."""
    order_queues(pre)
    order_queues(dec)
    targets = dec["targets"]
    targets[:, state.REQUEST_HEAD] = targets[:, state.TRAVEL_HEAD] = np.arange(len(targets))
    dec["sources"][:, state.FREE_HEAD] = 0
    dec["handoffs"][:, state.CACHED_TOKENS] = 0
    dec["handed"] = np.empty(len(dec["requests"]), dtype=np.int32)


def radix_overflow(st: State) -> bool:
    """True when the replay stopped because SGLang's radix trees ran out of nodes."""
    counters = st["sgl_counters"]
    return counters.size > 0 and bool(counters[OVERFLOW])


def _add_router(st: State, pool: Pool, router: KvRouter, num: int) -> None:
    """Fill the router's arrays at time 0; the decode pool of a disaggregated fleet draws numbers of its own."""
    num_ranks = pool.replicas * pool.attention_dp
    loads = np.zeros((num_ranks, state.NUM_LOADS), dtype=np.int64)
    loads[:, state.CHANGED_HEAD] = state.NONE
    routes = np.zeros((num_ranks * int(st["limits"][state.NUM_NODES]), state.NUM_ROUTES), dtype=np.int32)
    routes[:, state.CHANGED_NEXT] = state.UNCHANGED
    weights = np.zeros(state.NUM_ROUTER)
    weights[state.CREDIT], weights[state.LOAD_SCALE] = router.overlap_score_credit, router.prefill_load_scale
    weights[state.TEMPERATURE] = router.temperature
    st["loads"], st["routes"], st["router"] = loads, routes, weights
    st["believed"] = np.zeros(num, dtype=np.int64)
    st["router_draws"] = RandomStream(router.seed + int(pool.role == "decode")).uniforms(num)


def lengthen_gap_log(st: State) -> None:
    """Twice the room, and what the passes under way may log."""
    running = int(st["ranks"][:, state.NUM_RUNNING].sum()) + int(st["ranks"][:, state.REPEATS].sum())
    st["gaps"] = np.concatenate([st["gaps"], np.zeros((len(st["gaps"]) + 2 * running, 4))])


def effective_output(pool: Pool, batch: RequestBatch) -> NDArray[np.int64]:
    """int64 [R]: tokens each request will generate, after context limit and TensorRT-LLM's clamp to its pool."""
    output, longest = batch.output_tokens, facts_of(batch).longest
    if pool.context_length is not None and longest > pool.context_length:
        output = np.minimum(output, np.maximum(pool.context_length - batch.input_tokens, 0))
    if pool.backend == "trtllm" and longest > pool.num_blocks * pool.block_size:
        room = pool.num_blocks * pool.block_size - batch.input_tokens
        output = np.where(room > 0, np.minimum(output, room), output)
    return output


def has_single_blocks(pool: Pool, batch: RequestBatch, is_routed: bool) -> bool:
    """True when any block may come to have a second copy, not only the last one of a prompt, or a router counts blocks.

    With drafts, blocks fill out of step. On a decode engine, prompts that share blocks reserve room before either arrives.
    A router counts by larger nodes where single blocks would take too much memory: a request that uses the longest part
    of a node and ends before others then goes on counting until they end.
    """
    if is_routed and batch.span_offset is not None:
        blocks = int(batch.input_tokens.sum()) // pool.block_size * pool.replicas * pool.attention_dp
        if blocks <= _MOST_ROUTED_BLOCKS:
            return True
    return bool(pool.acceptance) or (pool.role == "decode" and pool.prefix_caching and batch.span_offset is not None)


def _limits(pool: Pool, batch: RequestBatch) -> NDArray[np.int64]:
    limits = np.zeros(state.NUM_LIMITS, dtype=np.int64)
    ring = 64
    while ring <= facts_of(batch).longest_output + 1:
        ring *= 2
    values = {
        state.BACKEND: BACKENDS[pool.backend],
        state.ROLE: ROLES[pool.role],
        state.NUM_REPLICAS: pool.replicas,
        state.NUM_DP: pool.attention_dp,
        state.NUM_BLOCKS: pool.num_blocks,
        state.BLOCK_SIZE: pool.block_size,
        state.BLOCK_SHIFT: _shift_of(pool.block_size),
        state.MAX_BATCHED_TOKENS: pool.max_num_batched_tokens,
        state.MAX_SEQS: pool.max_num_seqs,
        state.CACHING: int(pool.prefix_caching),
        state.CHUNKED: int(pool.chunked_prefill),
        state.CONTEXT_LENGTH: state.NONE if pool.context_length is None else pool.context_length,
        state.NUM_DRAFTS: len(pool.acceptance),
        state.PREFILL_SCHEDULE_INTERVAL: pool.prefill_schedule_interval,
        state.PREFILL_DECODE_INTERVAL: pool.prefill_decode_interval,
        state.EXPLICIT: int(needs_explicit(pool, batch)),
        state.RING_MASK: ring - 1,
    }
    for column, value in values.items():
        limits[column] = value
    return limits


def _shift_of(size: int) -> int:
    return size.bit_length() - 1 if size & (size - 1) == 0 else state.NONE


def needs_explicit(pool: Pool, batch: RequestBatch) -> bool:
    """True when a running request may miss a pass or get several tokens in one; see backends.explicit."""
    concurrent = min(pool.max_num_seqs, batch.num_requests)
    if batch.in_flight_cap is not None:
        concurrent = min(concurrent, batch.in_flight_cap)
    if batch.stop_after_ms is not None:  # gaps of requests that the limit cuts off are told apart by request
        return True
    if pool.acceptance or pool.max_num_batched_tokens < concurrent:
        return True
    if pool.prefill_schedule_interval > 1 and pool.attention_dp > 1:
        return True
    # A prompt with nothing to compute may be admitted behind a partly computed one.
    facts = facts_of(batch)
    if facts.has_empty_prompt or (facts.has_empty_output and pool.prefix_caching and batch.span_offset is not None):
        return True
    if pool.backend != "trtllm" or not pool.prefix_caching or batch.span_offset is None:
        return False
    return tree_of(batch, pool.block_size, False).may_duplicate


_RANK = np.zeros(state.NUM_RANK_COLUMNS, dtype=np.int64)
_RANK[[state.WAIT_HEAD, state.WAIT_TAIL, state.RUN_HEAD, state.RUN_TAIL, state.PARTIAL,
       state.NEW_HEAD, state.NEW_TAIL, state.YOUNG_HEAD, state.REFUSED_HEAD,
                   state.ARRIVED_HEAD, state.ARRIVED_TAIL, state.QUIET_HEAD, state.DENIED]] = state.NONE  # fmt: skip
_RANK[state.DEFER] = 1


def _ranks(pool: Pool, num_ranks: int) -> NDArray[np.int64]:
    ranks = np.tile(_RANK, (num_ranks, 1))
    ranks[:, state.FREE_BLOCKS] = pool.num_blocks
    return ranks


def _numbers(batch: RequestBatch, found: BatchFacts) -> NDArray[np.int64]:
    numbers = np.zeros(state.NUM_NUMBERS, dtype=np.int64)
    for column in (state.PREFILLED_HEAD, state.PREFILLED_TAIL, state.LATER_HEAD, state.LATER_TAIL):
        numbers[column] = state.NONE
    numbers[state.NUM_SESSIONS] = found.first.size
    numbers[state.IN_FLIGHT_CAP] = state.NONE if batch.in_flight_cap is None else batch.in_flight_cap
    numbers[state.FREED_NOW] = 0 if batch.in_flight_cap is None else batch.in_flight_cap
    return numbers


def _moments(batch: RequestBatch) -> NDArray[np.float64]:
    moments = np.zeros(state.NUM_MOMENTS)
    moments[state.STOP_AFTER] = np.inf if batch.stop_after_ms is None else batch.stop_after_ms
    moments[state.TICK] = np.inf
    return moments


_fresh = Kept[tuple[NDArray[np.int32], NDArray[np.float64]]](_KEPT_TREES)


def _requests_and_stamps(
    pool: Pool, batch: RequestBatch, output: NDArray[np.int64], tree: PrefixTree, grouping: Grouping | None
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Rows of requests before anything has happened: copies of what is kept per batch, tree and grouping."""

    def fresh() -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        requests, stamps = _fresh_requests(batch, tree), _fresh_stamps(batch)
        return (requests[grouping.requests], stamps[grouping.requests]) if grouping else (requests, stamps)

    requests, stamps = _fresh.of((batch, tree, grouping), fresh, weight=batch.num_requests)
    requests = requests.copy()
    if output is not batch.output_tokens:
        requests[:, state.OUTPUT] = output[grouping.requests] if grouping else output
        if pool.backend == "trtllm":  # it forgets what was asked for when a request arrives
            requests[:, state.ASKED] = requests[:, state.OUTPUT]
    return requests, stamps.copy()


def _fresh_requests(batch: RequestBatch, tree: PrefixTree) -> NDArray[np.int32]:
    requests = np.zeros((batch.num_requests, state.NUM_REQUEST_COLUMNS), dtype=np.int32)
    columns: dict[int, Any] = {
        state.PROMPT: batch.input_tokens,
        state.OUTPUT: batch.output_tokens,
        state.ASKED: batch.output_tokens,
        state.HAS_NEXT: facts_of(batch).has_next,
        state.PATH_START: tree.path_start[:-1],
        state.PATH_END: tree.path_start[1:],
        state.OWN_START: tree.own_start,
        state.OWNER_COPY: state.NONE,
        state.WORKER: state.NONE,
        state.DP_RANK: state.NONE,
    }
    for column, values in columns.items():
        requests[:, column] = values
    return requests


def _fresh_stamps(batch: RequestBatch) -> NDArray[np.float64]:
    stamps = np.full((batch.num_requests, state.NUM_STAMPS), np.nan)
    stamps[:, state.ARRIVAL] = batch.arrival_ms
    stamps[:, state.DELAY] = batch.delay_ms
    return stamps


def _extents(
    pool: Pool,
    own_blocks: NDArray[np.int64],
    tree: PrefixTree,
    num_ranks: int,
    limits: NDArray[np.int64],
    by_block: bool,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """(extents, copies, every row's first own extent), and their offsets into `limits`. own_blocks: int64 [R], by row."""
    num = own_blocks.size
    own = np.zeros(num + 1, dtype=np.int64)
    own[1:] = np.cumsum(own_blocks) if by_block else np.arange(1, num + 1)
    first_own = num_ranks * tree.num_nodes
    first_copy = first_own + int(own[-1])
    may_copy = pool.prefix_caching and (by_block or (tree.may_duplicate and pool.backend == "vllm"))
    num_copies = num_ranks * pool.num_blocks if may_copy else 0
    sentinel = first_copy + num_copies
    limits[state.NUM_NODES], limits[state.FIRST_COPY] = tree.num_nodes, first_copy
    limits[state.NUM_COPIES], limits[state.FIRST_SENTINEL] = num_copies, sentinel
    limits[state.OWN_BY_BLOCK] = int(by_block)
    extents = np.zeros((sentinel + num_ranks * kv_cache.SENTINEL_ROWS, 5), dtype=np.int32)
    ends = np.arange(sentinel, len(extents))
    extents[sentinel:, kv_cache.LRU_PREV] = extents[sentinel:, kv_cache.LRU_NEXT] = ends
    limits[state.FREE_COPY] = state.NONE
    # Filled as it is used: most of it never is.
    copies = np.empty((num_copies, 3), dtype=np.int32)
    return extents, copies, first_own + own[:-1]
