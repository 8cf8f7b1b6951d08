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

from numba import njit

from workers.replay.state import BLOCK_SIZE, CACHING, FREE_BLOCKS, INACTIVE_BLOCKS, NONE

NUM_NODES, FIRST_COPY, NUM_COPIES, FREE_COPY, FIRST_SENTINEL, OWN_BY_BLOCK, NUM_LAYOUT = range(7)


@njit(cache=True, nogil=True)
def take(st, s, count):  # type: ignore[no-untyped-def]
    """Allocate `count` private blocks: free ones first, then the tails of the least recently released extents.

    The caller has checked that free and inactive blocks suffice.
    """
    rank = st.rank
    missing = count - rank[s, FREE_BLOCKS]
    if missing <= 0:
        rank[s, FREE_BLOCKS] -= count
        return
    rank[s, FREE_BLOCKS] = 0
    rank[s, INACTIVE_BLOCKS] -= missing
    blocks = st.blocks
    sentinel = blocks.layout[FIRST_SENTINEL] + s
    while missing > 0:
        extent = blocks.lru_next[sentinel]
        cut = min(missing, blocks.cached[extent])
        blocks.cached[extent] -= cut
        missing -= cut
        if blocks.cached[extent] == 0:
            lru_remove(blocks, extent)
            if blocks.next_copy.size > 0:
                _forget(blocks, extent)


@njit(cache=True, nogil=True)
def lru_remove(blocks, extent):  # type: ignore[no-untyped-def]
    """Take an extent out of its LRU list."""
    before, after = blocks.lru_prev[extent], blocks.lru_next[extent]
    blocks.lru_next[before] = after
    blocks.lru_prev[after] = before


@njit(cache=True, nogil=True)
def lru_append(st, s, extent):  # type: ignore[no-untyped-def]
    """An extent nobody holds any more becomes the last to be evicted; its blocks count as inactive."""
    blocks = st.blocks
    sentinel = blocks.layout[FIRST_SENTINEL] + s
    last = blocks.lru_prev[sentinel]
    blocks.lru_next[last] = extent
    blocks.lru_prev[extent] = last
    blocks.lru_next[extent] = sentinel
    blocks.lru_prev[sentinel] = extent
    st.rank[s, INACTIVE_BLOCKS] += blocks.cached[extent]


@njit(cache=True, nogil=True)
def match(st, s, r, limit):  # type: ignore[no-untyped-def]
    """(cached leading blocks of request r, at most `limit`; how many of them somebody holds)."""
    blocks = st.blocks
    found, held = 0, 0
    if st.limits[CACHING] == 0:
        return 0, 0
    base = s * blocks.layout[NUM_NODES]
    for j in range(blocks.path_start[r], blocks.path_start[r + 1]):
        node = blocks.path[j]
        here = min(blocks.cached[base + node], limit - found)
        if here <= 0:
            return found, held
        found += here
        if blocks.refs[base + node] > 0:
            held += here
        if here < blocks.node_len[node]:
            return found, held
    extent = blocks.own_extent[r]
    if blocks.layout[OWN_BY_BLOCK] == 0:
        return found + max(0, min(blocks.cached[extent], limit - found)), held
    while found < limit and blocks.cached[extent] > 0:
        if blocks.refs[extent] > 0:
            held += 1
        found += 1
        extent += 1
    return found, held


@njit(cache=True, nogil=True)
def pin(st, s, r, count):  # type: ignore[no-untyped-def]
    """Request r holds its first `count` blocks, which `match` has found."""
    blocks = st.blocks
    blocks.registered[r] = count
    pinned = 0
    base = s * blocks.layout[NUM_NODES]
    for j in range(blocks.path_start[r], blocks.path_start[r + 1]):
        if pinned >= count:
            return
        node = blocks.path[j]
        _hold(st, s, base + node)
        pinned += blocks.node_len[node]
    extent = blocks.own_extent[r]
    if blocks.layout[OWN_BY_BLOCK] == 0:
        if pinned < count:
            _hold(st, s, extent)
        return
    while pinned < count:
        _hold(st, s, extent)
        extent += 1
        pinned += 1


@njit(cache=True, nogil=True)
def _hold(st, s, extent):  # type: ignore[no-untyped-def]
    blocks = st.blocks
    if blocks.refs[extent] == 0:
        lru_remove(blocks, extent)
        st.rank[s, INACTIVE_BLOCKS] -= blocks.cached[extent]
    blocks.refs[extent] += 1


@njit(cache=True, nogil=True)
def register(st, s, r, full):  # type: ignore[no-untyped-def]
    """Request r's first `full` blocks are full: those new since the last call can be found from now on."""
    blocks = st.blocks
    known = blocks.registered[r]
    if full <= known or st.limits[CACHING] == 0:
        return
    blocks.registered[r] = full
    base = s * blocks.layout[NUM_NODES]
    # From the leaf backwards: usually the last node alone is new.
    for j in range(blocks.path_start[r + 1] - 1, blocks.path_start[r] - 1, -1):
        node = blocks.path[j]
        start = blocks.node_start[node]
        if start >= full:
            continue
        if start + blocks.node_len[node] <= known:
            break
        _fill(blocks, base + node, start, known, min(full - start, blocks.node_len[node]), r)
    start = blocks.own_start[r]
    if full <= start:
        return
    extent = blocks.own_extent[r]
    if blocks.layout[OWN_BY_BLOCK] == 0:
        _fill(blocks, extent, start, known, full - start, r)
        return
    for block in range(max(start, known), full):
        _fill(blocks, extent + block - start, block, known, 1, r)


