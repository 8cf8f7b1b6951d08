"""Request, engine and clock state of one compiled replay: named tuples of arrays, each with its shape and unit.

The seam between `loop` and a backend (`backends/*.py`), all compiled functions:

    begin(st, s, now) -> m
        Rank s starts a pass at `now`. The backend decides what the pass does, moves requests and blocks, and writes the
        columns PREFILL_N, PREFILL_ISL, PREFILL_PREFIX (sums over the prefill set), DECODE_N, DECODE_CONTEXT (sum over the
        decode set before this pass's token), GAP_N (requests whose next token gap is exactly this pass, every step of
        it), EFFECT (1 unless the pass changes nothing) and CUTTABLE. m >= 1 is how many times the pass may be repeated
        unchanged: each repetition decodes the same requests, one token each, so the context sum grows by DECODE_N. With
        m > 1, or with LAZY set to 1, nothing may have been changed yet: the loop may shorten m (CUTTABLE: because an
        arrival could join) and `commit` applies what remains. Called only for ranks with waiting or running requests.

    commit(st, s, m, first_end, end)
        The pass (or its m repetitions) has ended at `end`; the first repetition ended at `first_end`. The backend stamps
        tokens, finishes requests with `finish`, logs irregular gaps with `log_gap` and updates NUM_RUNNING and queues.

A rank is one scheduler; the ranks of one replica share a clock. Global rank index s = replica * attention_dp + dp_rank.
Links are request indices, NONE ends a list. Per-rank integers are columns of `rank`, named below.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from workers.replay.radix import PageRuns, RadixTree

NONE = -1
WAITING, RUNNING, DONE, REFUSED = 0, 1, 2, 3

VLLM, TRTLLM, SGLANG = 0, 1, 2

# Columns of `Limits.number`: the pool, the same for every rank.
(BACKEND, NUM_REPLICAS, NUM_DP, NUM_BLOCKS, BLOCK_SIZE, MAX_BATCHED_TOKENS, MAX_SEQS, CACHING, CHUNKED, CONTEXT_LENGTH,
 NUM_DRAFTS, PREFILL_SCHEDULE_INTERVAL, PREFILL_DECODE_INTERVAL, EXPLICIT, RING_MASK, NUM_LIMITS) = range(16)  # fmt: skip

# Columns of `rank`.
(WAIT_HEAD, WAIT_TAIL, RUN_HEAD, RUN_TAIL, NUM_WAITING, NUM_RUNNING,
 PREFILL_N, PREFILL_ISL, PREFILL_PREFIX, DECODE_N, DECODE_CONTEXT, GAP_N, EFFECT, CUTTABLE, LAZY, ACTIVE,
 NUM_DECODING, CONTEXT_SUM, STEP, PARTIAL, FREE_BLOCKS, INACTIVE_BLOCKS, HELD_BLOCKS, RESERVED_BLOCKS,
 NEW_HEAD, NEW_TAIL, YOUNG_HEAD, DEFER, NUM_RANK_COLUMNS) = range(29)  # fmt: skip

# Columns of `group` (one row per replica) and of `group_ms`.
PHASE, REPEATS, NUM_PASSES, RANK_COUNTER, GROUP_WORK, NUM_GROUP_COLUMNS = range(6)
IDLE, BEGUN, BUSY = 0, 1, 2
PASS_START, FIRST_END, PASS_END, NUM_GROUP_TIMES = range(4)

# Entries of `Clock.number` and `Clock.time_ms`.
(FIRST_REPLICA, LAST_REPLICA, NEXT_SESSION, SESSION_STRIDE, NUM_SESSIONS, IN_FLIGHT_CAP, ROUTED, EXACT_HORIZON, THINKING,
 FREED_NOW, GAPS_USED, MISS_N, MISS_A, MISS_B, COMMITTED_PREFILL, EVENTS_LEFT, NUM_DONE, NUM_CLOCK) = range(18)  # fmt: skip
NOW, STOP_AFTER, LAST_END, NUM_CLOCK_TIMES = range(4)


class Requests(NamedTuple):
    """[R] each. Inputs first; `output` is the number of tokens really generated unless the virtual clock stops first.

    prompt, output: int64, tokens. has_next: int8, 1 when request r + 1 is the next turn of the same session.
    arrival_ms: float64; the open-loop clock on entry, the release instant once released. delay_ms: float64.
    first_admit_ms, first_token_ms, second_token_ms, last_token_ms, end_ms: float64, NaN until it happens.
    generated: int64; tokens so far, kept current at preemption and completion only (see `due_step`).
    computed: int64; tokens with KV while a prompt is partly computed (explicit mode: always).
    held: int64; blocks held (explicit mode). before, tokens, charged, burst, asked: int64 [R or 0]; explicit mode only, see
    backends.explicit. admissions, first_reused, max_reused: int64; reuse in tokens.
    due_step: int64; the rank's STEP at which the request's last token comes. residue: int32; (length - STEP) mod block.
    status: int8; WAITING.. . worker, dp_rank: int32.
    wait_next, run_next, run_prev, due_next, due_prev, new_next, young_next: int32 links. young: int8, see backends.vllm.
    """

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    has_next: NDArray[np.int8]
    arrival_ms: NDArray[np.float64]
    delay_ms: NDArray[np.float64]
    first_admit_ms: NDArray[np.float64]
    first_token_ms: NDArray[np.float64]
    second_token_ms: NDArray[np.float64]
    last_token_ms: NDArray[np.float64]
    end_ms: NDArray[np.float64]
    generated: NDArray[np.int64]
    computed: NDArray[np.int64]
    held: NDArray[np.int64]
    before: NDArray[np.int64]
    tokens: NDArray[np.int64]
    charged: NDArray[np.int64]
    burst: NDArray[np.int64]
    asked: NDArray[np.int64]
    admissions: NDArray[np.int64]
    first_reused: NDArray[np.int64]
    max_reused: NDArray[np.int64]
    due_step: NDArray[np.int64]
    residue: NDArray[np.int32]
    status: NDArray[np.int8]
    worker: NDArray[np.int32]
    dp_rank: NDArray[np.int32]
    wait_next: NDArray[np.int32]
    run_next: NDArray[np.int32]
    run_prev: NDArray[np.int32]
    due_next: NDArray[np.int32]
    due_prev: NDArray[np.int32]
    new_next: NDArray[np.int32]
    young_next: NDArray[np.int32]
    young: NDArray[np.int8]


class Clock(NamedTuple):
    """The virtual clock, the release queue and the token-gap log.

    number: int64 [NUM_CLOCK]. time_ms: float64 [NUM_CLOCK_TIMES].
    session_order: int64 [S], first requests of sessions in release order.
    think_ms: float64 [T], think_request: int64 [T]; binary heap of follow-up turns by (instant, request).
    gap_ms, gap_count, gap_context, gap_steps: [G]; see `log_gap`, `log_stretch`.
    """

    number: NDArray[np.int64]
    time_ms: NDArray[np.float64]
    session_order: NDArray[np.int64]
    think_ms: NDArray[np.float64]
    think_request: NDArray[np.int64]
    gap_ms: NDArray[np.float64]
    gap_count: NDArray[np.int64]
    gap_context: NDArray[np.int64]
    gap_steps: NDArray[np.int64]


class Blocks(NamedTuple):
    """Block pools of all ranks; see kv_cache. Node arrays are indexed by extent.

    cached: int32, cached blocks of the extent. refs: int32. lru_prev, lru_next: int32 links, sentinels last.
    path_start: int64 [R + 1] into path. path: int32, shared nodes of a request's sequence, root first.
    node_start, node_len: int32 [K], first block (depth) and blocks of shared nodes.
    own_start: int32 [R], first block that no other request shares. own_extent: int64 [R], its extent.
    registered: int32 [R], full blocks of the request known to the cache.
    copy_*: spare copies of one block, see kv_cache.
    layout: int64 [NUM_LAYOUT], offsets of the extent index space.
    growth: int32 [ranks, block_size], decoding requests by residue. ring_head, ring_tail: int32 [ranks, ring].
    """

    cached: NDArray[np.int32]
    refs: NDArray[np.int32]
    lru_prev: NDArray[np.int32]
    lru_next: NDArray[np.int32]
    path_start: NDArray[np.int64]
    path: NDArray[np.int32]
    node_start: NDArray[np.int32]
    node_len: NDArray[np.int32]
    own_start: NDArray[np.int32]
    own_extent: NDArray[np.int64]
    registered: NDArray[np.int32]
    next_copy: NDArray[np.int32]
    copy_extent: NDArray[np.int32]
    copy_owner: NDArray[np.int32]
    owner_copy: NDArray[np.int32]
    owner_next: NDArray[np.int32]
    layout: NDArray[np.int64]
    growth: NDArray[np.int32]
    ring_head: NDArray[np.int32]
    ring_tail: NDArray[np.int32]


class Times(NamedTuple):
    """Step times as arrays; see step_table.

    kind: int64 [NUM_TIME_NUMBERS]. constant: float64 [NUM_TIME_CONSTANTS].
    row_of_n: int32 [N], row of decode batch size n or NONE. value, slope: float64 [rows, cells], ms and ms per token,
    NaN where unknown. prefill_key: int64 [H, 2], (n << 32 | isl, prefix), -1 empty. prefill_value: float64 [H], ms.
    """

    kind: NDArray[np.int64]
    constant: NDArray[np.float64]
    row_of_n: NDArray[np.int32]
    value: NDArray[np.float64]
    slope: NDArray[np.float64]
    prefill_key: NDArray[np.int64]
    prefill_value: NDArray[np.float64]


class Sglang(NamedTuple):
    """Arrays of the SGLang backend alone; columns are named in backends.sglang_state.

    number: int64 [ranks, NUM_INTEGERS]. real: float64 [ranks, NUM_REALS]. request: int64 [R, NUM_REQUEST_COLUMNS].
    tree, runs: the prefix trees of all ranks (their page counts too) and the requests' contents, see radix.
    """

    number: NDArray[np.int64]
    real: NDArray[np.float64]
    request: NDArray[np.int64]
    tree: RadixTree
    runs: PageRuns


class State(NamedTuple):
    """Everything one replay reads and writes.

    limits: int64 [NUM_LIMITS]. acceptance: float64 [NUM_DRAFTS]. rank: int64 [ranks, NUM_RANK_COLUMNS].
    group: int64 [replicas, NUM_GROUP_COLUMNS]. group_ms: float64 [replicas, NUM_GROUP_TIMES].
    """

    limits: NDArray[np.int64]
    acceptance: NDArray[np.float64]
    rank: NDArray[np.int64]
    group: NDArray[np.int64]
    group_ms: NDArray[np.float64]
    req: Requests
    clock: Clock
    blocks: Blocks
    times: Times
    sglang: Sglang


@njit(cache=True, nogil=True)
def wait_push_back(st, s, r):  # type: ignore[no-untyped-def]
    """Request r to the end of rank s's waiting queue."""
    rank = st.rank
    st.req.wait_next[r] = NONE
    tail = rank[s, WAIT_TAIL]
    if tail == NONE:
        rank[s, WAIT_HEAD] = r
    else:
        st.req.wait_next[tail] = r
    rank[s, WAIT_TAIL] = r
    rank[s, NUM_WAITING] += 1


