"""Admission to a vLLM or TensorRT-LLM rank: who may enter, what the cache already holds, what is billed.

Source: engine specification, sections 3.2, 3.3, 4.4, 4.7, 5 and 6.
"""

from workers.replay.compiled import inner
from workers.replay.completion import finish
from workers.replay.kv_cache import match, pin, release, take
from workers.replay.state import (
    BACKEND,
    BLOCK_SIZE,
    COMPUTED_NOW,
    CONTEXT_LENGTH,
    DONE,
    FREE_BLOCKS,
    GENERATED,
    HELD,
    HELD_BLOCKS,
    INACTIVE_BLOCKS,
    NONE,
    NUM_BLOCKS,
    NUM_DRAFTS,
    OUTPUT,
    PREFILL,
    PREFILL_ISL,
    PREFILL_N,
    PREFILL_PREFIX,
    PROMPT,
    REFUSED,
    REFUSED_HEAD,
    REGISTERED,
    RESERVED_BLOCKS,
    ROLE,
    STATUS,
    TRTLLM,
    WAIT_NEXT,
    blocks_for,
    limits_of,
    note_admission,
    ranks_of,
    requests_of,
    run_append,
    run_remove,
    wait_pop,
    whole_blocks,
)


@inner
def can_never_run(st, r):  # type: ignore[no-untyped-def]
    """Context limit reached by the prompt, or a fresh request larger than the whole pool."""
    limits, req = limits_of(st), requests_of(st)
    prompt = req[r, PROMPT]
    if limits[CONTEXT_LENGTH] != NONE and prompt >= limits[CONTEXT_LENGTH]:
        return True
    size = limits[BLOCK_SIZE]
    if limits[BACKEND] == TRTLLM:
        return prompt >= limits[NUM_BLOCKS] * size
    return req[r, GENERATED] == 0 and blocks_for(limits, prompt) > limits[NUM_BLOCKS]


@inner
def find(st, s, r, length):  # type: ignore[no-untyped-def]
    """(cached blocks usable at admission, how many of them are held); vLLM recomputes the last token before an output.

    Drafting costs it one more block.
    """
    limits = limits_of(st)
    if limits[BACKEND] == TRTLLM or requests_of(st)[r, OUTPUT] == 0:
        return match(st, s, r, whole_blocks(limits, length))
    found, held = match(st, s, r, whole_blocks(limits, max(0, length - 1)))
    if limits[NUM_DRAFTS] > 0 and found > 0:
        return match(st, s, r, found - 1)
    return found, held


@inner
def is_admissible(st, s, r, length, held):  # type: ignore[no-untyped-def]
    """vLLM: the known sequence fits now. TensorRT-LLM: it and all running ones fit until their last token."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    available = rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]
    if limits[BACKEND] == TRTLLM:
        need = blocks_for(limits, req[r, PROMPT] + req[r, OUTPUT])
        return need - held <= available - (rank[s, RESERVED_BLOCKS] - rank[s, HELD_BLOCKS])
    return blocks_for(limits, length) - held <= available


@inner
def bill_prompt(st, s, r, before, after):  # type: ignore[no-untyped-def]
    """Charge the prompt tokens among the computed tokens [before, after) of request r; False when there are none."""
    rank, req = ranks_of(st), requests_of(st)
    prompt = req[r, PROMPT]
    prefix, end = min(before, prompt), min(after, prompt)
    if end <= prefix:
        return False
    rank[s, PREFILL_N] += 1
    rank[s, PREFILL_ISL] += end
    rank[s, PREFILL_PREFIX] += prefix
    rank[s, COMPUTED_NOW] += after - before
    return True


@inner
def enter(st, s, r, found, tokens, now):  # type: ignore[no-untyped-def]
    """Move the waiting head r into the running list with `found` cached blocks and room for `tokens` more tokens."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    size = limits[BLOCK_SIZE]
    wait_pop(st, s)
    run_append(st, s, r)
    note_admission(st, r, now, found * size)
    if found > 0:
        pin(st, s, r, found)
    else:
        req[r, REGISTERED] = 0
    blocks = blocks_for(limits, found * size + tokens)
    take(st, s, blocks - found)
    rank[s, HELD_BLOCKS] += blocks
    rank[s, RESERVED_BLOCKS] += blocks_for(limits, req[r, PROMPT] + req[r, OUTPUT])


@inner
def refuse(st, s, r):  # type: ignore[no-untyped-def]
    """The waiting head can never run: it leaves at the end of this pass, marked by a status until then."""
    rank, req = ranks_of(st), requests_of(st)
    wait_pop(st, s)
    req[r, STATUS] = REFUSED
    req[r, WAIT_NEXT] = rank[s, REFUSED_HEAD]
    rank[s, REFUSED_HEAD] = r


@inner
def finish_refused(st, s, end):  # type: ignore[no-untyped-def]
    """Requests refused in this pass end with it."""
    rank, req = ranks_of(st), requests_of(st)
    r = rank[s, REFUSED_HEAD]
    while r != NONE:
        after = req[r, WAIT_NEXT]
        finish(st, r, REFUSED, end)
        r = after
    rank[s, REFUSED_HEAD] = NONE


@inner
def leave(st, s, r, computed, held, end):  # type: ignore[no-untyped-def]
    """Running request r is complete: give back its `held` blocks, or keep them for the hand-over of its prompt."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    run_remove(st, s, r)
    rank[s, HELD_BLOCKS] -= held
    rank[s, RESERVED_BLOCKS] -= blocks_for(limits, req[r, PROMPT] + req[r, OUTPUT])
    if limits[ROLE] == PREFILL:
        req[r, HELD] = held
    else:
        release(st, s, r, computed, held)
    finish(st, r, DONE, end)
