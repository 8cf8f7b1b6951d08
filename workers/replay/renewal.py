"""Compiled parts of a tick: records of stretches under way, and the fresh engine in a place that was left."""

from workers.replay.compiled import bare_entry
from workers.replay.kv_cache import take
from workers.replay.pass_records import note_pass_ended
from workers.replay.passes import lockstep_duration
from workers.replay.radix import EVICTABLE_PAGES, evict
from workers.replay.retained import radix_tree_of
from workers.replay.router import show_cache
from workers.replay.state import (
    BACKEND,
    BUSY,
    DEFER,
    DRAWS_USED,
    FIRST_END,
    FREE_BLOCKS,
    GATE_PASSES,
    HAS_LAST,
    INACTIVE_BLOCKS,
    NUM_BLOCKS,
    NUM_DP,
    NUM_PASSES,
    NUM_REPLICAS,
    PASS_START,
    PHASE,
    PREFILLED,
    RANK_COUNTER,
    RATIO,
    RATIO_START,
    REPEATS,
    SGLANG,
    STALLED,
    limits_of,
    passes_of,
    ranks_of,
    records_of,
    sgl_reals_of,
)


@bare_entry
def record_passes(st, tick):  # type: ignore[no-untyped-def]
    """Record, of every stretch under way, the last repetition that has ended by `tick`."""
    limits, rank, passed = limits_of(st), ranks_of(st), passes_of(st)
    num_dp = limits[NUM_DP]
    for w in range(limits[NUM_REPLICAS]):
        first = w * num_dp
        if rank[first, PHASE] != BUSY or rank[first, REPEATS] == 1 or passed[w, FIRST_END] > tick:
            continue
        now, ended = passed[w, PASS_START], 0
        while ended < rank[first, REPEATS]:
            after = now + lockstep_duration(st, w, ended)
            if after > tick:
                break
            now = after
            ended += 1
        note_pass_ended(st, w, ended - 1, lockstep_duration(st, w, ended - 1), now)


@bare_entry
def renew(st, w):  # type: ignore[no-untyped-def]
    """Place w, whose engine is gone, holds a new one: nothing cached, nothing counted."""
    limits, rank = limits_of(st), ranks_of(st)
    num_dp = limits[NUM_DP]
    for s in range(w * num_dp, (w + 1) * num_dp):
        if limits[BACKEND] == SGLANG:
            tree = radix_tree_of(st)
            evict(tree, s, tree.nodes[s, EVICTABLE_PAGES])
            sgl_reals_of(st)[s, RATIO] = sgl_reals_of(st)[s, RATIO_START]
        else:
            take(st, s, rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS])
            rank[s, FREE_BLOCKS], rank[s, INACTIVE_BLOCKS] = limits[NUM_BLOCKS], 0
        show_cache(st, s)
        for column in (RANK_COUNTER, NUM_PASSES, GATE_PASSES, PREFILLED, STALLED, DRAWS_USED):
            rank[s, column] = 0
        rank[s, DEFER] = 1
        records_of(st)[s, HAS_LAST] = 0