@njit(cache=True, nogil=True)
def wait_push_front(st, s, r):  # type: ignore[no-untyped-def]
    """Request r to the head of rank s's waiting queue."""
    rank = st.rank
    st.req.wait_next[r] = rank[s, WAIT_HEAD]
    rank[s, WAIT_HEAD] = r
    if rank[s, WAIT_TAIL] == NONE:
        rank[s, WAIT_TAIL] = r
    rank[s, NUM_WAITING] += 1


@njit(cache=True, nogil=True)
def wait_pop(st, s):  # type: ignore[no-untyped-def]
    """Remove and return the head of rank s's waiting queue, which must not be empty."""
    rank = st.rank
    r = rank[s, WAIT_HEAD]
    rank[s, WAIT_HEAD] = st.req.wait_next[r]
    if rank[s, WAIT_HEAD] == NONE:
        rank[s, WAIT_TAIL] = NONE
    rank[s, NUM_WAITING] -= 1
    return r


@njit(cache=True, nogil=True)
def run_append(st, s, r):  # type: ignore[no-untyped-def]
    """Request r to the end of rank s's running list."""
    rank, req = st.rank, st.req
    tail = rank[s, RUN_TAIL]
    req.run_prev[r] = tail
    req.run_next[r] = NONE
    if tail == NONE:
        rank[s, RUN_HEAD] = r
    else:
        req.run_next[tail] = r
    rank[s, RUN_TAIL] = r
    rank[s, NUM_RUNNING] += 1


