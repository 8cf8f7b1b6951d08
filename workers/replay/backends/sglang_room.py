"""Room for the next tokens of SGLang's running requests, and retraction when it is short (specification 7.7)."""

from workers.replay.backends.sglang_state import (
    FRESH,
    RETRACT_STEPS,
    leave_decode,
    radix_tree_of,
    release,
    remaining_output,
)
from workers.replay.compiled import inner
from workers.replay.radix import (
    EVICTABLE_PAGES,
    FREE_PAGES,
    evict,
)
from workers.replay.state import (
    BLOCK_SIZE,
    GENERATED,
    LAST_DECODE_MS,
    LAST_TOKEN,
    NONE,
    NUM_DRAFTS,
    NUM_RUNNING,
    OUTPUT,
    PROMPT,
    RATIO,
    RETRACTED,
    RUN_HEAD,
    RUN_NEXT,
    STEP,
    growth_of,
    limits_of,
    ranks_of,
    requests_of,
    sgl_reals_of,
    stamps_of,
    wait_push_back,
)


@inner
def room_of(st, s):  # type: ignore[no-untyped-def]
    """Free and evictable pages of rank s."""
    tree = radix_tree_of(st)
    return tree.nodes[s, FREE_PAGES] + tree.nodes[s, EVICTABLE_PAGES]


@inner
def growth_pages(st, s, passes):  # type: ignore[no-untyped-def]
    """New pages that decode pass number `passes` from now (0: the next one) needs: one per request with full pages."""
    limits, rank, growth = limits_of(st), ranks_of(st), growth_of(st)
    page = limits[BLOCK_SIZE]
    return growth[s * page + -(rank[s, STEP] + passes) % page]


@inner
def pages_needed(st, s):  # type: ignore[no-untyped-def]
    """New pages the next decode pass must be sure of; with speculation for the longest possible bursts."""
    limits, rank, req = limits_of(st), ranks_of(st), requests_of(st)
    num_drafts = limits[NUM_DRAFTS]
    page = limits[BLOCK_SIZE]
    if num_drafts == 0:
        return growth_pages(st, s, 0)
    need = 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        length = req[r, PROMPT] + req[r, GENERATED]
        burst = min(1 + num_drafts, req[r, OUTPUT] - req[r, GENERATED])
        need += (length + burst + page - 1) // page - (length + page - 1) // page
        r = req[r, RUN_NEXT]
    return need


@inner
def retract_until_it_fits(st, s):  # type: ignore[no-untyped-def]
    """Send requests back to the queue until the others have room, then trust the ratio they have shown so far."""
    rank, req, real = ranks_of(st), requests_of(st), sgl_reals_of(st)
    while rank[s, NUM_RUNNING] > 1 and pages_needed(st, s) > room_of(st, s):
        _retract(st, s, _victim(st, s))
        rank[s, RETRACTED] = 1
    if rank[s, RETRACTED] == 0:
        return
    generated, outputs = 0, 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        generated += req[r, OUTPUT] - remaining_output(st, s, r)
        outputs += req[r, OUTPUT]
        r = req[r, RUN_NEXT]
    real[s, RATIO] = min(1.0, (generated + RETRACT_STEPS * rank[s, NUM_RUNNING]) / (outputs + 1.0))


@inner
def _victim(st, s):  # type: ignore[no-untyped-def]
    """The running request with the fewest tokens; of those the longest prompt, of those the last in the list."""
    rank, req = ranks_of(st), requests_of(st)
    victim, fewest = NONE, 0
    r = rank[s, RUN_HEAD]
    while r != NONE:
        generated = req[r, OUTPUT] - remaining_output(st, s, r)
        if victim == NONE or generated < fewest or (generated == fewest and req[r, PROMPT] >= req[victim, PROMPT]):
            victim, fewest = r, generated
        r = req[r, RUN_NEXT]
    return victim


@inner
def _retract(st, s, r):  # type: ignore[no-untyped-def]
    limits, rank, req, stamp, real, tree = (
        limits_of(st),
        ranks_of(st),
        requests_of(st),
        stamps_of(st),
        sgl_reals_of(st),
        radix_tree_of(st),
    )
    page = limits[BLOCK_SIZE]
    req[r, GENERATED] = req[r, OUTPUT] - remaining_output(st, s, r)
    if req[r, FRESH] == 0:
        stamp[r, LAST_TOKEN] = real[s, LAST_DECODE_MS]
    leave_decode(st, s, r)
    release(st, s, r, req[r, PROMPT] + req[r, GENERATED])
    wait_push_back(st, s, r)
    wanted = (RETRACT_STEPS * rank[s, NUM_RUNNING] + page - 1) // page
    evict(tree, s, wanted - tree.nodes[s, FREE_PAGES])
