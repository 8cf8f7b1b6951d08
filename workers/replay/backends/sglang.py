"""Passes of SGLang ranks: prefill first, else decode (replay-engine specification, sections 7 to 9).

A pass either prefills and does nothing else, or gives every running request a token. Decode passes are never taken
one request at a time: finishes come from buckets by step, room and reservations are sums over the batch, so a stretch
of equal passes costs the same as one. Only speculation, whose bursts are drawn, walks the running requests. A running
request gets a token in every decode pass: its last one came with the rank's last decode pass or, while it is "fresh",
with its own prefill.
"""

from workers.replay.backends.sglang_decode import commit_decode, plan_decode
from workers.replay.backends.sglang_prefill import commit_prefill, form_batch
from workers.replay.backends.sglang_state import (
    BATCH_NEXT,
    GATE_PASSES,
    MAY_REFUSE,
    PREFILLED,
    RATIO,
    RATIO_START,
    REFUSED_HEAD,
    RETRACTED,
)
from workers.replay.compiled import inner
from workers.replay.radix import OVERFLOW
from workers.replay.state import (
    ACTIVE,
    CONTEXT_LENGTH,
    CUTTABLE,
    DECODE_CONTEXT,
    DECODE_N,
    EFFECT,
    GAP_N,
    LAZY,
    NONE,
    NUM_DP,
    NUM_RUNNING,
    NUM_WAITING,
    PREFILL_DECODE_INTERVAL,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    REFUSED,
    WAIT_HEAD,
    WAIT_TAIL,
    finish,
)


@inner
def begin(st, s, now):  # type: ignore[no-untyped-def]
    """Start a pass of rank s; see state for the contract.

    When the prefix tree is out of nodes the pass has no effect, so that the loop stops and the host can enlarge it.
    """
    rank, limits, number = st.rank, st.limits, st.sglang.number
    for column in (PREFILL_N, PREFILL_ISL, PREFILL_PREFIX, DECODE_N, DECODE_CONTEXT, GAP_N, EFFECT, CUTTABLE, LAZY):
        rank[s, column] = 0
    number[s, RETRACTED] = 0
    if st.sglang.tree.counters[OVERFLOW] == 1:
        return 1
    if number[s, MAY_REFUSE] == 1:
        _refuse_too_long(st, s)
    if rank[s, NUM_WAITING] > 0 and not _is_gated(st, s):
        form_batch(st, s, now)
    steps = 1
    if rank[s, PREFILL_N] > 0:
        rank[s, EFFECT] = 1
        if rank[s, PREFILL_ISL] > rank[s, PREFILL_PREFIX]:
            number[s - s % limits[NUM_DP], PREFILLED] = 1
    elif rank[s, NUM_RUNNING] > 0:
        steps = plan_decode(st, s)
    if number[s, REFUSED_HEAD] != NONE:
        rank[s, EFFECT] = 1
        steps = 1
    return steps


@inner
def commit(st, s, steps, first_end, end):  # type: ignore[no-untyped-def]
    """The pass, or its `steps` repetitions, ended; see state for the contract."""
    rank, number = st.rank, st.sglang.number
    if rank[s, PREFILL_N] > 0:
        commit_prefill(st, s, end)
    elif rank[s, DECODE_N] > 0:
        commit_decode(st, s, steps, first_end, end)
    r = number[s, REFUSED_HEAD]
    number[s, REFUSED_HEAD] = NONE
    while r != NONE:
        after = st.sglang.request[r, BATCH_NEXT]
        finish(st, r, REFUSED, end)
        r = after
    if st.limits[PREFILL_DECODE_INTERVAL] > 0:
        _close_group_pass(st, s, steps)


@inner
def _refuse_too_long(st, s):  # type: ignore[no-untyped-def]
    """Take every waiting prompt that reaches the context limit out of the queue, wherever it stands."""
    rank, req, sg = st.rank, st.req, st.sglang
    limit = st.limits[CONTEXT_LENGTH]
    last_refused = NONE
    before = NONE
    r = rank[s, WAIT_HEAD]
    while r != NONE:
        after = req.wait_next[r]
        if req.prompt[r] < limit:
            before = r
        else:
            if before == NONE:
                rank[s, WAIT_HEAD] = after
            else:
                req.wait_next[before] = after
            rank[s, NUM_WAITING] -= 1
            sg.request[r, BATCH_NEXT] = NONE
            if last_refused == NONE:
                sg.number[s, REFUSED_HEAD] = r
            else:
                sg.request[last_refused, BATCH_NEXT] = r
            last_refused = r
        r = after
    rank[s, WAIT_TAIL] = before


@inner
def _is_gated(st, s):  # type: ignore[no-untyped-def]
    """True while the prefill-decode interval forbids prefill to the group.

    Passes that may not prefill and have nothing to decode take no time, so without running requests the gate opens at
    once; such an idle moment also restores the start ratio.
    """
    number, num_dp = st.sglang.number, st.limits[NUM_DP]
    first = s - s % num_dp
    if number[first, GATE_PASSES] == 0:
        return False
    for t in range(first, first + num_dp):
        if st.rank[t, NUM_RUNNING] > 0:
            return True
    _open_gate(st, first)
    return False


@inner
def _open_gate(st, first):  # type: ignore[no-untyped-def]
    st.sglang.number[first, GATE_PASSES] = 0
    for t in range(first, first + st.limits[NUM_DP]):
        st.sglang.real[t, RATIO] = st.sglang.real[t, RATIO_START]


@inner
def _close_group_pass(st, s, steps):  # type: ignore[no-untyped-def]
    """After the last active rank of the group: count its passes down, or close the gate behind a prefill."""
    rank, number, num_dp = st.rank, st.sglang.number, st.limits[NUM_DP]
    first = s - s % num_dp
    for t in range(s + 1, first + num_dp):
        if rank[t, ACTIVE] == 1:
            return
    if number[first, PREFILLED] == 1:
        number[first, PREFILLED] = 0
        number[first, GATE_PASSES] = st.limits[PREFILL_DECODE_INTERVAL]
    else:
        number[first, GATE_PASSES] = max(0, number[first, GATE_PASSES] - steps)
    if number[first, GATE_PASSES] > 0:
        for t in range(first, first + num_dp):
            if rank[t, NUM_WAITING] + rank[t, NUM_RUNNING] > 0:
                return
        _open_gate(st, first)