@njit(cache=True, nogil=True)
def run_remove(st, s, r):  # type: ignore[no-untyped-def]
    """Take request r out of rank s's running list."""
    rank, req = st.rank, st.req
    before, after = req.run_prev[r], req.run_next[r]
    if before == NONE:
        rank[s, RUN_HEAD] = after
    else:
        req.run_next[before] = after
    if after == NONE:
        rank[s, RUN_TAIL] = before
    else:
        req.run_prev[after] = before
    rank[s, NUM_RUNNING] -= 1


@njit(cache=True, nogil=True)
def note_admission(st, r, now, reused):  # type: ignore[no-untyped-def]
    """Record one admission of request r at `now` with `reused` prompt tokens found in the cache."""
    req = st.req
    if req.admissions[r] == 0:
        req.first_admit_ms[r] = now
        req.first_reused[r] = reused
    req.admissions[r] += 1
    req.max_reused[r] = max(req.max_reused[r], reused)


@njit(cache=True, nogil=True)
def finish(st, r, status, end):  # type: ignore[no-untyped-def]
    """Request r is over (DONE or REFUSED) at `end`: stamp it, queue its session's next turn or free its slot."""
    req, clock = st.req, st.clock
    number = clock.number
    req.status[r] = status
    req.end_ms[r] = end
    number[NUM_DONE] += 1
    if status == DONE:
        clock.time_ms[LAST_END] = max(clock.time_ms[LAST_END], end)
    if req.has_next[r] == 1:
        _think(clock, end + req.delay_ms[r + 1], r + 1)
    else:
        number[FREED_NOW] += 1


