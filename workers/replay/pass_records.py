"""What a planner sees of the passes of an elastic pool, and which of its places hold engines; see search spec, section 5.

An elastic pool has `NUM_REPLICAS` places. ready: int64 [places], the places of engines that take work, by engine number,
NUM_READY of them. live: int64 [places], all places in the order in which their engines act: by engine number, free ones last.
Both are empty in a pool whose engines are all there from the start: then every place is ready and acts in order.

records: int64 [ranks, NUM_RECORDS]. QUEUED_*: prompt tokens that wait for prefill here, context tokens that wait to decode.
CUT_*: the same of prompts cut in the pass being formed. OTHER_*: requests, and the sum of their contexts, that go on in the
pass being formed without a prompt token and are not among NUM_DECODING. NUM_HERE: requests on this rank, on a source
until its prompt is released, on a destination from the request for room on. ENGINE: number of the engine in this place.
LOAD_*: the pass under way, or its first repetition. LAST_*: the last one that ended, HAS_LAST 1 once there is one.
record_times: float64 [ranks, NUM_RECORD_TIMES], ms: duration and end of that pass, and when a request last left the rank.

numbers: ARRIVED, COMPLETED (with COMPLETED_INPUT and _OUTPUT tokens) and ADMITTED requests, moments: HIT_RATE_SUM over the
admitted ones, all since the last tick. TICK, ms: the loop stops, all work up to then done, before anything later.
"""

from workers.replay.compiled import inner
from workers.replay.state import (
    ACTIVE,
    BACKEND,
    COMPLETED,
    COMPLETED_INPUT,
    COMPLETED_OUTPUT,
    COMPUTED_NOW,
    CONTEXT_SUM,
    CUT_DECODE,
    CUT_PREFILL,
    DECODE,
    GENERATED,
    HAS_LAST,
    LAST_LEFT,
    LAST_PASS_END,
    LAST_PREFILL_N,
    LAST_WALL,
    LOAD_DECODE_KV,
    LOAD_DECODE_N,
    LOAD_PREFILL_N,
    LOAD_PREFILL_TOKENS,
    LOAD_QUEUED_DECODE,
    LOAD_QUEUED_PREFILL,
    NUM_DECODING,
    NUM_DP,
    NUM_HERE,
    NUM_READY,
    NUM_RECORDS,
    OTHER_CONTEXT,
    OTHER_DECODES,
    PREFILL_N,
    PROMPT,
    QUEUED_DECODE,
    QUEUED_PREFILL,
    ROLE,
    SGLANG,
    is_elastic,
    limits_of,
    live_of,
    numbers_of,
    ranks_of,
    ready_of,
    record_times_of,
    records_of,
    requests_of,
)

_LOAD_TO_LAST = LAST_PREFILL_N - LOAD_PREFILL_N
_LAST_DECODE_KV = LOAD_DECODE_KV + _LOAD_TO_LAST


@inner
def in_order(st, i):  # type: ignore[no-untyped-def]
    """The place whose engine acts as number i."""
    live = live_of(st)
    return live[i] if live.shape[0] > 0 else i


@inner
def num_ready(st):  # type: ignore[no-untyped-def]
    """Ranks that take work."""
    if is_elastic(st):
        return numbers_of(st)[NUM_READY] * limits_of(st)[NUM_DP]
    return ranks_of(st).shape[0]


@inner
def ready_rank(st, i):  # type: ignore[no-untyped-def]
    """The i-th rank that takes work, engine by engine."""
    if is_elastic(st):
        num_dp = limits_of(st)[NUM_DP]
        return ready_of(st)[i // num_dp] * num_dp + i % num_dp
    return i


@inner
def note_decoding(st, s, count, context):  # type: ignore[no-untyped-def]
    """`count` requests of `context` tokens in all go on in the pass being formed, computing no prompt token."""
    if is_elastic(st):
        record = records_of(st)
        record[s, OTHER_DECODES] += count
        record[s, OTHER_CONTEXT] += context


@inner
def note_cut(st, s, r):  # type: ignore[no-untyped-def]
    """SGLang: request r is in the pass being formed with a part of its tokens and goes on waiting for the others."""
    if not is_elastic(st):
        return
    record, req = records_of(st), requests_of(st)
    waits_to_decode = limits_of(st)[ROLE] == DECODE or req[r, GENERATED] > 0
    record[s, CUT_DECODE if waits_to_decode else CUT_PREFILL] += req[r, PROMPT] + req[r, GENERATED]


@inner
def note_pass_formed(st, s):  # type: ignore[no-untyped-def]
    """Rank s has formed a pass: its load."""
    if not is_elastic(st):
        return
    record, rank = records_of(st), ranks_of(st)
    decodes, context = record[s, OTHER_DECODES], record[s, OTHER_CONTEXT]
    if limits_of(st)[BACKEND] != SGLANG:
        decodes += rank[s, NUM_DECODING]
        context += rank[s, CONTEXT_SUM]
    record[s, LOAD_PREFILL_N] = rank[s, PREFILL_N]
    record[s, LOAD_PREFILL_TOKENS] = rank[s, COMPUTED_NOW]
    record[s, LOAD_DECODE_N], record[s, LOAD_DECODE_KV] = decodes, context
    record[s, LOAD_QUEUED_PREFILL] = record[s, QUEUED_PREFILL] + record[s, CUT_PREFILL]
    record[s, LOAD_QUEUED_DECODE] = record[s, QUEUED_DECODE] + record[s, CUT_DECODE]
    for column in (OTHER_DECODES, OTHER_CONTEXT, CUT_PREFILL, CUT_DECODE):
        record[s, column] = 0


@inner
def note_pass_ended(st, w, repetition, wall, end):  # type: ignore[no-untyped-def]
    """A repetition (0: the first) of the pass of place w has ended; it took `wall` ms. Ranks without work report zeros."""
    record, times, rank = records_of(st), record_times_of(st), ranks_of(st)
    num_dp = limits_of(st)[NUM_DP]
    for s in range(w * num_dp, (w + 1) * num_dp):
        for column in range(LAST_PREFILL_N, NUM_RECORDS):
            record[s, column] = record[s, column - _LOAD_TO_LAST] if rank[s, ACTIVE] == 1 else 0
        if rank[s, ACTIVE] == 1:
            record[s, _LAST_DECODE_KV] += repetition * record[s, LOAD_DECODE_N]
        record[s, HAS_LAST] = 1
        times[s, LAST_WALL], times[s, LAST_PASS_END] = wall, end


@inner
def note_here(st, s):  # type: ignore[no-untyped-def]
    """A request is sent to rank s."""
    if is_elastic(st):
        records_of(st)[s, NUM_HERE] += 1


@inner
def note_left(st, s, when):  # type: ignore[no-untyped-def]
    """A request has left rank s for good."""
    if is_elastic(st):
        records_of(st)[s, NUM_HERE] -= 1
        record_times_of(st)[s, LAST_LEFT] = when


@inner
def note_completed(st, r):  # type: ignore[no-untyped-def]
    """Request r has got all its tokens."""
    if is_elastic(st):
        number, req = numbers_of(st), requests_of(st)
        number[COMPLETED] += 1
        number[COMPLETED_INPUT] += req[r, PROMPT]
        number[COMPLETED_OUTPUT] += req[r, GENERATED]
