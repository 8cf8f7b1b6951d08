"""Prefix tree of SGLang's KV cache: pages of shared prompts, locked while in use, evicted least recently used first.

One pool of nodes serves all engines of a replay; node e (0 <= e < E) is the root of engine e. Every other node is a
run of consecutive pages of one content string. Content is never stored: a page is known by the run it belongs to and
its offset there (see `page_runs`), so a node costs the same whether it holds one page or a million.

An edge of the modelled tree is a chain of nodes joined by `edge_next`: it grows with its only holder, is cut where a
path leaves it, and is refreshed as a whole even when only its first pages match.

Invariants the kernels rely on: a locked node's ancestors are locked; no node was accessed later than its parent.
Hence the list of unlocked nodes, ordered by last access and, within one access, children first, always starts with a
leaf: eviction takes from its head, and only the return of a lock has to look for its place.

Source: replay-engine specification, sections 7.6 and 7.10; edges and partial matches as measured on the peer.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.replay.compiled import inner
from workers.replay.page_runs import END_PAGE, RUN_FIRST, RUN_NAME, mixed

NONE = -1

# Columns of RadixTree.nodes. The root of an engine holds no pages: its run columns count the engine's own.
(PARENT, RUN_ID, RUN_START, PAGES, LOCKS, CHILDREN, ACCESSED, EDGE_NEXT, OLDER, NEWER, LOST, LOST_NEXT,
 NUM_NODE_COLUMNS) = range(13)  # fmt: skip
FREE_PAGES, EVICTABLE_PAGES = RUN_ID, RUN_START

# Entries of RadixTree.counters.
_BUMP, SPARE, _CLOCK, OVERFLOW, KEEPS_LOST, NUM_COUNTERS = range(6)


class RadixTree(NamedTuple):
    """Arrays of the tree, written by the kernels of this module; K = node capacity, E = engines.

    nodes: int64 [K, NUM_NODE_COLUMNS]. PARENT; RUN_ID, RUN_START, PAGES: which pages the node holds. LOCKS: requests
    whose path contains it. CHILDREN, how many. ACCESSED: logical clock of the last access (of a locked node a lower
    bound, made exact when the lock returns). EDGE_NEXT: the child that continues the node's edge, or NONE. OLDER, NEWER:
    unlocked nodes of one engine as a ring through its root, from oldest to newest; NEWER also chains released nodes.
    LOST, LOST_NEXT: see `lost_pages`; kept where KEEPS_LOST says so.
    slots: int32 [power of two >= 2 K]; open-addressing index of children, NONE where free.
    counters: int64 [NUM_COUNTERS]; next node never used, head of the released ones, clock, 1 once nodes ran out, 1 when
    evicted pages are remembered.
    """

    nodes: NDArray[np.int64]
    slots: NDArray[np.int32]
    counters: NDArray[np.int64]


def new_tree(num_engines: int, pages_per_engine: int, node_capacity: int, keeps_lost: bool = False) -> RadixTree:
    """An empty tree; `node_capacity` counts nodes alive (or remembered) at one time, roots excluded."""
    size = node_capacity + num_engines
    nodes = np.empty((size, NUM_NODE_COLUMNS), np.int64)
    roots = nodes[:num_engines]
    roots[:] = 0
    roots[:, FREE_PAGES] = pages_per_engine
    roots[:, PARENT] = roots[:, EDGE_NEXT] = roots[:, LOST_NEXT] = NONE
    roots[:, OLDER] = roots[:, NEWER] = np.arange(num_engines)
    slots = np.full(1 << max(4, (2 * size - 1).bit_length()), NONE, np.int32)
    return RadixTree(nodes, slots, np.array([num_engines, NONE, 0, 0, int(keeps_lost)], np.int64))


@inner
def _home_slot(tree, parent, run_id, run_start):  # type: ignore[no-untyped-def]
    slots = tree.slots
    key = mixed(mixed(mixed(np.uint64(0), parent), run_id), run_start)
    return np.int64(key & np.uint64(slots.size - 1))


@inner
def child_of(tree, parent, run_id, run_start):  # type: ignore[no-untyped-def]
    """The child whose first page is (run_id, run_start), or NONE."""
    nodes, slots = tree.nodes, tree.slots
    if nodes[parent, CHILDREN] == 0:
        return NONE
    node = nodes[parent, EDGE_NEXT]
    if node != NONE and nodes[node, RUN_ID] == run_id and nodes[node, RUN_START] == run_start:
        return node
    mask = slots.size - 1
    slot = _home_slot(tree, parent, run_id, run_start)
    while True:
        node = slots[slot]
        if node == NONE:
            return NONE
        if nodes[node, PARENT] == parent and nodes[node, RUN_ID] == run_id and nodes[node, RUN_START] == run_start:
            return node
        slot = (slot + 1) & mask


@inner
def _hang(tree, node):  # type: ignore[no-untyped-def]
    """Make `node` findable under its parent; the caller keeps `children` right."""
    nodes, slots = tree.nodes, tree.slots
    mask = slots.size - 1
    slot = _home_slot(tree, nodes[node, PARENT], nodes[node, RUN_ID], nodes[node, RUN_START])
    while slots[slot] != NONE:
        slot = (slot + 1) & mask
    slots[slot] = node


@inner
def _slot_of(tree, node):  # type: ignore[no-untyped-def]
    nodes, slots = tree.nodes, tree.slots
    mask = slots.size - 1
    slot = _home_slot(tree, nodes[node, PARENT], nodes[node, RUN_ID], nodes[node, RUN_START])
    while slots[slot] != node:
        slot = (slot + 1) & mask
    return slot


@inner
def _unhang(tree, node):  # type: ignore[no-untyped-def]
    """Remove `node` from the index, closing the gap so that no probe sequence is cut."""
    nodes, slots = tree.nodes, tree.slots
    mask = slots.size - 1
    gap = _slot_of(tree, node)
    slot = gap
    while True:
        slot = (slot + 1) & mask
        moved = slots[slot]
        if moved == NONE:
            break
        home = _home_slot(tree, nodes[moved, PARENT], nodes[moved, RUN_ID], nodes[moved, RUN_START])
        if ((slot - home) & mask) >= ((slot - gap) & mask):
            slots[gap] = moved
            gap = slot
    slots[gap] = NONE


@inner
def _new_node(tree, parent, run_id, run_start, pages):  # type: ignore[no-untyped-def]
    """A node outside the list of unlocked ones; NONE (and the overflow flag) when all node numbers are in use."""
    nodes, counters = tree.nodes, tree.counters
    if counters[SPARE] != NONE:
        node = counters[SPARE]
        counters[SPARE] = nodes[node, NEWER]
    elif counters[_BUMP] < len(nodes):
        node = counters[_BUMP]
        counters[_BUMP] += 1
    else:
        counters[OVERFLOW] = 1
        return NONE
    nodes[node, PARENT] = parent
    nodes[node, RUN_ID] = run_id
    nodes[node, RUN_START] = run_start
    nodes[node, PAGES] = pages
    nodes[node, LOCKS] = 0
    nodes[node, CHILDREN] = 0
    nodes[node, ACCESSED] = 0
    nodes[node, EDGE_NEXT] = NONE
    nodes[node, LOST] = 0
    return node


@inner
def _link_after(tree, place, node):  # type: ignore[no-untyped-def]
    nodes = tree.nodes
    after = nodes[place, NEWER]
    nodes[node, OLDER] = place
    nodes[node, NEWER] = after
    nodes[place, NEWER] = node
    nodes[after, OLDER] = node


@inner
def _unlink(tree, node):  # type: ignore[no-untyped-def]
    nodes = tree.nodes
    nodes[nodes[node, OLDER], NEWER] = nodes[node, NEWER]
    nodes[nodes[node, NEWER], OLDER] = nodes[node, OLDER]


@inner
def _add_lock(tree, engine, node):  # type: ignore[no-untyped-def]
    nodes = tree.nodes
    if nodes[node, LOCKS] == 0:
        _unlink(tree, node)
        nodes[engine, EVICTABLE_PAGES] -= nodes[node, PAGES]
    nodes[node, LOCKS] += 1


@inner
def _split(tree, node, pages, page_size):  # type: ignore[no-untyped-def]
    """Divide `node` after `pages` pages; returns the new node holding them, with the same locks and access."""
    nodes, slots = tree.nodes, tree.slots
    parent = nodes[node, PARENT]
    head = _new_node(tree, parent, nodes[node, RUN_ID], nodes[node, RUN_START], pages)
    if head == NONE:
        return NONE
    slots[_slot_of(tree, node)] = head
    if nodes[parent, EDGE_NEXT] == node:
        nodes[parent, EDGE_NEXT] = head
    nodes[head, EDGE_NEXT] = node
    nodes[head, LOCKS] = nodes[node, LOCKS]
    nodes[head, ACCESSED] = nodes[node, ACCESSED]
    nodes[head, CHILDREN] = 1
    nodes[node, PARENT] = head
    nodes[node, RUN_START] += pages * page_size
    nodes[node, PAGES] -= pages
    _hang(tree, node)
    if nodes[node, LOCKS] == 0:
        _link_after(tree, node, head)
    return head


@inner
def _cut_edge(tree, engine, node):  # type: ignore[no-untyped-def]
    """End an edge at `node`, where a path leaves it; what lay beyond counts as accessed now."""
    nodes, counters = tree.nodes, tree.counters
    beyond = nodes[node, EDGE_NEXT]
    nodes[node, EDGE_NEXT] = NONE
    above = engine
    while beyond != NONE:
        nodes[beyond, ACCESSED] = counters[_CLOCK]
        if nodes[beyond, LOCKS] == 0:
            _unlink(tree, beyond)
            _link_after(tree, nodes[above, OLDER], beyond)
            above = beyond
        beyond = nodes[beyond, EDGE_NEXT]


@inner
def matched_pages(tree, engine, runs, first_run, end_run, limit, page_size):  # type: ignore[no-untyped-def]
    """How many of the first `limit` pages of the request with runs [first_run, end_run) the tree holds; only looks."""
    nodes = tree.nodes
    node = engine
    depth = 0
    begin = 0
    for run in range(first_run, end_run):
        end = min(runs[run, END_PAGE], limit)
        while depth < end:
            node = child_of(tree, node, runs[run, RUN_NAME], runs[run, RUN_FIRST] + (depth - begin) * page_size)
            if node == NONE:
                return depth
            common = min(nodes[node, PAGES], end - depth)
            depth += common
            if common < nodes[node, PAGES]:
                return depth
        if depth == limit:
            break
        begin = runs[run, END_PAGE]
    return depth


@inner
def lock_prefix(tree, engine, runs, first_run, pages, page_size):  # type: ignore[no-untyped-def]
    """Lock the path of the request's first `pages` pages, all of them held; returns its last node (the root if 0)."""
    nodes, counters = tree.nodes, tree.counters
    counters[_CLOCK] += 1
    node = engine
    depth = 0
    begin = 0
    run = first_run
    while depth < pages:
        while runs[run, END_PAGE] == depth:
            begin = runs[run, END_PAGE]
            run += 1
        node = child_of(tree, node, runs[run, RUN_NAME], runs[run, RUN_FIRST] + (depth - begin) * page_size)
        if nodes[node, PAGES] > pages - depth:
            node = _split(tree, node, pages - depth, page_size)
            if node == NONE:
                return engine
        _add_lock(tree, engine, node)
        depth += nodes[node, PAGES]
    if node != engine:
        _cut_edge(tree, engine, node)
        nodes[node, ACCESSED] = counters[_CLOCK]
    return node


