"""Passes of SGLang ranks: prefill first, else decode (replay-engine specification, sections 7 to 9).

A pass either prefills and does nothing else, or gives every running request a token. Decode passes are never taken
one request at a time: finishes come from buckets by step, room and reservations are sums over the batch, so a stretch
of equal passes costs the same as one. Only speculation, whose bursts are drawn, walks the running requests. A running
request gets a token in every decode pass: its last one came with the rank's last decode pass or, while it is "fresh",
with its own prefill.
"""

from workers.replay.backends.sglang_decode import (
    commit_decode,
    plan_decode,
)
from workers.replay.backends.sglang_destination import finish_quiet, run_arrived
from workers.replay.backends.sglang_prefill import (
    commit_prefill,
    form_batch,
)
from workers.replay.compiled import inner
from workers.replay.completion import finish
from workers.replay.pass_records import note_decoding
from workers.replay.radix import (
    OVERFLOW,
)
from workers.replay.state import (
    ACTIVE,
    ARRIVED_HEAD,
    CONTEXT_LENGTH,
    CONTEXT_SUM,
    CUTTABLE,
    DECODE_CONTEXT,
    DECODE_N,
    EFFECT,
    GAP_N,
    GATE_PASSES,
    LAZY,
    MAY_REFUSE,
    NEW_NEXT,
    NONE,
    NUM_DP,
    NUM_RUNNING,
    NUM_WAITING,
    OTHERS_WAIT,
    PREFILL_DECODE_INTERVAL,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    PREFILLED,
    PROMPT,
    QUIET_HEAD,
    RATIO,
    RATIO_FLOOR,
    RATIO_START,
    REFUSED,
    REFUSED_HEAD,
    RETRACTED,
    WAIT_HEAD,
    WAIT_NEXT,
    WAIT_TAIL,
    limits_of,
    note_queued,
    ranks_of,
    requests_of,
    sgl_counters_of,
    sgl_reals_of,
)


@inner
def begin(st, s, now):  # type: ignore[no-untyped-def]
    """Start a pass of rank s; see state for the contract.

    While others wait for room on a decode rank, it does not prefill what it retracted; with nothing to decode either, its
    ratio falls to the floor. When the prefix tree is out of nodes the pass has no effect, so that the loop stops and the
    host can enlarge it.
    """
    limits, rank = limits_of(st), ranks_of(st)
    for column in (PREFILL_N, PREFILL_ISL, PREFILL_PREFIX, DECODE_N, DECODE_CONTEXT, GAP_N, EFFECT, CUTTABLE, LAZY):
        rank[s, column] = 0
    rank[s, RETRACTED] = 0
    if sgl_counters_of(st)[OVERFLOW] == 1:
        return 1
    if rank[s, MAY_REFUSE] == 1:
        _refuse_too_long(st, s)
    may_prefill = rank[s, NUM_WAITING] > 0 and not _is_gated(st, s)
    if rank[s, ARRIVED_HEAD] != NONE:
        run_arrived(st, s, now)
    if rank[s, OTHERS_WAIT] == 1:
        if rank[s, NUM_RUNNING] == 0:
            sgl_reals_of(st)[s, RATIO] = sgl_reals_of(st)[s, RATIO_FLOOR]
    elif may_prefill and rank[s, WAIT_HEAD] != NONE:
        form_batch(st, s, now)
    steps = 1
    if rank[s, PREFILL_N] > 0:
        rank[s, EFFECT] = 1
        if rank[s, PREFILL_ISL] > rank[s, PREFILL_PREFIX]:
            rank[s - s % limits[NUM_DP], PREFILLED] = 1
    elif rank[s, NUM_RUNNING] > 0:
        note_decoding(st, s, rank[s, NUM_RUNNING], rank[s, CONTEXT_SUM])
        steps = plan_decode(st, s)
    if rank[s, REFUSED_HEAD] != NONE or rank[s, QUIET_HEAD] != NONE:
        rank[s, EFFECT] = 1
        steps = 1
    return steps


@inner
def commit(st, s, steps, first_end, end):  # type: ignore[no-untyped-def]
    """The pass, or its `steps` repetitions, ended; see state for the contract."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    if rank[s, PREFILL_N] > 0:
        commit_prefill(st, s, end)
    elif rank[s, DECODE_N] > 0:
        commit_decode(st, s, steps, first_end, end)
    finish_quiet(st, s, end)
    r = rank[s, REFUSED_HEAD]
    rank[s, REFUSED_HEAD] = NONE
    while r != NONE:
        after = req[r, NEW_NEXT]
        finish(st, r, REFUSED, end)
        r = after
    if limits[PREFILL_DECODE_INTERVAL] > 0:
        _close_group_pass(st, s, steps)


@inner
def _refuse_too_long(st, s):  # type: ignore[no-untyped-def]
    """Take every waiting prompt that reaches the context limit out of the queue, wherever it stands."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    limit = limits[CONTEXT_LENGTH]
    last_refused = NONE
    before = NONE
    r = rank[s, WAIT_HEAD]
    while r != NONE:
        after = req[r, WAIT_NEXT]
        if req[r, PROMPT] < limit:
            before = r
        else:
            if before == NONE:
                rank[s, WAIT_HEAD] = after
            else:
                req[before, WAIT_NEXT] = after
            rank[s, NUM_WAITING] -= 1
            note_queued(st, s, r, -1)
            req[r, NEW_NEXT] = NONE
            if last_refused == NONE:
                rank[s, REFUSED_HEAD] = r
            else:
                req[last_refused, NEW_NEXT] = r
            last_refused = r
        r = after
    rank[s, WAIT_TAIL] = before


@inner
def _is_gated(st, s):  # type: ignore[no-untyped-def]
    """True while the prefill-decode interval forbids prefill to the group.

    Passes that may not prefill and have nothing to decode take no time, so without running requests the gate opens at
    once; such an idle moment also restores the start ratio.
    """
    limits, rank = limits_of(st), ranks_of(st)
    num_dp = limits[NUM_DP]
    first = s - s % num_dp
    if rank[first, GATE_PASSES] == 0:
        return False
    for t in range(first, first + num_dp):
        if rank[t, NUM_RUNNING] > 0:
            return True
    _open_gate(st, first)
    return False


@inner
def _open_gate(st, first):  # type: ignore[no-untyped-def]
    limits, rank, real = limits_of(st), ranks_of(st), sgl_reals_of(st)
    rank[first, GATE_PASSES] = 0
    for t in range(first, first + limits[NUM_DP]):
        real[t, RATIO] = real[t, RATIO_START]


@inner
def _close_group_pass(st, s, steps):  # type: ignore[no-untyped-def]
    """After the last active rank of the group: count its passes down, or close the gate behind a prefill."""
    limits, rank = limits_of(st), ranks_of(st)
    num_dp = limits[NUM_DP]
    first = s - s % num_dp
    for t in range(s + 1, first + num_dp):
        if rank[t, ACTIVE] == 1:
            return
    if rank[first, PREFILLED] == 1:
        rank[first, PREFILLED] = 0
        rank[first, GATE_PASSES] = limits[PREFILL_DECODE_INTERVAL]
    else:
        rank[first, GATE_PASSES] = max(0, rank[first, GATE_PASSES] - steps)
    if rank[first, GATE_PASSES] > 0:
        for t in range(first, first + num_dp):
            if rank[t, NUM_WAITING] + rank[t, NUM_RUNNING] > 0:
                return
        _open_gate(st, first)
