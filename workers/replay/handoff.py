"""Hand-over of requests from prefill to decode engines: destinations, transfers, activations, releases of the source.

Two states, address books `pre` and `dec`, hold the same requests: their prompts as one-token requests of the prefill pool,
and their tokens in the decode pool, which also keeps releases, sessions and the hand-over itself. vLLM and TensorRT-LLM
choose the source first, SGLang the destination. Lists are chained through columns of `handoffs`:

    REQUEST_*   per decode rank, first come first served: requests that want room there
    TRAVEL_*    per decode rank: transfers by (instant of landing, PLACE)
    FREE_*      per prefill rank: prompts whose destination runs, by round of activation; in it those that had to wait for the
                end of a pass there, rank by rank, before those that land just now, by PLACE

PLACE is the number of the arrival, of NUM_ARRIVALS; transfers that take no time come before the others that land at their
instant, in the order of departure, of NUM_DEPARTURES. Decode passes without duration end where they begin; while LATER is 1
the requests that end are chained from LATER_HEAD to LATER_TAIL by WAIT_NEXT, and what follows from their ends waits for the
end of the round.

Source: traffic specification, sections 1 and 5.
"""

import numpy as np

from workers.replay.backends import destination, sglang_destination
from workers.replay.backends.admission import can_never_run
from workers.replay.compiled import inner
from workers.replay.completion import abandon
from workers.replay.pass_records import in_order, note_here, note_left, num_ready, ready_rank
from workers.replay.passes import walk_group
from workers.replay.router import is_routed, pick
from workers.replay.state import (
    ADMISSIONS,
    BACKEND,
    BLOCK_SIZE,
    BUSY,
    CACHED_TOKENS,
    CONTEXT_LENGTH,
    DP_RANK,
    FIRST_ADMIT,
    FIRST_REUSED,
    FREE_HEAD,
    FREE_NEXT,
    FREE_PREV,
    FREE_TAIL,
    GB_PER_S,
    IDLE,
    MAX_REUSED,
    MAX_SEQS,
    MAY_SERVE,
    MISSING_ONLY,
    NONE,
    NOW,
    NUM_BLOCKS,
    NUM_DEPARTURES,
    NUM_DP,
    NUM_ROUNDS,
    NUM_RUNNING,
    PASS_END,
    PASS_START,
    PHASE,
    PLACE,
    PROMPT,
    REPEATS,
    REQUEST_HEAD,
    REQUEST_NEXT,
    REQUEST_TAIL,
    ROUND,
    ROUTED,
    SGLANG,
    SOURCE,
    TARGET,
    TOKEN_BYTES,
    TRAVEL_HEAD,
    TRAVEL_NEXT,
    TRAVEL_PREV,
    TRAVEL_TAIL,
    WORKER,
    blocks_for,
    handoffs_of,
    lands_of,
    limits_of,
    moments_of,
    note_queued,
    numbers_of,
    passes_of,
    ranks_of,
    requests_of,
    sources_of,
    stamps_of,
    targets_of,
    transfer_of,
    wait_push_back,
)

_AT_ONCE = 1 << 40
"""More than there are departures."""


@inner
def is_destination_first(dec):  # type: ignore[no-untyped-def]
    """SGLang reserves room at the destination before the prompt is computed."""
    return limits_of(dec)[BACKEND] == SGLANG


@inner
def is_busy(st, s):  # type: ignore[no-untyped-def]
    """True while the replica of rank s is in a pass, also one whose duration the host is asked for."""
    num_dp = limits_of(st)[NUM_DP]
    return ranks_of(st)[s - s % num_dp, PHASE] != IDLE


@inner
def route(st, r):  # type: ignore[no-untyped-def]
    """The rank that serves request r: by cost, or round robin over all ranks of the pool, replica by replica."""
    number, req = numbers_of(st), requests_of(st)
    num_dp = limits_of(st)[NUM_DP]
    if is_routed(st):
        s = pick(st, r)
    else:
        place = number[ROUTED] % num_ready(st)
        number[ROUTED] = place + 1
        s = ready_rank(st, place)
    req[r, WORKER] = s // num_dp
    req[r, DP_RANK] = s % num_dp
    return s


@inner
def queue_prompt(pre, dec, r):  # type: ignore[no-untyped-def]
    """Request r waits at a prefill rank."""
    s = route(pre, r)
    handoffs_of(dec)[r, SOURCE] = s
    wait_push_back(pre, s, r)
    note_here(pre, s)