@inner
def insert_prefix(tree, engine, last, depth, runs, first_run, pages, page_size):  # type: ignore[no-untyped-def]
    """Give the tree the request's pages [depth, pages) and move the request's lock from `last` to their end.

    `last` ends the path of the first `depth` pages, locked by the request. Pages the tree already holds are merged.
    Returns the new last node and the number of pages the tree took; the other `pages - depth` less that number are
    duplicates whose room the caller returns. A leaf that only this request holds grows, any other node gets a child.
    """
    nodes, counters = tree.nodes, tree.counters
    counters[_CLOCK] += 1
    taken = 0
    node = last
    run = first_run
    begin = 0
    while depth < pages:
        while runs[run, END_PAGE] <= depth:
            begin = runs[run, END_PAGE]
            run += 1
        run_id = runs[run, RUN_NAME]
        start = runs[run, RUN_FIRST] + (depth - begin) * page_size
        child = child_of(tree, node, run_id, start)
        wanted = min(runs[run, END_PAGE], pages) - depth
        if child != NONE:
            if nodes[child, PAGES] > wanted:
                child = _split(tree, child, wanted, page_size)
                if child == NONE:
                    return node, taken
            _add_lock(tree, engine, child)
            node = child
            depth += nodes[child, PAGES]
            continue
        grows = node != engine and nodes[node, CHILDREN] == 0 and nodes[node, LOCKS] == 1
        ends_at = nodes[node, RUN_START] + nodes[node, PAGES] * page_size
        if grows and nodes[node, RUN_ID] == run_id and ends_at == start:
            nodes[node, PAGES] += wanted
        else:
            child = _new_node(tree, node, run_id, start, wanted)
            if child == NONE:
                return node, taken
            if grows:
                nodes[node, EDGE_NEXT] = child
            elif node != engine:
                _cut_edge(tree, engine, node)
            nodes[node, CHILDREN] += 1
            nodes[child, LOCKS] = 1
            _hang(tree, child)
            node = child
        depth += wanted
        taken += wanted
    if node != engine:
        _cut_edge(tree, engine, node)
        nodes[node, ACCESSED] = counters[_CLOCK]
    return node, taken