@njit(cache=True, nogil=True)
def _fill(blocks, extent, start, known, count, r):  # type: ignore[no-untyped-def]
    """Request r, which knew `known` blocks of its sequence, has filled the extent's first `count` blocks."""
    if known > start:
        blocks.cached[extent] = count
    elif blocks.cached[extent] == 0:
        blocks.cached[extent] = count
        blocks.refs[extent] = 1
    else:
        _add_copy(blocks, extent, r)


@njit(cache=True, nogil=True)
def release(st, s, r, computed, held):  # type: ignore[no-untyped-def]
    """Request r gives back its `held` blocks, of which computed // block_size are full; tail before head."""
    blocks = st.blocks
    if st.limits[CACHING] == 0:
        st.rank[s, FREE_BLOCKS] += held
        return
    full = computed // st.limits[BLOCK_SIZE]
    register(st, s, r, full)
    blocks.registered[r] = 0
    st.rank[s, FREE_BLOCKS] += held - full
    own = blocks.own_start[r]
    if full > own:
        extent = blocks.own_extent[r]
        if blocks.layout[OWN_BY_BLOCK] == 0:
            blocks.refs[extent] = 0
            lru_append(st, s, extent)
        else:
            for block in range(full - 1, own - 1, -1):
                _drop(st, s, extent + block - own, r)
    base = s * blocks.layout[NUM_NODES]
    for j in range(blocks.path_start[r + 1] - 1, blocks.path_start[r] - 1, -1):
        node = blocks.path[j]
        if blocks.node_start[node] < full:
            _drop(st, s, base + node, r)


@njit(cache=True, nogil=True)
def _drop(st, s, extent, r):  # type: ignore[no-untyped-def]
    """Request r lets go of an extent, or of its own copy of it."""
    blocks = st.blocks
    if blocks.next_copy.size > 0 and blocks.owner_copy[r] != NONE:
        copy = _own_copy(blocks, extent, r)
        if copy != NONE:
            blocks.copy_owner[copy] = NONE
            blocks.refs[blocks.layout[FIRST_COPY] + copy] = 0
            lru_append(st, s, blocks.layout[FIRST_COPY] + copy)
            return
    blocks.refs[extent] -= 1
    if blocks.refs[extent] == 0:
        lru_append(st, s, extent)


# ---- second copies of one-block extents
# copy c: extent FIRST_COPY + c; next_copy[extent or copy extent] chains the copies of a block by age; copy_extent[c] is the
# block's main extent, the oldest copy; copy_owner[c] the one request that holds it; owner_copy / owner_next chain a
# request's copies. Unused copies are chained through owner_next from FREE_COPY.


@njit(cache=True, nogil=True)
def _add_copy(blocks, extent, r):  # type: ignore[no-untyped-def]
    layout = blocks.layout
    copy = layout[FREE_COPY]
    layout[FREE_COPY] = blocks.owner_next[copy]
    mine = layout[FIRST_COPY] + copy
    last = extent
    while blocks.next_copy[last] != NONE:
        last = blocks.next_copy[last]
    blocks.next_copy[last] = mine
    blocks.next_copy[mine] = NONE
    blocks.copy_extent[copy] = extent
    blocks.copy_owner[copy] = r
    blocks.owner_next[copy] = blocks.owner_copy[r]
    blocks.owner_copy[r] = copy
    blocks.cached[mine] = 1
    blocks.refs[mine] = 1


@njit(cache=True, nogil=True)
def _own_copy(blocks, extent, r):  # type: ignore[no-untyped-def]
    """Unlink and return request r's own copy of an extent, NONE if it holds the main one."""
    before, copy = NONE, blocks.owner_copy[r]
    while copy != NONE and blocks.copy_extent[copy] != extent:
        before, copy = copy, blocks.owner_next[copy]
    if copy != NONE:
        if before == NONE:
            blocks.owner_copy[r] = blocks.owner_next[copy]
        else:
            blocks.owner_next[before] = blocks.owner_next[copy]
    return copy


@njit(cache=True, nogil=True)
def _forget(blocks, extent):  # type: ignore[no-untyped-def]
    """An extent has lost its last block: free its copy number, or let the next copy take the main extent's place."""
    layout = blocks.layout
    first_copy = layout[FIRST_COPY]
    if extent >= first_copy:
        copy = extent - first_copy
        before = blocks.copy_extent[copy]
        while blocks.next_copy[before] != extent:
            before = blocks.next_copy[before]
        blocks.next_copy[before] = blocks.next_copy[extent]
        _free_copy(blocks, copy)
        return
    heir = blocks.next_copy[extent]
    if heir == NONE:
        return
    copy = heir - first_copy
    blocks.next_copy[extent] = blocks.next_copy[heir]
    blocks.cached[extent] = 1
    blocks.cached[heir] = 0
    blocks.refs[extent] = blocks.refs[heir]
    if blocks.refs[heir] > 0:
        _own_copy(blocks, extent, blocks.copy_owner[copy])
    else:
        before, after = blocks.lru_prev[heir], blocks.lru_next[heir]
        blocks.lru_prev[extent], blocks.lru_next[extent] = before, after
        blocks.lru_next[before] = extent
        blocks.lru_prev[after] = extent
    _free_copy(blocks, copy)


@njit(cache=True, nogil=True)
def _free_copy(blocks, copy):  # type: ignore[no-untyped-def]
    blocks.owner_next[copy] = blocks.layout[FREE_COPY]
    blocks.layout[FREE_COPY] = copy