@inner
def request_destination(pre, dec, r):  # type: ignore[no-untyped-def]
    """Request r waits for room on a decode rank; one between passes serves the head of its queue at once.

    A prompt that no decode rank can ever hold ends here.
    """
    handoff, target = handoffs_of(dec), targets_of(dec)
    t = route(dec, r)
    note_here(dec, t)
    handoff[r, TARGET] = t
    if _can_never_hold(dec, r):
        abandon(dec, r, moments_of(dec)[NOW])
        if not is_destination_first(dec):
            _list_source(dec, r)
        return
    note_queued(dec, t, r, 1)
    handoff[r, REQUEST_NEXT] = NONE
    if target[t, REQUEST_TAIL] == NONE:
        target[t, REQUEST_HEAD] = r
    else:
        handoff[target[t, REQUEST_TAIL], REQUEST_NEXT] = r
    target[t, REQUEST_TAIL] = r
    if not is_busy(dec, t):
        _reserve_head(pre, dec, t)


@inner
def _can_never_hold(dec, r):  # type: ignore[no-untyped-def]
    """Prompt r exceeds the context limit or the whole pool of a decode rank."""
    limits, prompt = limits_of(dec), np.int64(requests_of(dec)[r, PROMPT])
    if not is_destination_first(dec):
        return can_never_run(dec, r)
    is_too_long = limits[CONTEXT_LENGTH] != NONE and prompt >= limits[CONTEXT_LENGTH]
    return is_too_long or blocks_for(limits, prompt) > limits[NUM_BLOCKS]


@inner
def _reserve_head(pre, dec, t):  # type: ignore[no-untyped-def]
    """Give the first request in the queue of decode rank t its room; False if it must wait."""
    handoff, target = handoffs_of(dec), targets_of(dec)
    r = target[t, REQUEST_HEAD]
    cached = sglang_destination.reserve(dec, t, r) if is_destination_first(dec) else destination.reserve(dec, t, r)
    if cached == NONE:
        return False
    target[t, REQUEST_HEAD] = handoff[r, REQUEST_NEXT]
    if target[t, REQUEST_HEAD] == NONE:
        target[t, REQUEST_TAIL] = NONE
    handoff[r, CACHED_TOKENS] = cached
    if is_destination_first(dec):
        queue_prompt(pre, dec, r)
    else:
        depart(dec, r)
    return True


@inner
def transfer_ms(dec, r):  # type: ignore[no-untyped-def]
    """Duration of the transfer of prompt r, ms."""
    rate = transfer_of(dec)
    if rate[TOKEN_BYTES] == 0.0 or rate[GB_PER_S] == 0.0:
        return 0.0
    tokens = np.int64(requests_of(dec)[r, PROMPT])
    if rate[MISSING_ONLY] != 0.0:
        limits = limits_of(dec)
        tokens = blocks_for(limits, tokens) * limits[BLOCK_SIZE] - handoffs_of(dec)[r, CACHED_TOKENS]
    return tokens * rate[TOKEN_BYTES] / (rate[GB_PER_S] * 1e9) * 1000.0


@inner
def depart(dec, r):  # type: ignore[no-untyped-def]
    """The KV of request r leaves its source now: insert it among the transfers, nearly always at the end."""
    handoff, target, lands = handoffs_of(dec), targets_of(dec), lands_of(dec)
    duration = transfer_ms(dec, r)
    t = handoff[r, TARGET]
    lands[r] = moments_of(dec)[NOW] + duration
    if duration == 0.0:
        number = numbers_of(dec)
        handoff[r, PLACE] = number[NUM_DEPARTURES] - _AT_ONCE
        number[NUM_DEPARTURES] += 1
    before, after = target[t, TRAVEL_TAIL], NONE
    while before != NONE and (
        lands[before] > lands[r] or (lands[before] == lands[r] and handoff[before, PLACE] > handoff[r, PLACE])
    ):
        before, after = handoff[before, TRAVEL_PREV], before
    handoff[r, TRAVEL_PREV], handoff[r, TRAVEL_NEXT] = before, after
    if before == NONE:
        target[t, TRAVEL_HEAD] = r
    else:
        handoff[before, TRAVEL_NEXT] = r
    if after == NONE:
        target[t, TRAVEL_TAIL] = r
    else:
        handoff[after, TRAVEL_PREV] = r


@inner
def note_prefilled(pre, dec, r):  # type: ignore[no-untyped-def]
    """The prompt of request r is computed: its admissions so far."""
    stamp = stamps_of(dec)
    before, after = requests_of(pre), requests_of(dec)
    for column in (ADMISSIONS, FIRST_REUSED, MAX_REUSED):
        after[r, column] = before[r, column]
    stamp[r, FIRST_ADMIT] = stamps_of(pre)[r, FIRST_ADMIT]


@inner
def hand_over(pre, dec, now):  # type: ignore[no-untyped-def]
    """Reservations and activations on decode engines between passes until nothing changes, then releases of sources.

    True if anything was reserved or activated.
    """
    any_changed, changed = False, True
    while changed:
        changed = _activate_landed(dec, now)
        changed |= serve_queues(pre, dec)
        any_changed |= changed
    _free_sources(pre, dec)
    return any_changed