@njit(cache=True, nogil=True)
def _think(clock, when, r):  # type: ignore[no-untyped-def]
    heap_ms, heap_request = clock.think_ms, clock.think_request
    i = clock.number[THINKING]
    clock.number[THINKING] += 1
    while i > 0:
        parent = (i - 1) >> 1
        if heap_ms[parent] < when or (heap_ms[parent] == when and heap_request[parent] < r):
            break
        heap_ms[i], heap_request[i] = heap_ms[parent], heap_request[parent]
        i = parent
    heap_ms[i], heap_request[i] = when, r


@njit(cache=True, nogil=True)
def next_thinker(clock):  # type: ignore[no-untyped-def]
    """Remove and return the follow-up turn with the earliest release; ties by request index."""
    heap_ms, heap_request = clock.think_ms, clock.think_request
    top = heap_request[0]
    clock.number[THINKING] -= 1
    size = clock.number[THINKING]
    when, r = heap_ms[size], heap_request[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap_ms[other] < heap_ms[child] or (heap_ms[other] == heap_ms[child] and heap_request[other] < heap_request[child])
        ):
            child = other
        if heap_ms[child] > when or (heap_ms[child] == when and heap_request[child] > r):
            break
        heap_ms[i], heap_request[i] = heap_ms[child], heap_request[child]
        i = child
    heap_ms[i], heap_request[i] = when, r
    return top


@njit(cache=True, nogil=True)
def log_gap(st, gap, count):  # type: ignore[no-untyped-def]
    """`count` token gaps of `gap` ms each. At most two calls per running request and pass."""
    clock = st.clock
    i = clock.number[GAPS_USED]
    clock.gap_ms[i] = gap
    clock.gap_count[i] = count
    clock.gap_steps[i] = 0
    clock.number[GAPS_USED] = i + 1


@njit(cache=True, nogil=True)
def log_stretch(st, n, context, steps):  # type: ignore[no-untyped-def]
    """`steps` decode passes of n requests, n token gaps each, context sums `context`, `context + n`, ..."""
    clock = st.clock
    i = clock.number[GAPS_USED]
    clock.gap_ms[i] = 0.0
    clock.gap_count[i] = n
    clock.gap_context[i] = context
    clock.gap_steps[i] = steps
    clock.number[GAPS_USED] = i + 1
