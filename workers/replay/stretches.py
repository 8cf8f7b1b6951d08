"""Stretches of decode passes under way, as far as a KV-aware router sees what they evict.

A stretch takes the blocks of all its passes when it ends. The router hears of evictions when each single pass ends, so
before it decides, the blocks of the passes that have ended by then are taken: those that are SETTLED.
"""

import math

import numpy as np

from workers.replay.backends.decoding import growth_of_step
from workers.replay.backends.sglang_room import growth_pages
from workers.replay.backends.sglang_state import make_room
from workers.replay.compiled import inner
from workers.replay.kv_cache import take
from workers.replay.passes import lockstep_duration
from workers.replay.radix import FREE_PAGES
from workers.replay.retained import radix_tree_of
from workers.replay.router import show_cache
from workers.replay.state import (
    ACTIVE,
    BACKEND,
    BLOCK_SIZE,
    BUSY,
    CACHING,
    DECODE_CONTEXT,
    DECODE_N,
    FREE_BLOCKS,
    HELD_BLOCKS,
    LAZY,
    NUM_DP,
    NUM_REPLICAS,
    NUM_RUNNING,
    PASS_START,
    PHASE,
    REPEATS,
    SETTLED,
    SGLANG,
    limits_of,
    passes_of,
    ranks_of,
)
from workers.replay.step_lookup import walk


@inner
def settle(st, now):  # type: ignore[no-untyped-def]
    """Take the blocks of all passes that have ended by `now` within stretches that may have to evict."""
    limits, rank = limits_of(st), ranks_of(st)
    num_dp = limits[NUM_DP]
    if limits[CACHING] == 0:
        return
    for w in range(limits[NUM_REPLICAS]):
        first = w * num_dp
        if rank[first, PHASE] != BUSY or rank[first, REPEATS] == 1:
            continue
        evicts = False
        for s in range(first, first + num_dp):
            evicts |= rank[s, ACTIVE] == 1 and rank[s, LAZY] == 1 and _may_evict(st, s, rank[first, REPEATS])
        if not evicts:
            continue
        ended = _ended_by(st, w, now)
        for s in range(first, first + num_dp):
            if rank[s, ACTIVE] == 1 and rank[s, LAZY] == 1 and ended > rank[s, SETTLED]:
                _take(st, s, ended)
                show_cache(st, s)


@inner
def _may_evict(st, s, steps):  # type: ignore[no-untyped-def]
    """False when rank s has free blocks for `steps` passes of all that runs there."""
    limits, rank = limits_of(st), ranks_of(st)
    free = radix_tree_of(st).nodes[s, FREE_PAGES] if limits[BACKEND] == SGLANG else rank[s, FREE_BLOCKS]
    return free < rank[s, NUM_RUNNING] * (steps // limits[BLOCK_SIZE] + 1)


@inner
def _ended_by(st, w, now):  # type: ignore[no-untyped-def]
    """Passes of replica w's stretch that have ended by `now`; the last one has not."""
    rank, num_dp = ranks_of(st), limits_of(st)[NUM_DP]
    steps = rank[w * num_dp, REPEATS]
    ended, end = 0, passes_of(st)[w, PASS_START]
    if num_dp == 1:
        after = np.nextafter(now, math.inf)
        ended, _, end = walk(st, rank[w, DECODE_N], rank[w, DECODE_CONTEXT], steps - 1, end, after)
        return ended if end <= now else ended - 1
    while ended < steps - 1:
        end += lockstep_duration(st, w, ended)
        if end > now:
            break
        ended += 1
    return ended


@inner
def _take(st, s, ended):  # type: ignore[no-untyped-def]
    """The blocks of rank s for its first `ended` passes, less those it has."""
    rank = ranks_of(st)
    settled = rank[s, SETTLED]
    if limits_of(st)[BACKEND] == SGLANG:
        pages = 0
        for each in range(settled, ended):
            pages += growth_pages(st, s, each)
        make_room(st, s, pages)
    else:
        need = growth_of_step(st, s, ended) - growth_of_step(st, s, settled)
        take(st, s, need)
        rank[s, HELD_BLOCKS] += need
    rank[s, SETTLED] = ended