@inner
def may_fit(dec, t, r):  # type: ignore[no-untyped-def]
    """False when request r surely gets no room on decode rank t before another leaves it."""
    if is_destination_first(dec):
        return sglang_destination.may_fit(dec, t, r)
    _, fits = destination.cached_at_destination(dec, t, r)
    return fits and ranks_of(dec)[t, NUM_RUNNING] < limits_of(dec)[MAX_SEQS]


@inner
def serve_queues(pre, dec):  # type: ignore[no-untyped-def]
    """One reservation per pass end and per activation of a rank; True if there was one."""
    target = targets_of(dec)
    served = False
    num_dp = limits_of(dec)[NUM_DP]
    for i in range(target.shape[0]):
        t = in_order(dec, i // num_dp) * num_dp + i % num_dp
        while target[t, MAY_SERVE] > 0 and target[t, REQUEST_HEAD] != NONE and not is_busy(dec, t):
            if not _reserve_head(pre, dec, t):
                break
            target[t, MAY_SERVE] -= 1
            served = True
    return served


@inner
def _activate_landed(dec, now):  # type: ignore[no-untyped-def]
    handoff, target, lands = handoffs_of(dec), targets_of(dec), lands_of(dec)
    any_landed = False
    numbers_of(dec)[NUM_ROUNDS] += 1
    num_dp = limits_of(dec)[NUM_DP]
    for i in range(target.shape[0]):
        t = in_order(dec, i // num_dp) * num_dp + i % num_dp
        r = target[t, TRAVEL_HEAD]
        if r == NONE or lands[r] > now or is_busy(dec, t):
            continue
        any_landed = True
        while r != NONE and lands[r] <= now:
            if is_destination_first(dec):
                sglang_destination.activate(dec, t, r)
            else:
                destination.activate(dec, t, r)
            target[t, MAY_SERVE] += 1
            _list_source(dec, r)
            r = handoff[r, TRAVEL_NEXT]
        target[t, TRAVEL_HEAD] = r
        if r == NONE:
            target[t, TRAVEL_TAIL] = NONE
        else:
            handoff[r, TRAVEL_PREV] = NONE
    return any_landed


@inner
def _list_source(dec, r):  # type: ignore[no-untyped-def]
    """The source blocks of request r may be freed: insert it, nearly always at the end."""
    handoff, source, lands = handoffs_of(dec), sources_of(dec), lands_of(dec)
    s, now = handoff[r, SOURCE], moments_of(dec)[NOW]
    handoff[r, ROUND] = numbers_of(dec)[NUM_ROUNDS]
    before, after = source[s, FREE_TAIL], NONE
    while (
        before != NONE
        and handoff[before, ROUND] == handoff[r, ROUND]
        and lands[before] == now
        and (lands[r] < now or (lands[r] == now and handoff[before, PLACE] > handoff[r, PLACE]))
    ):
        before, after = handoff[before, FREE_PREV], before
    handoff[r, FREE_PREV], handoff[r, FREE_NEXT] = before, after
    if before == NONE:
        source[s, FREE_HEAD] = r
    else:
        handoff[before, FREE_NEXT] = r
    if after == NONE:
        source[s, FREE_TAIL] = r
    else:
        handoff[after, FREE_PREV] = r


@inner
def _free_sources(pre, dec):  # type: ignore[no-untyped-def]
    """Prefill engines between passes give back the prompts that run elsewhere now."""
    handoff, source = handoffs_of(dec), sources_of(dec)
    for s in range(source.shape[0]):
        if source[s, FREE_HEAD] == NONE or is_busy(pre, s):
            continue
        r = source[s, FREE_HEAD]
        while r != NONE:
            if is_destination_first(dec):
                sglang_destination.release_source(pre, s, r)
            else:
                destination.release_source(pre, s, r)
            note_left(pre, s, moments_of(dec)[NOW])
            r = handoff[r, FREE_NEXT]
        source[s, FREE_HEAD] = NONE
        source[s, FREE_TAIL] = NONE


@inner
def cut(dec, w, horizon):  # type: ignore[no-untyped-def]
    """Let the stretch of decode replica w end with its first pass that reaches `horizon`: something waits for that."""
    rank, passed = ranks_of(dec), passes_of(dec)
    first = w * limits_of(dec)[NUM_DP]
    if rank[first, PHASE] == BUSY and rank[first, REPEATS] > 1 and passed[w, PASS_END] > horizon:
        walk_group(dec, w, rank[first, REPEATS], max(horizon, np.nextafter(passed[w, PASS_START], np.inf)))


@inner
def serves_next(dec, w):  # type: ignore[no-untyped-def]
    """True when the head of a queue of decode replica w fits, so that the end of the next pass serves it."""
    target = targets_of(dec)
    num_dp = limits_of(dec)[NUM_DP]
    for t in range(w * num_dp, (w + 1) * num_dp):
        r = target[t, REQUEST_HEAD]
        if r != NONE and may_fit(dec, t, r):
            return True
    return False
