"""Request, engine and clock state of one compiled replay: arrays, the address book that passes them, and the queues.

The seam between `event_loop` and a backend (`backends/*.py`), all compiled functions of the address book `st`:

    begin(st, s, now) -> m
        Rank s starts a pass at `now`. The backend decides what the pass does, moves requests and blocks, and writes the
        rank columns PREFILL_N, PREFILL_ISL, PREFILL_PREFIX (sums over the prefill set), DECODE_N, DECODE_CONTEXT (sum
        over the decode set before this pass's token), GAP_N (requests whose next token gap is exactly this pass, every
        repetition of it), EFFECT (1 unless the pass changes nothing) and CUTTABLE. m >= 1 is how many times the pass may
        be repeated unchanged: each repetition decodes the same requests, one token each, so the context sum grows by
        DECODE_N. With m > 1 nothing may have been changed yet: the loop may shorten m (to the shortest of the group, or
        because an arrival could join, see CUTTABLE) and `commit` applies what remains. A backend that returned m > 1
        remembers in LAZY that it has changed nothing. Called only for ranks with waiting or running requests.

    commit(st, s, m, first_end, end)
        The pass (its m repetitions) ended at `end`, the first repetition at `first_end`. The backend stamps tokens,
        finishes requests with `finish`, logs irregular gaps with `log_gap` and keeps queues and NUM_RUNNING current.

A rank is one scheduler; the ranks of a replica share a clock. Global rank index s = replica * attention_dp + dp_rank.
Links are request indices, NONE ends a list.

Compiled functions take one array, the address book: passing every array made each of them a function of hundreds of
arguments, and compilation took ten minutes. `ranks_of(st)`, `requests_of(st)`, ... give the arrays, whose shapes are below.
"""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.replay.compiled import inner
from workers.replay.page_runs import NUM_RUN_COLUMNS
from workers.replay.radix import NUM_NODE_COLUMNS
from workers.replay.tables import accessor

NONE = -1
WAITING, DONE, REFUSED = 0, 2, 3
VLLM, TRTLLM, SGLANG = 0, 1, 2

# limits: int64 [NUM_LIMITS], the pool, the same for every rank; from OWN_BY_BLOCK on, offsets of kv_cache. BLOCK_SHIFT: log2
# of the block size, NONE when that is no power of two. UNSHARED: 1 when the cache is left out because no two prompts share a
# block; the first preemption, whose blocks would be found again, then ends the run (see GIVEN_UP).
(BACKEND, NUM_REPLICAS, NUM_DP, NUM_BLOCKS, BLOCK_SIZE, MAX_BATCHED_TOKENS, MAX_SEQS, CACHING, CHUNKED, CONTEXT_LENGTH,
 NUM_DRAFTS, PREFILL_SCHEDULE_INTERVAL, PREFILL_DECODE_INTERVAL, EXPLICIT, RING_MASK,
 OWN_BY_BLOCK, NUM_NODES, FIRST_COPY, NUM_COPIES, FREE_COPY, COPIES_USED, FIRST_SENTINEL, BLOCK_SHIFT, ROLE, UNSHARED,
 NUM_LIMITS) = range(26)  # fmt: skip
AGG, PREFILL, DECODE = 0, 1, 2

