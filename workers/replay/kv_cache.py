"""Block pools of vLLM and TensorRT-LLM ranks with exact prefix reuse, by extents instead of single blocks.

Identity of a full block is everything up to its end, so the sequences of all requests form a tree; `prefix_tree` cuts it
into nodes that every request uses from their first block on. Blocks of a node are cached from its start without holes:
whoever references a block references its ancestors, and a release puts the tail before the head into the LRU list, so
eviction takes descendants first. One count per node (an *extent*) therefore says which blocks are cached, one reference
count who holds them, and one LRU entry stands for all of them; eviction shortens the oldest extent from its end.

A request's sequence is its shared nodes, root first, then its own extent: the blocks no other request has.
A block that is computed although a copy of it is cached (the last block of a prompt that ends on a block boundary) is a
second physical copy; the oldest answers look-ups. Such *copies* exist for one-block nodes only and have extents of their own.

Extent numbers: rank s's state of shared node k is s * K + k; then the requests' own extents; then copies; then one LRU
sentinel per rank. Source: engine specification, sections 4 and 5.
"""

from workers.replay.compiled import inner
from workers.replay.state import (
    CACHING,
    CHANGED_HEAD,
    CHANGED_NEXT,
    COPIES_USED,
    FIRST_COPY,
    FIRST_SENTINEL,
    FREE_BLOCKS,
    FREE_COPY,
    INACTIVE_BLOCKS,
    NONE,
    NUM_COPIES,
    NUM_NODES,
    OWN_BY_BLOCK,
    OWN_EXTENT,
    OWN_START,
    OWNER_COPY,
    PATH_END,
    PATH_START,
    REGISTERED,
    TIMES_RELEASED,
    UNCHANGED,
    copies_of,
    extents_of,
    limits_of,
    loads_of,
    paths_of,
    ranks_of,
    requests_of,
    routes_of,
    whole_blocks,
)

# Columns of extents: cached blocks, holders, links of the LRU list, next younger copy. Columns of copies. Paths: see match.
CACHED, REFS, LRU_PREV, LRU_NEXT, NEXT_COPY = range(5)
COPY_EXTENT, COPY_OWNER, OWNER_NEXT = range(3)

SENTINEL_ROWS = 4
"""Rows from one rank's sentinel to the next: a cache line, as several threads may write to them."""


@inner
def take(st, s, count):  # type: ignore[no-untyped-def]
    """Allocate `count` private blocks: free ones first, then the tails of the least recently released extents.

    The caller has checked that free and inactive blocks suffice.
    """
    limits, rank, ext = limits_of(st), ranks_of(st), extents_of(st)
    missing = count - rank[s, FREE_BLOCKS]
    if missing <= 0:
        rank[s, FREE_BLOCKS] -= count
        return
    rank[s, FREE_BLOCKS] = 0
    rank[s, INACTIVE_BLOCKS] -= missing
    sentinel = limits[FIRST_SENTINEL] + s * SENTINEL_ROWS
    while missing > 0:
        extent = ext[sentinel, LRU_NEXT]
        cut = min(missing, ext[extent, CACHED])
        ext[extent, CACHED] -= cut
        missing -= cut
        _note_change(st, extent)
        if ext[extent, CACHED] == 0:
            lru_remove(st, extent)
            if limits[NUM_COPIES] > 0:
                _forget(st, extent)


@inner
def _note_change(st, extent):  # type: ignore[no-untyped-def]
    """The router, if there is one, will see what a shared extent holds at the end of this pass."""
    route = routes_of(st)
    if extent >= route.shape[0] or route[extent, CHANGED_NEXT] != UNCHANGED:
        return
    load = loads_of(st)
    s = extent // limits_of(st)[NUM_NODES]
    route[extent, CHANGED_NEXT] = load[s, CHANGED_HEAD]
    load[s, CHANGED_HEAD] = extent


@inner
def lru_remove(st, extent):  # type: ignore[no-untyped-def]
    """Take an extent out of its LRU list."""
    ext = extents_of(st)
    before, after = ext[extent, LRU_PREV], ext[extent, LRU_NEXT]
    ext[before, LRU_NEXT] = after
    ext[after, LRU_PREV] = before


@inner
def lru_append(st, s, extent):  # type: ignore[no-untyped-def]
    """An extent nobody holds any more becomes the last to be evicted; its blocks count as inactive."""
    limits, rank, ext = limits_of(st), ranks_of(st), extents_of(st)
    sentinel = limits[FIRST_SENTINEL] + s * SENTINEL_ROWS
    last = ext[sentinel, LRU_PREV]
    ext[last, LRU_NEXT] = extent
    ext[extent, LRU_PREV] = last
    ext[extent, LRU_NEXT] = sentinel
    ext[sentinel, LRU_PREV] = extent
    rank[s, INACTIVE_BLOCKS] += ext[extent, CACHED]


