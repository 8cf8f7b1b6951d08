"""Arrays of one replay, laid out for the compiled loop; what depends on the batch alone is made once and kept."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.replay import kv_cache, state
from workers.replay.backends.sglang_state import add_sglang
from workers.replay.fleet import KvRouter, Pool
from workers.replay.prefix_tree import PrefixTree, prefix_tree
from workers.replay.radix import OVERFLOW
from workers.replay.state import State
from workers.traffic.random_stream import RandomStream
from workers.traffic.requests import RequestBatch

BACKENDS = {"vllm": state.VLLM, "trtllm": state.TRTLLM, "sglang": state.SGLANG}
ROLES = {"agg": state.AGG, "prefill": state.PREFILL, "decode": state.DECODE}
_KEPT_TREES = 8
_KEPT_FACTS = 64
_FEW_SHAPES = 16
_FEW_TOKENS = 300_000
_FIRST_GAPS = 4096
_MOST_ROUTED_BLOCKS = 1 << 24


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What replays want to know of a batch again and again.

    first: int64 [S], first request of every session in release order. has_next: int8 [R]. is_plain: one turn each.
    is_uniform: all requests have the same lengths. is_in_order: sessions are released in the order of their requests.
    asks_each_decode: so few pairs of lengths, or output tokens, that asking the time of every decode step costs little.
    longest_output: tokens. has_empty_prompt, has_empty_output: some request has no prompt or no output token.
    """

    first: NDArray[np.int64]
    has_next: NDArray[np.int8]
    is_plain: bool
    is_uniform: bool
    is_in_order: bool
    asks_each_decode: bool
    longest_output: int
    has_empty_prompt: bool
    has_empty_output: bool


_facts: dict[int, tuple[RequestBatch, BatchFacts]] = {}


def facts_of(batch: RequestBatch) -> BatchFacts:
    """The facts of a batch, kept for the next candidates."""
    kept = _facts.get(id(batch))
    if kept is None or kept[0] is not batch:
        while len(_facts) >= _KEPT_FACTS:
            del _facts[next(iter(_facts))]
        kept = _facts[id(batch)] = (batch, _facts_of(batch))
    return kept[1]


def _facts_of(batch: RequestBatch) -> BatchFacts:
    num = batch.num_requests
    has_next = np.zeros(num, dtype=np.int8)
    has_next[:-1] = batch.session[1:] == batch.session[:-1]
    starts = np.flatnonzero(np.concatenate([[True], has_next[:-1] == 0])[:num])
    first_of = np.zeros(int(batch.session.max(initial=-1)) + 1, dtype=np.int64)
    first_of[batch.session[starts]] = starts
    shapes = np.unique(batch.input_tokens * (1 << 32) + batch.output_tokens).size
    first = first_of[batch.order]
    return BatchFacts(
        first=first,
        has_next=has_next,
        is_plain=bool(starts.size == num),
        is_uniform=shapes <= 1,
        is_in_order=bool((first[1:] > first[:-1]).all()),
        asks_each_decode=shapes <= _FEW_SHAPES or int(batch.output_tokens.sum()) <= _FEW_TOKENS,
        longest_output=int(batch.output_tokens.max(initial=0)),
        has_empty_prompt=bool((batch.input_tokens == 0).any()),
        has_empty_output=bool((batch.output_tokens == 0).any()),
    )


_trees: dict[tuple[int, int, bool], tuple[RequestBatch, PrefixTree]] = {}


def tree_of(batch: RequestBatch, block_size: int, by_block: bool) -> PrefixTree:
    """The prefix tree of a batch, kept for the next candidates with the same block size."""
    key = (id(batch), block_size, by_block)
    kept = _trees.get(key)
    if kept is None or kept[0] is not batch:
        while len(_trees) >= _KEPT_TREES:
            del _trees[next(iter(_trees))]
        kept = _trees[key] = (batch, prefix_tree(batch, block_size, by_block))
    return kept[1]