# ranks: int64 [ranks, NUM_RANK_COLUMNS], one row per scheduler. The columns from PHASE on are those of a replica and used
# in the row of its first rank only. Decode role: OTHERS_WAIT, 1 while requests wait for room on this rank. ARRIVED_HEAD and
# ARRIVED_TAIL chain SGLang's handed-over requests without a slot, also counted in NUM_WAITING, by WAIT_NEXT, others' that
# landed since the last pass began by NEW_NEXT. DENIED, the request that got no room last, at TIMES_RELEASED = DENIED_AT.
# COMPUTED_NOW: prompt and recomputed tokens of the pass under way. QUIET_HEAD chains, by NEW_NEXT, handed-over requests without
# output, which end with the pass. SETTLED: see stretches. NEWCOMERS: requests at the end of the running list that this pass has
# admitted (explicit). TIMES_RELEASED: how often blocks were given back.
# SGLang alone: PROMISED, sum of min(O - g, RESERVED_OUTPUT_LIMIT) over running requests. NUM_LONG, those beyond that
# limit. NUM_FRESH, those without a decode pass yet. STALLED, 1 when a prefill pass or a wait for room came after the last
# decode pass. NEXT_DUE, no request is due before this step. RETRACTED, 1 when this pass retracted. HEAD_ASK, tokens the
# blocked head of the queue asks for. MAY_REFUSE, 1 when some prompt exceeds the context limit. GATE_PASSES, passes that may not
# prefill. PREFILLED, 1 when a rank of the replica prefills in this pass. OUTGREW, 1 once a request needs more blocks than
# the pool it holds alone has: it would be preempted for ever.
(WAIT_HEAD, WAIT_TAIL, RUN_HEAD, RUN_TAIL, NUM_WAITING, NUM_RUNNING,
 PREFILL_N, PREFILL_ISL, PREFILL_PREFIX, DECODE_N, DECODE_CONTEXT, GAP_N, EFFECT, CUTTABLE, LAZY, ACTIVE,
 NUM_DECODING, CONTEXT_SUM, STEP, PARTIAL, FREE_BLOCKS, INACTIVE_BLOCKS, HELD_BLOCKS, RESERVED_BLOCKS,
 NEW_HEAD, NEW_TAIL, YOUNG_HEAD, REFUSED_HEAD, DEFER, DRAWS_USED, OTHERS_WAIT, ARRIVED_HEAD, ARRIVED_TAIL,
 PROMISED, NUM_LONG, NUM_FRESH, STALLED, NEXT_DUE, RETRACTED, HEAD_ASK, MAY_REFUSE, COMPUTED_NOW, QUIET_HEAD, SETTLED,
 NEWCOMERS, TIMES_RELEASED, DENIED, DENIED_AT, PHASE, REPEATS, NUM_PASSES, RANK_COUNTER, GATE_PASSES, PREFILLED, OUTGREW,
 NUM_RANK_COLUMNS) = range(56)  # fmt: skip
IDLE, BEGUN, BUSY = 0, 1, 2

# passes: float64 [replicas, NUM_PASS_COLUMNS], ms: the pass under way.
PASS_START, FIRST_END, PASS_END, NUM_PASS_COLUMNS = range(4)

# numbers: int64 [NUM_NUMBERS], clock and releases. Prefill role: PREFILLED_HEAD and PREFILLED_TAIL chain, by WAIT_NEXT, the
# requests that ended in the passes of this instant; PREFILLED_SILENT is the one that the next without output follows, NONE:
# it comes first. Decode role, NUM_ARRIVALS and what follows: see handoff. GIVEN_UP: 0, or why the run must start anew, with
# requests taken one by one (FOR_EXPLICIT) or with its cache (FOR_CACHE). moments: float64 [NUM_MOMENTS], ms. For NUM_READY
# and what follows, TICK and HIT_RATE_SUM see pass_records.
(FIRST_REPLICA, LAST_REPLICA, NEXT_SESSION, SESSION_STRIDE, NUM_SESSIONS, IN_FLIGHT_CAP, ROUTED, EXACT_HORIZON, THINKING,
 FREED_NOW, GAPS_USED, MISS_N, MISS_A, MISS_B, COMMITTED_PREFILL, EVENTS_LEFT, NUM_DONE, NUM_DRAWS,
 PREFILLED_HEAD, PREFILLED_TAIL, PREFILLED_SILENT, STAGE, ASKING, NUM_RESERVED, NUM_ROUNDS, GIVEN_UP,
 NUM_ARRIVALS, NUM_DEPARTURES, LATER, LATER_HEAD, LATER_TAIL,
 NUM_READY, ARRIVED, COMPLETED, COMPLETED_INPUT, COMPLETED_OUTPUT, ADMITTED, NUM_NUMBERS) = range(38)  # fmt: skip
