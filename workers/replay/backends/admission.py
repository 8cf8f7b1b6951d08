"""Admission to a vLLM or TensorRT-LLM rank: who may enter, what the cache already holds, what is billed.

Source: engine specification, sections 3.2, 3.3, 4.4, 4.7, 5 and 6.
"""

from numba import njit

from workers.replay.kv_cache import match, pin, take
from workers.replay.state import (
    BACKEND,
    BLOCK_SIZE,
    COMMITTED_PREFILL,
    CONTEXT_LENGTH,
    FREE_BLOCKS,
    HELD_BLOCKS,
    INACTIVE_BLOCKS,
    NONE,
    NUM_BLOCKS,
    NUM_DRAFTS,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    REFUSED,
    RESERVED_BLOCKS,
    RING_MASK,
    TRTLLM,
    finish,
    note_admission,
    run_append,
    wait_pop,
)


@njit(cache=True, nogil=True)
def can_never_run(st, r):  # type: ignore[no-untyped-def]
    """Context limit reached by the prompt, or a fresh request larger than the whole pool."""
    limits = st.limits
    prompt = st.req.prompt[r]
    if limits[CONTEXT_LENGTH] != NONE and prompt >= limits[CONTEXT_LENGTH]:
        return True
    size = limits[BLOCK_SIZE]
    if limits[BACKEND] == TRTLLM:
        return prompt >= limits[NUM_BLOCKS] * size
    return st.req.generated[r] == 0 and (prompt + size - 1) // size > limits[NUM_BLOCKS]


@njit(cache=True, nogil=True)
def find(st, s, r, length):  # type: ignore[no-untyped-def]
    """(cached blocks usable at admission, how many of them are held); vLLM recomputes at least the last known token.

    Drafting costs it one more block.
    """
    limits = st.limits
    if limits[BACKEND] == TRTLLM:
        return match(st, s, r, length // limits[BLOCK_SIZE])
    found, held = match(st, s, r, max(0, length - 1) // limits[BLOCK_SIZE])
    if limits[NUM_DRAFTS] > 0 and found > 0:
        return match(st, s, r, found - 1)
    return found, held


@njit(cache=True, nogil=True)
def is_admissible(st, s, r, length, held):  # type: ignore[no-untyped-def]
    """vLLM: the known sequence fits now. TensorRT-LLM: it and all running ones fit until their last token."""
    rank, limits = st.rank, st.limits
    size = limits[BLOCK_SIZE]
    available = rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]
    if limits[BACKEND] == TRTLLM:
        need = (st.req.prompt[r] + st.req.output[r] + size - 1) // size
        return need - held <= available - (rank[s, RESERVED_BLOCKS] - rank[s, HELD_BLOCKS])
    return (length + size - 1) // size - held <= available


@njit(cache=True, nogil=True)
def bill_prompt(st, s, r, before, after):  # type: ignore[no-untyped-def]
    """Charge the prompt tokens among the computed tokens [before, after) of request r; False when there are none."""
    rank = st.rank
    prompt = st.req.prompt[r]
    prefix, end = min(before, prompt), min(after, prompt)
    if end <= prefix:
        return False
    rank[s, PREFILL_N] += 1
    rank[s, PREFILL_ISL] += end
    rank[s, PREFILL_PREFIX] += prefix
    st.clock.number[COMMITTED_PREFILL] += after - before
    return True


@njit(cache=True, nogil=True)
def enter(st, s, r, found, tokens, now):  # type: ignore[no-untyped-def]
    """Move the waiting head r into the running list with `found` cached blocks and room for `tokens` more tokens."""
    rank, req = st.rank, st.req
    size = st.limits[BLOCK_SIZE]
    wait_pop(st, s)
    run_append(st, s, r)
    note_admission(st, r, now, found * size)
    if found > 0:
        pin(st, s, r, found)
    else:
        st.blocks.registered[r] = 0
    blocks = (found * size + tokens + size - 1) // size
    take(st, s, blocks - found)
    rank[s, HELD_BLOCKS] += blocks
    rank[s, RESERVED_BLOCKS] += (req.prompt[r] + req.output[r] + size - 1) // size


@njit(cache=True, nogil=True)
def refuse(st, s, r):  # type: ignore[no-untyped-def]
    """The waiting head can never run: it leaves at the end of this pass, marked by a status until then."""
    wait_pop(st, s)
    st.req.status[r] = REFUSED
    st.req.wait_next[r] = st.blocks.ring_head[s, st.limits[RING_MASK] + 1]
    st.blocks.ring_head[s, st.limits[RING_MASK] + 1] = r


@njit(cache=True, nogil=True)
def finish_refused(st, s, end):  # type: ignore[no-untyped-def]
    last = st.limits[RING_MASK] + 1
    r = st.blocks.ring_head[s, last]
    while r != NONE:
        after = st.req.wait_next[r]
        finish(st, r, REFUSED, end)
        r = after
    st.blocks.ring_head[s, last] = NONE