def build(
    pool: Pool,
    batch: RequestBatch,
    radix_nodes: int | None = None,
    router: KvRouter | None = None,
    *,
    full_cache: bool = True,
) -> State:
    """State of a replay at time 0, without step times. Array meanings: see state.

    radix_nodes: room of SGLang's radix trees, None for a size that suffices for most loads; see `radix_overflow`.
    full_cache: False to leave the prefix cache out where nothing can be found in it before a request is preempted.
    """
    output = effective_output(pool, batch)
    by_block = has_single_blocks(pool, batch, router is not None)
    tree = tree_of(batch, pool.block_size, by_block)
    found = facts_of(batch)
    num_ranks = pool.replicas * pool.attention_dp
    limits = _limits(pool, batch)
    if not full_cache and router is None and pool.prefix_caching and tree.num_nodes == 0 and pool.backend != "sglang":
        limits[state.CACHING], limits[state.UNSHARED] = 0, 1
    extents, copies, first_own = _extents(pool, batch, tree, num_ranks, limits, by_block)
    requests, stamps = _requests_and_stamps(batch, output, tree, first_own)
    thinkers = 0 if found.is_plain else found.first.size
    rings = num_ranks * 2 * (int(limits[state.RING_MASK]) + 1)
    st = State(
        limits=limits,
        ranks=_ranks(pool, num_ranks),
        passes=np.zeros((pool.replicas, state.NUM_PASS_COLUMNS)),
        numbers=_numbers(batch, found),
        moments=_moments(batch),
        requests=requests,
        stamps=stamps,
        sessions=found.first,
        thinkers=np.zeros((thinkers, 2)),
        gaps=np.empty((_FIRST_GAPS, 4)),
        acceptance=np.array(pool.acceptance, dtype=np.float64),
        extents=extents,
        paths=tree.paths,
        copies=copies,
        growth=np.zeros(num_ranks * pool.block_size, dtype=np.int32),
        ring=np.full(rings, state.NONE, dtype=np.int32),
        due_bits=np.zeros(rings // 128, dtype=np.uint64),
    )
    if pool.backend == "sglang":
        add_sglang(st, pool, batch, radix_nodes)
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
    output = batch.output_tokens
    if pool.context_length is not None:
        output = np.minimum(output, np.maximum(pool.context_length - batch.input_tokens, 0))
    if pool.backend == "trtllm":
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
                   state.ARRIVED_HEAD, state.ARRIVED_TAIL, state.QUIET_HEAD]] = state.NONE  # fmt: skip
_RANK[state.DEFER] = 1


def _ranks(pool: Pool, num_ranks: int) -> NDArray[np.int64]:
    ranks = np.tile(_RANK, (num_ranks, 1))
    ranks[:, state.FREE_BLOCKS] = pool.num_blocks
    return ranks


def _numbers(batch: RequestBatch, found: BatchFacts) -> NDArray[np.int64]:
    numbers = np.zeros(state.NUM_NUMBERS, dtype=np.int64)
    numbers[state.PREFILLED_HEAD] = numbers[state.PREFILLED_TAIL] = state.NONE
    numbers[state.NUM_SESSIONS] = found.first.size
    numbers[state.IN_FLIGHT_CAP] = state.NONE if batch.in_flight_cap is None else batch.in_flight_cap
    numbers[state.FREED_NOW] = 0 if batch.in_flight_cap is None else batch.in_flight_cap
    return numbers


def _moments(batch: RequestBatch) -> NDArray[np.float64]:
    moments = np.zeros(state.NUM_MOMENTS)
    moments[state.STOP_AFTER] = np.inf if batch.stop_after_ms is None else batch.stop_after_ms
    moments[state.TICK] = np.inf
    return moments


_fresh: dict[tuple[int, int], tuple[RequestBatch, PrefixTree, NDArray[np.int32], NDArray[np.float64]]] = {}


def _requests_and_stamps(
    batch: RequestBatch, output: NDArray[np.int64], tree: PrefixTree, first_own: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Rows of requests before anything has happened: copies of what is kept per batch and tree."""
    key = (id(batch), id(tree))
    kept = _fresh.get(key)
    if kept is None or kept[0] is not batch or kept[1] is not tree:
        while len(_fresh) >= _KEPT_TREES:
            del _fresh[next(iter(_fresh))]
        kept = _fresh[key] = (batch, tree, _fresh_requests(batch, tree), _fresh_stamps(batch))
    requests = kept[2].copy()
    requests[:, state.OUTPUT] = output
    requests[:, state.OWN_EXTENT] = first_own
    return requests, kept[3].copy()


def _fresh_requests(batch: RequestBatch, tree: PrefixTree) -> NDArray[np.int32]:
    requests = np.zeros((batch.num_requests, state.NUM_REQUEST_COLUMNS), dtype=np.int32)
    columns: dict[int, Any] = {
        state.PROMPT: batch.input_tokens,
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
    batch: RequestBatch,
    tree: PrefixTree,
    num_ranks: int,
    limits: NDArray[np.int64],
    by_block: bool,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """(extents, copies, every request's first own extent), and their offsets into `limits`."""
    num = batch.num_requests
    own = np.zeros(num + 1, dtype=np.int64)
    own[1:] = np.cumsum(tree.own_blocks) if by_block else np.arange(1, num + 1)
    first_own = num_ranks * tree.num_nodes
    first_copy = first_own + int(own[-1])
    may_copy = pool.prefix_caching and (by_block or (tree.may_duplicate and pool.backend == "vllm"))
    num_copies = num_ranks * pool.num_blocks if may_copy else 0
    sentinel = first_copy + num_copies
    limits[state.NUM_NODES], limits[state.FIRST_COPY] = tree.num_nodes, first_copy
    limits[state.NUM_COPIES], limits[state.FIRST_SENTINEL] = num_copies, sentinel
    limits[state.OWN_BY_BLOCK] = int(by_block)
    extents = np.zeros((sentinel + num_ranks, 5), dtype=np.int32)
    ends = np.arange(sentinel, sentinel + num_ranks)
    extents[sentinel:, kv_cache.LRU_PREV] = extents[sentinel:, kv_cache.LRU_NEXT] = ends
    limits[state.FREE_COPY] = state.NONE
    # Filled as it is used: most of it never is.
    copies = np.empty((num_copies, 3), dtype=np.int32)
    return extents, copies, first_own + own[:-1]