FOR_EXPLICIT, FOR_CACHE = 1, 2
NOW, STOP_AFTER, LAST_EVENT, TICK, HIT_RATE_SUM, NUM_MOMENTS = range(6)

# sgl_reals: float64 [ranks, NUM_REALS]: SGLang's reservation ratio, its start, floor and fall per decode pass; ms of
# the end of the last decode pass.
RATIO, RATIO_START, RATIO_FLOOR, RATIO_FALL, LAST_DECODE_MS, NUM_REALS = range(6)

# requests: int32 [R, NUM_REQUEST_COLUMNS]. PROMPT, OUTPUT: tokens, OUTPUT as really generated, ASKED as requested.
# HAS_NEXT: 1 when request r + 1 is the next turn of the same session. GENERATED: tokens so far, kept current at preemption
# and completion only (see backends.vllm; always in backends.explicit). COMPUTED: tokens with KV while a prompt is partly
# computed. HELD: blocks (explicit). ADMISSIONS; FIRST_REUSED, MAX_REUSED: tokens. DUE_STEP: the rank's STEP at which the
# last token comes. RESIDUE: (length - STEP) mod block. STATUS: WAITING, DONE, REFUSED. PATH_START .. OWNER_COPY: see kv_cache.
# RESERVED_AS: number of the reservation while a handed-over request has its room but does not run yet, else 0.
# SILENT: 1 when the token gaps of the request must not be logged (backends.explicit).
# BEFORE, TOKENS, CHARGED, BURST, DRAFTED: see backends.explicit; other backends may use them, and SPARE_*, as they like.
# In this order, so that what most passes touch lies in the first two cache lines.
(PROMPT, OUTPUT, GENERATED, STATUS, WORKER, DP_RANK, ADMISSIONS, FIRST_REUSED, MAX_REUSED, DUE_STEP, RESIDUE, DUE_NEXT,
 DUE_PREV, RUN_NEXT, RUN_PREV, WAIT_NEXT, NEW_NEXT, YOUNG_NEXT, YOUNG, COMPUTED, PATH_START, PATH_END, OWN_EXTENT, REGISTERED,
 HAS_NEXT, RESERVED_AS, OWN_START, OWNER_COPY, ASKED, HELD, BEFORE, TOKENS, CHARGED, BURST, DRAFTED,
 SILENT, SPARE_A, SPARE_B, SPARE_C, NUM_REQUEST_COLUMNS) = range(40)  # fmt: skip

# stamps: float64 [R, NUM_STAMPS], ms, NaN until it happens. ARRIVAL: the open-loop clock, the release instant once released.
ARRIVAL, DELAY, FIRST_ADMIT, FIRST_TOKEN, SECOND_TOKEN, LAST_TOKEN, END, NUM_STAMPS = range(8)

# handoffs: int64 [R, NUM_HANDOFF_COLUMNS], lands: float64 [R], ms; targets: int64 [decode ranks, NUM_TARGET_COLUMNS];
# sources: int64 [prefill ranks, NUM_SOURCE_COLUMNS]; transfer: float64 [NUM_TRANSFER]: see handoff. In the state of the
# decode role only, elsewhere empty.
(TARGET, SOURCE, CACHED_TOKENS, PLACE, ROUND, REQUEST_NEXT, TRAVEL_NEXT, TRAVEL_PREV, FREE_NEXT, FREE_PREV,
 NUM_HANDOFF_COLUMNS) = range(11)  # fmt: skip
