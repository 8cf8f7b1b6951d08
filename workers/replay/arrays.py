"""Arrays of one replay, laid out for the compiled loop; what depends on the batch alone is made once and kept."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.replay import kv_cache, state
from workers.replay.fleet import Pool
from workers.replay.prefix_tree import PrefixTree, prefix_tree
from workers.replay.state import Blocks, Clock, Requests, State, Times
from workers.traffic.requests import RequestBatch

BACKENDS = {"vllm": state.VLLM, "trtllm": state.TRTLLM, "sglang": state.SGLANG}
_KEPT_TREES = 8
_FIRST_GAPS = 4096


@dataclass(frozen=True, slots=True)
class Sessions:
    """first: int64 [S], first request of every session in release order. has_next: int8 [R]. plain: one turn each."""

    first: NDArray[np.int64]
    has_next: NDArray[np.int8]
    plain: bool


def sessions(batch: RequestBatch) -> Sessions:
    """Where sessions begin and which requests have a next turn."""
    num = batch.num_requests
    has_next = np.zeros(num, dtype=np.int8)
    if num == 0:
        return Sessions(np.zeros(0, dtype=np.int64), has_next, True)
    has_next[:-1] = batch.session[1:] == batch.session[:-1]
    starts = np.flatnonzero(np.concatenate([[True], has_next[:-1] == 0]))
    first_of = np.empty(int(batch.session.max()) + 1, dtype=np.int64)
    first_of[batch.session[starts]] = starts
    return Sessions(first_of[batch.order], has_next, bool(starts.size == num))


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


def build(pool: Pool, batch: RequestBatch, times: Times) -> State:
    """State of a replay at time 0. Array meanings: see state."""
    output = effective_output(pool, batch)
    limits = _limits(pool, batch, output)
    ranks = pool.replicas * pool.attention_dp
    rank = np.zeros((ranks, state.NUM_RANK_COLUMNS), dtype=np.int64)
    for column in (state.WAIT_HEAD, state.WAIT_TAIL, state.RUN_HEAD, state.RUN_TAIL, state.PARTIAL,
                   state.NEW_HEAD, state.NEW_TAIL, state.YOUNG_HEAD):  # fmt: skip
        rank[:, column] = state.NONE
    rank[:, state.FREE_BLOCKS] = pool.num_blocks
    rank[:, state.DEFER] = 1
    by_block = bool(pool.acceptance)
    tree = tree_of(batch, pool.block_size, by_block)
    found = sessions(batch)
    return State(
        limits=limits,
        acceptance=np.array(pool.acceptance, dtype=np.float64),
        rank=rank,
        group=np.zeros((pool.replicas, state.NUM_GROUP_COLUMNS), dtype=np.int64),
        group_ms=np.zeros((pool.replicas, state.NUM_GROUP_TIMES)),
        req=_requests(batch, output, found.has_next, explicit=bool(limits[state.EXPLICIT])),
        clock=_clock(batch, found),
        blocks=_blocks(pool, batch, tree, ranks, int(limits[state.RING_MASK]) + 2),
        times=times,
        sglang=state.Sglang(
            number=np.zeros(0, dtype=np.int64),
            real=np.zeros(0),
            request=np.zeros(0, dtype=np.int64),
            tree=np.zeros(0, dtype=np.int64),
        ),
    )


def effective_output(pool: Pool, batch: RequestBatch) -> NDArray[np.int64]:
    """int64 [R]: tokens each request will generate, after context limit and TensorRT-LLM's clamp to its pool."""
    output = batch.output_tokens
    if pool.context_length is not None:
        output = np.minimum(output, np.maximum(pool.context_length - batch.input_tokens, 0))
    if pool.backend == "trtllm":
        room = pool.num_blocks * pool.block_size - batch.input_tokens
        output = np.where(room > 0, np.minimum(output, room), output)
    return output