@inner
def match(st, s, r, limit):  # type: ignore[no-untyped-def]
    """(cached leading blocks of request r, at most `limit`; how many of them somebody holds)."""
    limits, req, ext, way = limits_of(st), requests_of(st), extents_of(st), paths_of(st)
    found, held = 0, 0
    if limits[CACHING] == 0:
        return 0, 0
    base = s * limits[NUM_NODES]
    for j in range(req[r, PATH_START], req[r, PATH_END]):
        node = way[j, 0]
        here = min(ext[base + node, CACHED], limit - found)
        if here <= 0:
            return found, held
        found += here
        if ext[base + node, REFS] > 0:
            held += here
        if here < way[j, 2]:
            return found, held
    extent = req[r, OWN_EXTENT]
    if limits[OWN_BY_BLOCK] == 0:
        return found + max(0, min(ext[extent, CACHED], limit - found)), held
    while found < limit and ext[extent, CACHED] > 0:
        if ext[extent, REFS] > 0:
            held += 1
        found += 1
        extent += 1
    return found, held


@inner
def pin(st, s, r, count):  # type: ignore[no-untyped-def]
    """Request r holds its first `count` blocks, which `match` has found."""
    limits, req, way = limits_of(st), requests_of(st), paths_of(st)
    req[r, REGISTERED] = count
    pinned = 0
    base = s * limits[NUM_NODES]
    for j in range(req[r, PATH_START], req[r, PATH_END]):
        if pinned >= count:
            return
        node = way[j, 0]
        _hold(st, s, base + node)
        pinned += way[j, 2]
    extent = req[r, OWN_EXTENT]
    if limits[OWN_BY_BLOCK] == 0:
        if pinned < count:
            _hold(st, s, extent)
        return
    while pinned < count:
        _hold(st, s, extent)
        extent += 1
        pinned += 1


@inner
def _hold(st, s, extent):  # type: ignore[no-untyped-def]
    rank, ext = ranks_of(st), extents_of(st)
    if ext[extent, REFS] == 0:
        lru_remove(st, extent)
        rank[s, INACTIVE_BLOCKS] -= ext[extent, CACHED]
    ext[extent, REFS] += 1


@inner
def register(st, s, r, full):  # type: ignore[no-untyped-def]
    """Request r's first `full` blocks are full: those new since the last call can be found from now on."""
    limits, req, way = limits_of(st), requests_of(st), paths_of(st)
    known = req[r, REGISTERED]
    if full <= known or limits[CACHING] == 0:
        return
    req[r, REGISTERED] = full
    base = s * limits[NUM_NODES]
    # From the leaf backwards: usually the last node alone is new.
    for j in range(req[r, PATH_END] - 1, req[r, PATH_START] - 1, -1):
        node = way[j, 0]
        start = way[j, 1]
        if start >= full:
            continue
        if start + way[j, 2] <= known:
            break
        _fill(st, base + node, start, known, min(full - start, way[j, 2]), r)
    start = req[r, OWN_START]
    if full <= start:
        return
    extent = req[r, OWN_EXTENT]
    if limits[OWN_BY_BLOCK] == 0:
        _fill(st, extent, start, known, full - start, r)
        return
    for block in range(max(start, known), full):
        _fill(st, extent + block - start, block, known, 1, r)


@inner
def _fill(st, extent, start, known, count, r):  # type: ignore[no-untyped-def]
    """Request r, which knew `known` blocks of its sequence, has filled the extent's first `count` blocks."""
    ext = extents_of(st)
    _note_change(st, extent)
    if known > start:
        ext[extent, CACHED] = count
    elif ext[extent, CACHED] == 0:
        ext[extent, CACHED] = count
        ext[extent, REFS] = 1
    else:
        _add_copy(st, extent, r)


@inner
def release(st, s, r, computed, held):  # type: ignore[no-untyped-def]
    """Request r gives back its `held` blocks, of which computed // block_size are full; tail before head."""
    rank = ranks_of(st)
    before = rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS]
    _release(st, s, r, computed, held)
    if rank[s, FREE_BLOCKS] + rank[s, INACTIVE_BLOCKS] > before:
        rank[s, TIMES_RELEASED] += 1


@inner
def _release(st, s, r, computed, held):  # type: ignore[no-untyped-def]
    limits, rank, req, ext, way = limits_of(st), ranks_of(st), requests_of(st), extents_of(st), paths_of(st)
    if limits[CACHING] == 0:
        rank[s, FREE_BLOCKS] += held
        return
    full = whole_blocks(limits, computed)
    register(st, s, r, full)
    req[r, REGISTERED] = 0
    rank[s, FREE_BLOCKS] += held - full
    own = req[r, OWN_START]
    if full > own:
        extent = req[r, OWN_EXTENT]
        if limits[OWN_BY_BLOCK] == 0:
            ext[extent, REFS] = 0
            lru_append(st, s, extent)
        else:
            for block in range(full - 1, own - 1, -1):
                _drop(st, s, extent + block - own, r)
    base = s * limits[NUM_NODES]
    for j in range(req[r, PATH_END] - 1, req[r, PATH_START] - 1, -1):
        node = way[j, 0]
        if way[j, 1] < full:
            _drop(st, s, base + node, r)