REQUEST_HEAD, REQUEST_TAIL, MAY_SERVE, TRAVEL_HEAD, TRAVEL_TAIL, NUM_TARGET_COLUMNS = range(6)
FREE_HEAD, FREE_TAIL, NUM_SOURCE_COLUMNS = range(3)
TOKEN_BYTES, GB_PER_S, MISSING_ONLY, NUM_TRANSFER = range(4)

# loads, routes, believed int64 [R], router_draws float64 [R], router float64 [NUM_ROUTER]: see router.
BELIEVED_TOKENS, BELIEVED_BLOCKS, CHANGED_HEAD, NUM_LOADS = range(4)
SEEN, HOLDERS, COVERED, CHANGED_NEXT, NUM_ROUTES = range(5)
UNCHANGED = -2
CREDIT, LOAD_SCALE, TEMPERATURE, NUM_ROUTER = range(4)

# gaps: float64 [G, 4], the log of token gaps, see log_gap and log_stretch.
GAP_MS, GAP_COUNT, GAP_CONTEXT, GAP_STEPS = range(4)

# ready, live, records, record_times: see pass_records. Empty while engines neither come nor go.
(QUEUED_PREFILL, QUEUED_DECODE, CUT_PREFILL, CUT_DECODE, OTHER_DECODES, OTHER_CONTEXT, NUM_HERE, ENGINE, HAS_LAST,
 LOAD_PREFILL_N, LOAD_PREFILL_TOKENS, LOAD_DECODE_N, LOAD_DECODE_KV, LOAD_QUEUED_PREFILL, LOAD_QUEUED_DECODE,
 LAST_PREFILL_N, LAST_PREFILL_TOKENS, LAST_DECODE_N, LAST_DECODE_KV, LAST_QUEUED_PREFILL, LAST_QUEUED_DECODE,
 NUM_RECORDS) = range(22)  # fmt: skip
LAST_WALL, LAST_PASS_END, LAST_LEFT, NUM_RECORD_TIMES = range(4)

# Places in the address book: address and number of rows of every array. Row lengths are constants above, or as noted:
# sessions int64 [S], first request of every session in release order. thinkers float64 [T, 2], heap of (instant, request).
# acceptance float64 [NUM_DRAFTS].
# extents int32 [E, 5], paths int32 [J, 3], copies int32 [C, 3]: see kv_cache. growth int32 [ranks * block_size], decoding
# requests by residue. ring int32 [ranks * 2 * ring], first and last request by due step; due_bits uint64 [ranks * ring / 64],
# a bit for each due step that has any, kept by backends.decoding.
# decode_table float64 [N * cells * 2], memo int64 [H, 4], timing int64, rates float64: see step_lookup.
# draws float64 [ranks * NUM_DRAWS]: see drafts. exact_index int32, exact_values float64: see step_lookup. exact_rates,
# exact_facts: see gap_pieces.
# sgl_nodes, sgl_slots, sgl_counters: see radix. sgl_runs: see page_runs. handed int32 [R], decode role: see handoff_cohorts.
BOOK = (
    "limits", "ranks", "passes", "numbers", "moments", "requests", "stamps", "sessions", "thinkers", "gaps", "acceptance",
    "extents", "paths", "copies", "growth", "ring", "decode_table", "memo", "timing", "rates", "draws",
    "exact_index", "exact_values", "handoffs", "lands", "targets", "sources", "transfer",
    "loads", "routes", "believed", "router_draws", "router",
    "sgl_reals", "sgl_nodes", "sgl_slots", "sgl_counters", "sgl_runs",
    "ready", "live", "records", "record_times", "exact_rates", "exact_facts", "due_bits", "handed",
)  # fmt: skip

_PLACES = {name: place for place, name in enumerate(BOOK)}