def _limits(pool: Pool, batch: RequestBatch, output: NDArray[np.int64]) -> NDArray[np.int64]:
    limits = np.zeros(state.NUM_LIMITS, dtype=np.int64)
    ring = 1
    while ring <= int(output.max(initial=0)) + 1:
        ring *= 2
    values = {
        state.BACKEND: BACKENDS[pool.backend],
        state.NUM_REPLICAS: pool.replicas,
        state.NUM_DP: pool.attention_dp,
        state.NUM_BLOCKS: pool.num_blocks,
        state.BLOCK_SIZE: pool.block_size,
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


def needs_explicit(pool: Pool, batch: RequestBatch) -> bool:
    """True when a running request may miss a pass or get several tokens in one; see backends.explicit."""
    concurrent = min(pool.max_num_seqs, batch.num_requests)
    if batch.in_flight_cap is not None:
        concurrent = min(concurrent, batch.in_flight_cap)
    if pool.acceptance or pool.max_num_batched_tokens < concurrent:
        return True
    if pool.prefill_schedule_interval > 1 and pool.attention_dp > 1:
        return True
    # A prompt with nothing to compute may be admitted behind a partly computed one.
    if bool((batch.input_tokens == 0).any()):
        return True
    if pool.backend != "trtllm" or not pool.prefix_caching or batch.span_offset is None:
        return False
    return tree_of(batch, pool.block_size, False).may_duplicate


def _requests(
    batch: RequestBatch, output: NDArray[np.int64], has_next: NDArray[np.int8], explicit: bool
) -> Requests:
    num = batch.num_requests

    def moments() -> NDArray[np.float64]:
        return np.full(num, np.nan)

    def counts(size: int = num) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64)

    def links() -> NDArray[np.int32]:
        return np.full(num, state.NONE, dtype=np.int32)

    extra = num if explicit else 0
    arrival = np.array(batch.arrival_ms, dtype=np.float64)
    return Requests(
        prompt=np.ascontiguousarray(batch.input_tokens, dtype=np.int64),
        output=np.ascontiguousarray(output, dtype=np.int64),
        has_next=has_next,
        arrival_ms=arrival,
        delay_ms=np.ascontiguousarray(batch.delay_ms, dtype=np.float64),
        first_admit_ms=moments(),
        first_token_ms=moments(),
        second_token_ms=moments(),
        last_token_ms=moments(),
        end_ms=moments(),
        generated=counts(),
        computed=counts(),
        held=counts(extra),
        before=counts(extra),
        tokens=counts(extra),
        charged=counts(extra),
        burst=counts(extra),
        asked=np.array(batch.output_tokens if explicit else [], dtype=np.int64),
        admissions=counts(),
        first_reused=counts(),
        max_reused=counts(),
        due_step=counts(),
        residue=np.zeros(num, dtype=np.int32),
        status=np.zeros(num, dtype=np.int8),
        worker=links(),
        dp_rank=links(),
        wait_next=links(),
        run_next=links(),
        run_prev=links(),
        due_next=links(),
        due_prev=links(),
        new_next=links(),
        young_next=links(),
        young=np.zeros(num, dtype=np.int8),
    )


def _clock(batch: RequestBatch, found: Sessions) -> Clock:
    number = np.zeros(state.NUM_CLOCK, dtype=np.int64)
    number[state.NUM_SESSIONS] = found.first.size
    number[state.IN_FLIGHT_CAP] = state.NONE if batch.in_flight_cap is None else batch.in_flight_cap
    number[state.FREED_NOW] = 0 if batch.in_flight_cap is None else batch.in_flight_cap
    time_ms = np.zeros(state.NUM_CLOCK_TIMES)
    time_ms[state.STOP_AFTER] = np.inf if batch.stop_after_ms is None else batch.stop_after_ms
    thinkers = 0 if found.plain else found.first.size
    return Clock(
        number=number,
        time_ms=time_ms,
        session_order=found.first,
        think_ms=np.zeros(thinkers),
        think_request=np.zeros(thinkers, dtype=np.int64),
        gap_ms=np.zeros(_FIRST_GAPS),
        gap_count=np.zeros(_FIRST_GAPS, dtype=np.int64),
        gap_context=np.zeros(_FIRST_GAPS, dtype=np.int64),
        gap_steps=np.zeros(_FIRST_GAPS, dtype=np.int64),
    )


def _blocks(pool: Pool, batch: RequestBatch, tree: PrefixTree, ranks: int, ring: int) -> Blocks:
    num, nodes = batch.num_requests, tree.node_start.size
    by_block = bool(pool.acceptance)
    own = np.zeros(num + 1, dtype=np.int64)
    own[1:] = np.cumsum(tree.own_blocks) if by_block else np.arange(1, num + 1)
    first_copy = ranks * nodes + int(own[-1])
    may_copy = pool.prefix_caching and (by_block or (tree.may_duplicate and pool.backend == "vllm"))
    copies = ranks * pool.num_blocks if may_copy else 0
    sentinel = first_copy + copies
    layout = np.zeros(kv_cache.NUM_LAYOUT, dtype=np.int64)
    layout[kv_cache.NUM_NODES] = nodes
    layout[kv_cache.FIRST_COPY] = first_copy
    layout[kv_cache.NUM_COPIES] = copies
    layout[kv_cache.FIRST_SENTINEL] = sentinel
    layout[kv_cache.OWN_BY_BLOCK] = int(by_block)
    lru_prev = np.full(sentinel + ranks, state.NONE, dtype=np.int32)
    lru_next = lru_prev.copy()
    lru_prev[sentinel:] = lru_next[sentinel:] = np.arange(sentinel, sentinel + ranks)
    return Blocks(
        cached=np.zeros(sentinel + ranks, dtype=np.int32),
        refs=np.zeros(sentinel + ranks, dtype=np.int32),
        lru_prev=lru_prev,
        lru_next=lru_next,
        path_start=tree.path_start,
        path=tree.path,
        node_start=tree.node_start,
        node_len=tree.node_len,
        own_start=tree.own_start,
        own_extent=ranks * nodes + own[:-1],
        registered=np.zeros(num, dtype=np.int32),
        next_copy=np.full(sentinel if copies else 0, state.NONE, dtype=np.int32),
        copy_extent=np.full(copies, state.NONE, dtype=np.int32),
        copy_owner=np.full(copies, state.NONE, dtype=np.int32),
        owner_copy=np.full(num if copies else 0, state.NONE, dtype=np.int32),
        owner_next=np.arange(1, copies + 1, dtype=np.int32),
        layout=layout,
        growth=np.zeros((ranks, pool.block_size), dtype=np.int32),
        ring_head=np.full((ranks, ring), state.NONE, dtype=np.int32),
        ring_tail=np.full((ranks, ring), state.NONE, dtype=np.int32),
    )