@inner
def unlock(tree, engine, last):  # type: ignore[no-untyped-def]
    """Return one lock on the path from the root to `last`; nodes without locks become evictable."""
    nodes = tree.nodes
    node = last
    accessed = 0
    while node != engine:
        accessed = max(accessed, nodes[node, ACCESSED])
        nodes[node, ACCESSED] = accessed
        nodes[node, LOCKS] -= 1
        if nodes[node, LOCKS] == 0:
            place = nodes[engine, OLDER]
            while place != engine and nodes[place, ACCESSED] > accessed:
                place = nodes[place, OLDER]
            _link_after(tree, place, node)
            nodes[engine, EVICTABLE_PAGES] += nodes[node, PAGES]
        node = nodes[node, PARENT]


@inner
def evict(tree, engine, pages):  # type: ignore[no-untyped-def]
    """Free `pages` pages (or all evictable ones): the oldest leaf from its tail, then the next."""
    nodes, counters = tree.nodes, tree.counters
    while pages > 0:
        node = nodes[engine, NEWER]
        if node == engine:
            return
        cut = min(pages, nodes[node, PAGES])
        pages -= cut
        nodes[engine, FREE_PAGES] += cut
        nodes[engine, EVICTABLE_PAGES] -= cut
        nodes[node, PAGES] -= cut
        if counters[KEEPS_LOST] == 1:
            _note_lost(tree, engine, node, cut)
        if nodes[node, PAGES] > 0:
            return
        _unlink(tree, node)
        _unhang(tree, node)
        parent = nodes[node, PARENT]
        nodes[parent, CHILDREN] -= 1
        if nodes[parent, EDGE_NEXT] == node:
            nodes[parent, EDGE_NEXT] = NONE
        if counters[KEEPS_LOST] == 0:
            nodes[node, NEWER] = counters[SPARE]
            counters[SPARE] = node


@inner
def _note_lost(tree, engine, node, pages):  # type: ignore[no-untyped-def]
    nodes = tree.nodes
    if nodes[node, LOST] == 0:
        nodes[node, LOST_NEXT] = nodes[engine, LOST_NEXT]
        nodes[engine, LOST_NEXT] = node
    nodes[node, LOST] += pages