class State:
    """The arrays of one replay by name, and `book`, which the compiled functions take.

    Assigning an array (`state["gaps"] = longer`) keeps it alive and updates its address. Arrays that are not given are empty.
    rows: int64 [R], which request each row of `requests` and `stamps` is; None: in order.
    """

    rows: NDArray[np.int64] | None = None

    def __init__(self, **arrays: NDArray[Any]) -> None:
        self.book = _EMPTY_BOOK.copy()
        self._arrays = _EMPTY.copy()
        for name, array in arrays.items():
            self[name] = array

    def sharing(self, **own: NDArray[Any]) -> "State":
        """A state on the same arrays apart from those given."""
        other = State.__new__(State)
        other.book, other._arrays = self.book.copy(), self._arrays.copy()
        for name, array in own.items():
            other[name] = array
        return other

    def __setitem__(self, name: str, array: NDArray[Any]) -> None:
        assert array.flags.c_contiguous, name
        assert array.dtype == _DTYPES[name], name
        self._arrays[name] = array
        place = _PLACES[name]
        self.book[place, 0], self.book[place, 1] = address_of(array), len(array)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]


def address_of(array: NDArray[Any]) -> int:
    """Where an array's first element lies; 0 if there is none. The way by ctypes takes a fifth of the time of others."""
    if array.size == 0:
        return 0
    if not array.flags.writeable:
        return int(array.__array_interface__["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]


def _accessor(name: str, dtype: type, columns: int = 0) -> Any:
    return accessor(name, 2 * BOOK.index(name), dtype, columns)


_I4, _I8, _F8 = np.int32, np.int64, np.float64
SHAPES = {
    "limits": (_I8, 0), "ranks": (_I8, NUM_RANK_COLUMNS), "passes": (_F8, NUM_PASS_COLUMNS), "numbers": (_I8, 0),
    "moments": (_F8, 0), "requests": (_I4, NUM_REQUEST_COLUMNS), "stamps": (_F8, NUM_STAMPS), "sessions": (_I8, 0),
    "thinkers": (_F8, 2), "gaps": (_F8, 4), "acceptance": (_F8, 0), "extents": (_I4, 5), "paths": (_I4, 3),
    "copies": (_I4, 3), "growth": (_I4, 0), "ring": (_I4, 0), "decode_table": (_F8, 0), "memo": (_I8, 4),
    "timing": (_I8, 0), "rates": (_F8, 0), "draws": (_F8, 0),
    "exact_index": (_I4, 0), "exact_values": (_F8, 0),
    "handoffs": (_I8, NUM_HANDOFF_COLUMNS), "lands": (_F8, 0), "targets": (_I8, NUM_TARGET_COLUMNS),
    "sources": (_I8, NUM_SOURCE_COLUMNS), "transfer": (_F8, 0), "loads": (_I8, NUM_LOADS),
    "routes": (_I4, NUM_ROUTES), "believed": (_I8, 0), "router_draws": (_F8, 0), "router": (_F8, 0),
    "sgl_reals": (_F8, NUM_REALS), "sgl_nodes": (_I8, NUM_NODE_COLUMNS), "sgl_slots": (_I4, 0),
    "sgl_counters": (_I8, 0), "sgl_runs": (_I8, NUM_RUN_COLUMNS),
    "ready": (_I8, 0), "live": (_I8, 0), "records": (_I8, NUM_RECORDS), "record_times": (_F8, NUM_RECORD_TIMES),
    "exact_rates": (_F8, 0), "exact_facts": (_F8, 0), "due_bits": (np.uint64, 0),
    "handed": (_I4, 0),
}  # fmt: skip
_DTYPES = {name: np.dtype(dtype) for name, (dtype, _) in SHAPES.items()}
_EMPTY: dict[str, NDArray[Any]] = {
    name: np.zeros((0, columns) if columns else 0, dtype=dtype) for name, (dtype, columns) in SHAPES.items()
}
_EMPTY_BOOK = np.zeros((len(BOOK), 2), dtype=np.int64)

(limits_of, ranks_of, passes_of, numbers_of, moments_of, requests_of, stamps_of, sessions_of, thinkers_of, gaps_of,
 acceptance_of) = (
    _accessor(name, *SHAPES[name]) for name in BOOK[:11]
)  # fmt: skip
(extents_of, paths_of, copies_of, growth_of, ring_of, decode_table_of, memo_of, timing_of, rates_of, draws_of,
 exact_index_of, exact_values_of) = (
    _accessor(name, *SHAPES[name]) for name in BOOK[11:23]
)  # fmt: skip
handoffs_of, lands_of, targets_of, sources_of, transfer_of = (_accessor(name, *SHAPES[name]) for name in BOOK[23:28])
loads_of, routes_of, believed_of, router_draws_of, router_of = (_accessor(name, *SHAPES[name]) for name in BOOK[28:33])
(sgl_reals_of, sgl_nodes_of, sgl_slots_of, sgl_counters_of,
 sgl_runs_of) = (_accessor(name, *SHAPES[name]) for name in BOOK[33:38])  # fmt: skip
ready_of, live_of, records_of, record_times_of, exact_rates_of, exact_facts_of, due_bits_of, handed_of = (
    _accessor(name, *SHAPES[name]) for name in BOOK[38:]
)


@inner
def whole_blocks(limits, tokens):  # type: ignore[no-untyped-def]
    """Full blocks among `tokens` tokens. A shift where possible: divisions took a quarter of the time."""
    if limits[BLOCK_SHIFT] >= 0:
        return tokens >> limits[BLOCK_SHIFT]
    return tokens // limits[BLOCK_SIZE]


@inner
def blocks_for(limits, tokens):  # type: ignore[no-untyped-def]
    """Blocks that hold `tokens` tokens."""
    return whole_blocks(limits, tokens + limits[BLOCK_SIZE] - 1)


@inner
def beyond_block(limits, tokens):  # type: ignore[no-untyped-def]
    """tokens modulo the block size."""
    if limits[BLOCK_SHIFT] >= 0:
        return tokens & (limits[BLOCK_SIZE] - 1)
    return tokens % limits[BLOCK_SIZE]


@inner
def is_elastic(st):  # type: ignore[no-untyped-def]
    """True when engines of this pool may come and go."""
    return records_of(st).shape[0] > 0


@inner
def note_preempted(st):  # type: ignore[no-untyped-def]
    """A request will look for its blocks again: a run that left out the cache must start anew with it."""
    if limits_of(st)[UNSHARED] == 1:
        numbers_of(st)[GIVEN_UP] = FOR_CACHE


@inner
def note_queued(st, s, r, sign):  # type: ignore[no-untyped-def]
    """Request r joins (1) or leaves (-1) what waits on rank s, as a planner counts it; see pass_records."""
    record = records_of(st)
    if record.shape[0] == 0:
        return
    limits, req = limits_of(st), requests_of(st)
    is_sglang = limits[BACKEND] == SGLANG
    if limits[ROLE] == DECODE:
        tokens = req[r, PROMPT] + (req[r, GENERATED] if is_sglang else 0)
        record[s, QUEUED_DECODE] += sign * tokens
    elif (req[r, GENERATED] if is_sglang else req[r, ADMISSIONS]) > 0:
        record[s, QUEUED_DECODE] += sign * (req[r, PROMPT] + req[r, GENERATED])
    else:
        record[s, QUEUED_PREFILL] += sign * req[r, PROMPT]


@inner
def wait_push_back(st, s, r):  # type: ignore[no-untyped-def]
    """Request r to the end of rank s's waiting queue."""
    rank, req = ranks_of(st), requests_of(st)
    req[r, WAIT_NEXT] = NONE
    tail = rank[s, WAIT_TAIL]
    if tail == NONE:
        rank[s, WAIT_HEAD] = r
    else:
        req[tail, WAIT_NEXT] = r
    rank[s, WAIT_TAIL] = r
    rank[s, NUM_WAITING] += 1
    note_queued(st, s, r, 1)


@inner
def wait_push_front(st, s, r):  # type: ignore[no-untyped-def]
    """Request r to the head of rank s's waiting queue."""
    rank, req = ranks_of(st), requests_of(st)
    req[r, WAIT_NEXT] = rank[s, WAIT_HEAD]
    rank[s, WAIT_HEAD] = r
    if rank[s, WAIT_TAIL] == NONE:
        rank[s, WAIT_TAIL] = r
    rank[s, NUM_WAITING] += 1
    note_queued(st, s, r, 1)


@inner
def wait_pop(st, s):  # type: ignore[no-untyped-def]
    """Remove and return the head of rank s's waiting queue, which must not be empty."""
    rank, req = ranks_of(st), requests_of(st)
    r = rank[s, WAIT_HEAD]
    rank[s, WAIT_HEAD] = req[r, WAIT_NEXT]
    if rank[s, WAIT_HEAD] == NONE:
        rank[s, WAIT_TAIL] = NONE
    rank[s, NUM_WAITING] -= 1
    note_queued(st, s, r, -1)
    return r


@inner
def run_append(st, s, r):  # type: ignore[no-untyped-def]
    """Request r to the end of rank s's running list."""
    rank, req = ranks_of(st), requests_of(st)
    tail = rank[s, RUN_TAIL]
    req[r, RUN_PREV] = tail
    req[r, RUN_NEXT] = NONE
    if tail == NONE:
        rank[s, RUN_HEAD] = r
    else:
        req[tail, RUN_NEXT] = r
    rank[s, RUN_TAIL] = r
    rank[s, NUM_RUNNING] += 1


@inner
def run_remove(st, s, r):  # type: ignore[no-untyped-def]
    """Take request r out of rank s's running list."""
    rank, req = ranks_of(st), requests_of(st)
    before, after = req[r, RUN_PREV], req[r, RUN_NEXT]
    if before == NONE:
        rank[s, RUN_HEAD] = after
    else:
        req[before, RUN_NEXT] = after
    if after == NONE:
        rank[s, RUN_TAIL] = before
    else:
        req[after, RUN_PREV] = before
    rank[s, NUM_RUNNING] -= 1


@inner
def note_admission(st, r, now, reused):  # type: ignore[no-untyped-def]
    """Record one admission of request r at `now` with `reused` prompt tokens found in the cache."""
    req, stamp = requests_of(st), stamps_of(st)
    if req[r, ADMISSIONS] == 0:
        stamp[r, FIRST_ADMIT] = now
        req[r, FIRST_REUSED] = reused
        if is_elastic(st):
            numbers_of(st)[ADMITTED] += 1
            moments_of(st)[HIT_RATE_SUM] += reused / max(req[r, PROMPT], 1)
    req[r, ADMISSIONS] += 1
    req[r, MAX_REUSED] = max(req[r, MAX_REUSED], reused)


@inner
def log_gap(st, gap, count):  # type: ignore[no-untyped-def]
    """`count` token gaps of `gap` ms each. At most two calls per running request and pass."""
    number, gap_log = numbers_of(st), gaps_of(st)
    i = number[GAPS_USED]
    gap_log[i, GAP_MS] = gap
    gap_log[i, GAP_COUNT] = count
    gap_log[i, GAP_STEPS] = 0
    number[GAPS_USED] = i + 1


@inner
def log_stretch(st, n, context, steps):  # type: ignore[no-untyped-def]
    """`steps` decode passes of n requests, n token gaps each, context sums `context`, `context + n`, ..."""
    number, gap_log = numbers_of(st), gaps_of(st)
    i = number[GAPS_USED]
    gap_log[i, GAP_MS] = 0.0
    gap_log[i, GAP_COUNT] = n
    gap_log[i, GAP_CONTEXT] = context
    gap_log[i, GAP_STEPS] = steps
    number[GAPS_USED] = i + 1