@inner
def _drop(st, s, extent, r):  # type: ignore[no-untyped-def]
    """Request r lets go of an extent, or of its own copy of it."""
    limits, req, ext, spare = limits_of(st), requests_of(st), extents_of(st), copies_of(st)
    if limits[NUM_COPIES] > 0 and req[r, OWNER_COPY] != NONE:
        copy = _own_copy(st, extent, r)
        if copy != NONE:
            spare[copy, COPY_OWNER] = NONE
            ext[limits[FIRST_COPY] + copy, REFS] = 0
            lru_append(st, s, limits[FIRST_COPY] + copy)
            return
    ext[extent, REFS] -= 1
    if ext[extent, REFS] == 0:
        lru_append(st, s, extent)


# ---- second copies of one-block extents
# copy c: extent FIRST_COPY + c; next_copy[extent or copy extent] chains the copies of a block by age; copy_extent[c] is the
# block's main extent, the oldest copy; copy_owner[c] the one request that holds it; owner_copy / owner_next chain a
# request's copies. Copies given back are chained through owner_next from FREE_COPY; COPIES_USED is the first never used.
# No copy is extent 0, so a next_copy of 0 ends a chain and fresh extents need no filling.


@inner
def _add_copy(st, extent, r):  # type: ignore[no-untyped-def]
    limits, req, ext, spare = limits_of(st), requests_of(st), extents_of(st), copies_of(st)
    copy = limits[FREE_COPY]
    if copy == NONE:
        copy = limits[COPIES_USED]
        limits[COPIES_USED] += 1
    else:
        limits[FREE_COPY] = spare[copy, OWNER_NEXT]
    mine = limits[FIRST_COPY] + copy
    last = extent
    while ext[last, NEXT_COPY] != 0:
        last = ext[last, NEXT_COPY]
    ext[last, NEXT_COPY] = mine
    ext[mine, NEXT_COPY] = 0
    spare[copy, COPY_EXTENT] = extent
    spare[copy, COPY_OWNER] = r
    spare[copy, OWNER_NEXT] = req[r, OWNER_COPY]
    req[r, OWNER_COPY] = copy
    ext[mine, CACHED] = 1
    ext[mine, REFS] = 1


@inner
def _own_copy(st, extent, r):  # type: ignore[no-untyped-def]
    """Unlink and return request r's own copy of an extent, NONE if it holds the main one."""
    req, spare = requests_of(st), copies_of(st)
    before, copy = NONE, req[r, OWNER_COPY]
    while copy != NONE and spare[copy, COPY_EXTENT] != extent:
        before, copy = copy, spare[copy, OWNER_NEXT]
    if copy != NONE:
        if before == NONE:
            req[r, OWNER_COPY] = spare[copy, OWNER_NEXT]
        else:
            spare[before, OWNER_NEXT] = spare[copy, OWNER_NEXT]
    return copy


@inner
def _forget(st, extent):  # type: ignore[no-untyped-def]
    """An extent has lost its last block: free its copy number, or let the next copy take the main extent's place."""
    limits, ext, spare = limits_of(st), extents_of(st), copies_of(st)
    first_copy = limits[FIRST_COPY]
    if extent >= first_copy:
        copy = extent - first_copy
        before = spare[copy, COPY_EXTENT]
        while ext[before, NEXT_COPY] != extent:
            before = ext[before, NEXT_COPY]
        ext[before, NEXT_COPY] = ext[extent, NEXT_COPY]
        _free_copy(st, copy)
        return
    heir = ext[extent, NEXT_COPY]
    if heir == 0:
        return
    copy = heir - first_copy
    ext[extent, NEXT_COPY] = ext[heir, NEXT_COPY]
    ext[extent, CACHED] = 1
    _note_change(st, extent)
    ext[heir, CACHED] = 0
    ext[extent, REFS] = ext[heir, REFS]
    if ext[heir, REFS] > 0:
        _own_copy(st, extent, spare[copy, COPY_OWNER])
    else:
        before, after = ext[heir, LRU_PREV], ext[heir, LRU_NEXT]
        ext[extent, LRU_PREV], ext[extent, LRU_NEXT] = before, after
        ext[before, LRU_NEXT] = extent
        ext[after, LRU_PREV] = extent
    _free_copy(st, copy)


@inner
def _free_copy(st, copy):  # type: ignore[no-untyped-def]
    limits, spare = limits_of(st), copies_of(st)
    spare[copy, OWNER_NEXT] = limits[FREE_COPY]
    limits[FREE_COPY] = copy
