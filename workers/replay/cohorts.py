"""Closed loops of identical prompts that share nothing, on vLLM or TensorRT-LLM: counters instead of queues.

Requests enter, get their first token and end in the order of their arrival, so every queue of an engine is a range of
requests: round robin gives replica w the requests w, w + R, w + 2 R, ... Times, order of events and gap log are those of
`event_loop`. The run is given up (NEED_CACHE) before an engine admits more requests than it has blocks for until their
last tokens, as then a request may wait for blocks or be preempted.

Of a rank's columns WAIT_HEAD is the next request to enter, NEW_HEAD the next to get its first token, YOUNG_HEAD the next to
get its second and RUN_HEAD the next to end; NUM_FRESH counts prompts that end in the pass under way, COMPUTED_NOW their
tokens computed in it; PARTIAL: tokens computed of the prompt last entered, 0 when it is complete.
"""

import math

import numpy as np

from workers.replay.compiled import bare_entry, inner
from workers.replay.passes import (
    FINISHED,
    GROW_GAPS,
    NEED_CACHE,
    PAUSED,
    log_regular_gaps,
    next_pass_end,
    plan,
    walk_group,
)
from workers.replay.state import (
    ACTIVE,
    ADMISSIONS,
    ARRIVAL,
    BEGUN,
    BUSY,
    CHUNKED,
    COMMITTED_PREFILL,
    COMPUTED_NOW,
    CONTEXT_SUM,
    CUTTABLE,
    DECODE_CONTEXT,
    DECODE_N,
    DONE,
    DP_RANK,
    DUE_STEP,
    EFFECT,
    END,
    EVENTS_LEFT,
    FIRST_ADMIT,
    FIRST_END,
    FIRST_TOKEN,
    FREED_NOW,
    GAP_N,
    GAPS_USED,
    GENERATED,
    IDLE,
    LAST_EVENT,
    LAST_TOKEN,
    MAX_BATCHED_TOKENS,
    MAX_SEQS,
    NEW_HEAD,
    NEXT_SESSION,
    NOW,
    NUM_BLOCKS,
    NUM_DECODING,
    NUM_FRESH,
    NUM_REPLICAS,
    NUM_RUNNING,
    NUM_SESSIONS,
    NUM_WAITING,
    OUTPUT,
    PARTIAL,
    PASS_END,
    PASS_START,
    PHASE,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    PROMPT,
    REPEATS,
    RESERVED_BLOCKS,
    RUN_HEAD,
    SECOND_TOKEN,
    STATUS,
    STEP,
    WAIT_HEAD,
    WORKER,
    YOUNG_HEAD,
    blocks_for,
    gaps_of,
    limits_of,
    moments_of,
    numbers_of,
    passes_of,
    ranks_of,
    requests_of,
    stamps_of,
)


@bare_entry
def run(st):  # type: ignore[no-untyped-def]
    """Advance the replay until it ends or the host is needed; returns a code of `passes`."""
    number, moment, rank, passed = numbers_of(st), moments_of(st), ranks_of(st), passes_of(st)
    replicas = limits_of(st)[NUM_REPLICAS]
    while True:
        for w in range(replicas):
            if rank[w, PHASE] == IDLE and not form_pass(st, w):
                return NEED_CACHE
            if rank[w, PHASE] == BEGUN:
                code = plan(st, w, math.inf)
                if code != FINISHED:
                    return code
        number[EVENTS_LEFT] -= 1
        if number[EVENTS_LEFT] < 0:
            return PAUSED
        if number[GAPS_USED] + replicas > gaps_of(st).shape[0]:
            return GROW_GAPS
        is_free = number[FREED_NOW] > 0 and number[NEXT_SESSION] < number[NUM_SESSIONS]
        now = moment[NOW] if is_free else next_pass_end(st)
        if now == math.inf:
            return FINISHED
        boundary = np.nextafter(now, math.inf) if now == moment[NOW] else now
        moment[NOW] = now
        moment[LAST_EVENT] = max(moment[LAST_EVENT], now)
        for w in range(replicas):
            if rank[w, PHASE] == BUSY and passed[w, PASS_END] <= now:
                _commit(st, w, now)
        _release(st, now, boundary)


@inner
def form_pass(st, w):  # type: ignore[no-untyped-def]
    """Form a pass of replica w if it has work; False when its blocks may not suffice."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    waiting, running, decoding = rank[w, NUM_WAITING], rank[w, NUM_RUNNING], rank[w, NUM_DECODING]
    if waiting + running == 0:
        rank[w, ACTIVE] = 0
        return True
    rank[w, ACTIVE] = 1
    rank[w, EFFECT] = 1
    rank[w, PHASE] = BEGUN
    now = moments_of(st)[NOW]
    passes_of(st)[w, PASS_START] = now
    rank[w, DECODE_N] = decoding
    rank[w, DECODE_CONTEXT] = rank[w, CONTEXT_SUM]
    rank[w, GAP_N] = decoding
    rank[w, PREFILL_N] = 0
    rank[w, NUM_FRESH] = 0
    rank[w, COMPUTED_NOW] = 0
    prompt = np.int64(req[0, PROMPT])
    budget = limits[MAX_BATCHED_TOKENS] - decoding
    is_blocked = budget <= 0 or (limits[CHUNKED] == 0 and prompt > budget)
    if decoding > 0 and rank[w, PARTIAL] == 0 and (is_blocked or waiting == 0 or running >= limits[MAX_SEQS]):
        rank[w, REPEATS] = req[rank[w, RUN_HEAD], DUE_STEP] - rank[w, STEP]
        rank[w, CUTTABLE] = 1 if waiting == 0 and running < limits[MAX_SEQS] else 0
        return True
    rank[w, REPEATS] = 1
    rank[w, CUTTABLE] = 0
    return _compute_prompts(st, w, prompt, budget, now)


@inner
def _compute_prompts(st, w, prompt, budget, now):  # type: ignore[no-untyped-def]
    """The partly computed prompt goes on, others enter, as far as `budget` tokens go; False when blocks may not suffice."""
    limits, rank, req, stamp = limits_of(st), ranks_of(st), requests_of(st), stamps_of(st)
    blocks = blocks_for(limits, prompt + req[0, OUTPUT])
    count, ends, starts, complete = 0, np.int64(0), np.int64(0), 0
    computed = rank[w, PARTIAL]
    while budget > 0:
        if computed == 0:
            if rank[w, NUM_WAITING] == 0 or rank[w, NUM_RUNNING] >= limits[MAX_SEQS]:
                break
            if limits[CHUNKED] == 0 and prompt > budget:
                break
            if rank[w, RESERVED_BLOCKS] + blocks > limits[NUM_BLOCKS]:
                return False
            rank[w, RESERVED_BLOCKS] += blocks
            r = rank[w, WAIT_HEAD]
            stamp[r, FIRST_ADMIT] = now
            req[r, ADMISSIONS] = 1
            rank[w, WAIT_HEAD] = r + limits[NUM_REPLICAS]
            rank[w, NUM_WAITING] -= 1
            rank[w, NUM_RUNNING] += 1
        tokens = min(prompt - computed, budget)
        starts += computed
        computed += tokens
        ends += computed
        budget -= tokens
        count += 1
        if computed == prompt:
            complete += 1
            computed = 0
    rank[w, PARTIAL] = computed
    rank[w, PREFILL_N], rank[w, PREFILL_ISL], rank[w, PREFILL_PREFIX] = count, ends, starts
    rank[w, COMPUTED_NOW] = ends - starts
    rank[w, NUM_FRESH] = complete
    return True


@inner
def _commit(st, w, now):  # type: ignore[no-untyped-def]
    """The pass of replica w, or its repetitions, ended at `now`."""
    rank, req, stamp, number = ranks_of(st), requests_of(st), stamps_of(st), numbers_of(st)
    replicas, output = limits_of(st)[NUM_REPLICAS], req[0, OUTPUT]
    steps = rank[w, REPEATS]
    number[EVENTS_LEFT] -= steps >> 6
    number[COMMITTED_PREFILL] += rank[w, COMPUTED_NOW]
    log_regular_gaps(st, w, steps)
    rank[w, PHASE] = IDLE
    step = rank[w, STEP] + steps
    rank[w, STEP] = step
    rank[w, CONTEXT_SUM] += rank[w, NUM_DECODING] * steps
    first_end = passes_of(st)[w, FIRST_END]
    new = rank[w, NEW_HEAD]
    for r in range(rank[w, YOUNG_HEAD], new, replicas):
        stamp[r, SECOND_TOKEN] = first_end
    rank[w, YOUNG_HEAD] = new
    while rank[w, RUN_HEAD] < new and req[rank[w, RUN_HEAD], DUE_STEP] == step:
        rank[w, NUM_DECODING] -= 1
        rank[w, CONTEXT_SUM] -= req[0, PROMPT] + output
        _end(st, w, now)
    for r in range(new, new + rank[w, NUM_FRESH] * replicas, replicas):
        stamp[r, FIRST_TOKEN] = now
        if output == 1:
            _end(st, w, now)
            rank[w, YOUNG_HEAD] += replicas
            continue
        req[r, DUE_STEP] = step + output - 1
        rank[w, NUM_DECODING] += 1
        rank[w, CONTEXT_SUM] += req[0, PROMPT] + 1
    rank[w, NEW_HEAD] = new + rank[w, NUM_FRESH] * replicas


@inner
def _end(st, w, now):  # type: ignore[no-untyped-def]
    """The oldest request of replica w has its last token at `now`."""
    rank, req, stamp = ranks_of(st), requests_of(st), stamps_of(st)
    r = rank[w, RUN_HEAD]
    rank[w, RUN_HEAD] = r + limits_of(st)[NUM_REPLICAS]
    rank[w, NUM_RUNNING] -= 1
    rank[w, RESERVED_BLOCKS] -= blocks_for(limits_of(st), req[0, PROMPT] + req[0, OUTPUT])
    req[r, STATUS] = DONE
    req[r, GENERATED] = req[0, OUTPUT]
    stamp[r, LAST_TOKEN] = now
    stamp[r, END] = now
    numbers_of(st)[FREED_NOW] += 1


@inner
def _release(st, now, boundary):  # type: ignore[no-untyped-def]
    """A request for every free slot, round robin; a stretch that it may join ends at `boundary` or later."""
    rank, req, stamp, number = ranks_of(st), requests_of(st), stamps_of(st), numbers_of(st)
    replicas = limits_of(st)[NUM_REPLICAS]
    first = number[NEXT_SESSION]
    last = min(number[NUM_SESSIONS], first + number[FREED_NOW])
    number[FREED_NOW] = 0
    number[NEXT_SESSION] = last
    w = first % replicas
    for r in range(first, last):
        stamp[r, ARRIVAL] = now
        req[r, WORKER] = w
        req[r, DP_RANK] = 0
        rank[w, NUM_WAITING] += 1
        if rank[w, PHASE] == BUSY and rank[w, REPEATS] > 1 and rank[w, CUTTABLE] == 1:
            walk_group(st, w, rank[w, REPEATS], boundary)
        w = w + 1 if w + 1 < replicas else 0
