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
from numba import njit
from numpy.typing import NDArray

NONE = -1

# Slots of RadixTree.counters.
_BUMP, _FREED, _CLOCK, _MASK, OVERFLOW = 0, 1, 2, 3, 4

# Odd multipliers of a 64-bit mixing hash (splitmix64).
_MIX_A = np.uint64(0x9E3779B97F4A7C15)
_MIX_B = np.uint64(0xBF58476D1CE4E5B9)
_MIX_C = np.uint64(0x94D049BB133111EB)


class RadixTree(NamedTuple):
    """Arrays of the tree; all int64, K = node capacity, E = engines, written by the kernels of this module.

    parent, run_id, run_start, pages: [K]; where a node hangs and which pages it holds.
    locks: [K]; requests whose path contains the node. children: [K]. accessed: [K]; logical clock of the last access
    (of a locked node: a lower bound, made exact when the lock returns).
    edge_next: [K]; the child that continues the node's edge, or NONE.
    older, newer: [K]; unlocked nodes of one engine as a ring through its root, from oldest to newest.
    spare: [K]; stack of released node numbers.
    slots: [power of two >= 2 K]; open-addressing index of children, NONE where free.
    free_pages, evictable_pages: [E]. counters: [5]; next new node, depth of `spare`, clock, slot mask, overflow flag.
    """

    parent: NDArray[np.int64]
    run_id: NDArray[np.int64]
    run_start: NDArray[np.int64]
    pages: NDArray[np.int64]
    locks: NDArray[np.int64]
    children: NDArray[np.int64]
    accessed: NDArray[np.int64]
    edge_next: NDArray[np.int64]
    older: NDArray[np.int64]
    newer: NDArray[np.int64]
    spare: NDArray[np.int64]
    slots: NDArray[np.int64]
    free_pages: NDArray[np.int64]
    evictable_pages: NDArray[np.int64]
    counters: NDArray[np.int64]


class PageRuns(NamedTuple):
    """Every request's tokens (prompt, then output) as runs of whole pages; J runs in all.

    offset: int64 [R + 1] into the others. run_id, run_start: int64 [J]; name of the content string and token offset of
    the run's first page in it. end_page: int64 [J]; pages of the request up to and including the run.
    """

    offset: NDArray[np.int64]
    run_id: NDArray[np.int64]
    run_start: NDArray[np.int64]
    end_page: NDArray[np.int64]


def new_tree(num_engines: int, pages_per_engine: int, node_capacity: int) -> RadixTree:
    """An empty tree; `node_capacity` counts nodes alive at one time, roots excluded."""
    size = node_capacity + num_engines
    num_slots = 1 << max(4, (2 * size - 1).bit_length())
    arrays = [np.empty(size, np.int64) for _ in range(11)]
    tree = RadixTree(
        *arrays,
        np.full(num_slots, NONE, np.int64),
        np.full(num_engines, pages_per_engine, np.int64),
        np.zeros(num_engines, np.int64),
        np.array([num_engines, 0, 0, num_slots - 1, 0], np.int64),
    )
    roots = np.arange(num_engines)
    tree.parent[:num_engines] = NONE
    tree.pages[:num_engines] = 0
    tree.locks[:num_engines] = 0
    tree.children[:num_engines] = 0
    tree.edge_next[:num_engines] = NONE
    tree.older[:num_engines] = roots
    tree.newer[:num_engines] = roots
    return tree


@njit(cache=True, nogil=True, inline="always")
def _mixed(value: np.uint64, word: np.int64) -> np.uint64:
    mixed = (value + np.uint64(word)) * _MIX_A
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_B
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_C
    return mixed ^ (mixed >> np.uint64(31))


@njit(cache=True, nogil=True)
def _home_slot(tree: RadixTree, parent: int, run_id: int, run_start: int) -> int:
    mixed = _mixed(_mixed(_mixed(np.uint64(0), parent), run_id), run_start)
    return np.int64(mixed & np.uint64(tree.counters[_MASK]))


@njit(cache=True, nogil=True)
def _child(tree: RadixTree, parent: int, run_id: int, run_start: int) -> int:
    """The child whose first page is (run_id, run_start), or NONE."""
    if tree.children[parent] == 0:
        return NONE
    node = tree.edge_next[parent]
    if node != NONE and tree.run_id[node] == run_id and tree.run_start[node] == run_start:
        return node
    mask = tree.counters[_MASK]
    slot = _home_slot(tree, parent, run_id, run_start)
    while True:
        node = tree.slots[slot]
        if node == NONE:
            return NONE
        if tree.parent[node] == parent and tree.run_id[node] == run_id and tree.run_start[node] == run_start:
            return node
        slot = (slot + 1) & mask


@njit(cache=True, nogil=True)
def _hang(tree: RadixTree, node: int) -> None:
    """Make `node` findable under its parent; the caller keeps `children` right."""
    mask = tree.counters[_MASK]
    slot = _home_slot(tree, tree.parent[node], tree.run_id[node], tree.run_start[node])
    while tree.slots[slot] != NONE:
        slot = (slot + 1) & mask
    tree.slots[slot] = node


@njit(cache=True, nogil=True)
def _slot_of(tree: RadixTree, node: int) -> int:
    mask = tree.counters[_MASK]
    slot = _home_slot(tree, tree.parent[node], tree.run_id[node], tree.run_start[node])
    while tree.slots[slot] != node:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def _unhang(tree: RadixTree, node: int) -> None:
    """Remove `node` from the index, closing the gap so that no probe sequence is cut."""
    mask = tree.counters[_MASK]
    gap = _slot_of(tree, node)
    slot = gap
    while True:
        slot = (slot + 1) & mask
        moved = tree.slots[slot]
        if moved == NONE:
            break
        home = _home_slot(tree, tree.parent[moved], tree.run_id[moved], tree.run_start[moved])
        if ((slot - home) & mask) >= ((slot - gap) & mask):
            tree.slots[gap] = moved
            gap = slot
    tree.slots[gap] = NONE


@njit(cache=True, nogil=True)
def _new_node(tree: RadixTree, parent: int, run_id: int, run_start: int, pages: int) -> int:
    """A node outside the list of unlocked ones; NONE (and the overflow flag) when all node numbers are in use."""
    counters = tree.counters
    if counters[_FREED] > 0:
        counters[_FREED] -= 1
        node = tree.spare[counters[_FREED]]
    elif counters[_BUMP] < tree.parent.size:
        node = counters[_BUMP]
        counters[_BUMP] += 1
    else:
        counters[OVERFLOW] = 1
        return NONE
    tree.parent[node] = parent
    tree.run_id[node] = run_id
    tree.run_start[node] = run_start
    tree.pages[node] = pages
    tree.locks[node] = 0
    tree.children[node] = 0
    tree.accessed[node] = 0
    tree.edge_next[node] = NONE
    return node


@njit(cache=True, nogil=True)
def _link_after(tree: RadixTree, place: int, node: int) -> None:
    after = tree.newer[place]
    tree.older[node] = place
    tree.newer[node] = after
    tree.newer[place] = node
    tree.older[after] = node


@njit(cache=True, nogil=True)
def _unlink(tree: RadixTree, node: int) -> None:
    tree.newer[tree.older[node]] = tree.newer[node]
    tree.older[tree.newer[node]] = tree.older[node]


@njit(cache=True, nogil=True)
def _add_lock(tree: RadixTree, engine: int, node: int) -> None:
    if tree.locks[node] == 0:
        _unlink(tree, node)
        tree.evictable_pages[engine] -= tree.pages[node]
    tree.locks[node] += 1


@njit(cache=True, nogil=True)
def _split(tree: RadixTree, node: int, pages: int, page_size: int) -> int:
    """Divide `node` after `pages` pages; returns the new node holding them, with the same locks and access."""
    parent = tree.parent[node]
    head = _new_node(tree, parent, tree.run_id[node], tree.run_start[node], pages)
    if head == NONE:
        return NONE
    tree.slots[_slot_of(tree, node)] = head
    if tree.edge_next[parent] == node:
        tree.edge_next[parent] = head
    tree.edge_next[head] = node
    tree.locks[head] = tree.locks[node]
    tree.accessed[head] = tree.accessed[node]
    tree.children[head] = 1
    tree.parent[node] = head
    tree.run_start[node] += pages * page_size
    tree.pages[node] -= pages
    _hang(tree, node)
    if tree.locks[node] == 0:
        _link_after(tree, node, head)
    return head


@njit(cache=True, nogil=True)
def _cut_edge(tree: RadixTree, engine: int, node: int) -> None:
    """End an edge at `node`, where a path leaves it; what lay beyond counts as accessed now."""
    beyond = tree.edge_next[node]
    tree.edge_next[node] = NONE
    above = engine
    while beyond != NONE:
        tree.accessed[beyond] = tree.counters[_CLOCK]
        if tree.locks[beyond] == 0:
            _unlink(tree, beyond)
            _link_after(tree, tree.older[above], beyond)
            above = beyond
        beyond = tree.edge_next[beyond]


@njit(cache=True, nogil=True)
def matched_pages(tree: RadixTree, engine: int, runs: PageRuns, request: int, limit: int, page_size: int) -> int:
    """How many of the request's first `limit` pages the tree holds; changes nothing."""
    node = engine
    depth = 0
    begin = 0
    for run in range(runs.offset[request], runs.offset[request + 1]):
        end = min(runs.end_page[run], limit)
        while depth < end:
            node = _child(tree, node, runs.run_id[run], runs.run_start[run] + (depth - begin) * page_size)
            if node == NONE:
                return depth
            common = min(tree.pages[node], end - depth)
            depth += common
            if common < tree.pages[node]:
                return depth
        if depth == limit:
            break
        begin = runs.end_page[run]
    return depth


@njit(cache=True, nogil=True)
def lock_prefix(tree: RadixTree, engine: int, runs: PageRuns, request: int, pages: int, page_size: int) -> int:
    """Lock the path of the request's first `pages` pages, all of them held; returns its last node (the root if 0)."""
    tree.counters[_CLOCK] += 1
    node = engine
    depth = 0
    begin = 0
    run = runs.offset[request]
    while depth < pages:
        while runs.end_page[run] == depth:
            begin = runs.end_page[run]
            run += 1
        node = _child(tree, node, runs.run_id[run], runs.run_start[run] + (depth - begin) * page_size)
        if tree.pages[node] > pages - depth:
            node = _split(tree, node, pages - depth, page_size)
            if node == NONE:
                return engine
        _add_lock(tree, engine, node)
        depth += tree.pages[node]
    if node != engine:
        _cut_edge(tree, engine, node)
        tree.accessed[node] = tree.counters[_CLOCK]
    return node


@njit(cache=True, nogil=True)
def insert_prefix(
    tree: RadixTree, engine: int, last: int, depth: int, runs: PageRuns, request: int, pages: int, page_size: int
) -> tuple[int, int]:
    """Give the tree the request's pages [depth, pages) and move the request's lock from `last` to their end.

    `last` ends the path of the first `depth` pages, locked by the request. Pages the tree already holds are merged.
    Returns the new last node and the number of pages the tree took; the other `pages - depth` less that number are
    duplicates whose room the caller returns. A leaf that only this request holds grows, any other node gets a child.
    """
    tree.counters[_CLOCK] += 1
    taken = 0
    node = last
    run = runs.offset[request]
    begin = 0
    while depth < pages:
        while runs.end_page[run] <= depth:
            begin = runs.end_page[run]
            run += 1
        run_id = runs.run_id[run]
        start = runs.run_start[run] + (depth - begin) * page_size
        child = _child(tree, node, run_id, start)
        wanted = min(runs.end_page[run], pages) - depth
        if child != NONE:
            if tree.pages[child] > wanted:
                child = _split(tree, child, wanted, page_size)
                if child == NONE:
                    return node, taken
            _add_lock(tree, engine, child)
            node = child
            depth += tree.pages[child]
            continue
        grows = node != engine and tree.children[node] == 0 and tree.locks[node] == 1
        if (
            grows
            and tree.run_id[node] == run_id
            and tree.run_start[node] + tree.pages[node] * page_size == start
        ):
            tree.pages[node] += wanted
        else:
            child = _new_node(tree, node, run_id, start, wanted)
            if child == NONE:
                return node, taken
            if grows:
                tree.edge_next[node] = child
            elif node != engine:
                _cut_edge(tree, engine, node)
            tree.children[node] += 1
            tree.locks[child] = 1
            _hang(tree, child)
            node = child
        depth += wanted
        taken += wanted
    if node != engine:
        _cut_edge(tree, engine, node)
        tree.accessed[node] = tree.counters[_CLOCK]
    return node, taken


@njit(cache=True, nogil=True)
def unlock(tree: RadixTree, engine: int, last: int) -> None:
    """Return one lock on the path from the root to `last`; nodes without locks become evictable."""
    node = last
    accessed = 0
    while node != engine:
        accessed = max(accessed, tree.accessed[node])
        tree.accessed[node] = accessed
        tree.locks[node] -= 1
        if tree.locks[node] == 0:
            place = tree.older[engine]
            while place != engine and tree.accessed[place] > accessed:
                place = tree.older[place]
            _link_after(tree, place, node)
            tree.evictable_pages[engine] += tree.pages[node]
        node = tree.parent[node]


@njit(cache=True, nogil=True)
def evict(tree: RadixTree, engine: int, pages: int) -> None:
    """Free `pages` pages (or all evictable ones): the oldest leaf from its tail, then the next."""
    while pages > 0:
        node = tree.newer[engine]
        if node == engine:
            return
        cut = min(pages, tree.pages[node])
        pages -= cut
        tree.free_pages[engine] += cut
        tree.evictable_pages[engine] -= cut
        tree.pages[node] -= cut
        if tree.pages[node] > 0:
            return
        _unlink(tree, node)
        _unhang(tree, node)
        parent = tree.parent[node]
        tree.children[parent] -= 1
        if tree.edge_next[parent] == node:
            tree.edge_next[parent] = NONE
        tree.spare[tree.counters[_FREED]] = node
        tree.counters[_FREED] += 1


def page_runs(
    total_tokens: NDArray[np.int64],
    page_size: int,
    span_offset: NDArray[np.int64] | None,
    span_id: NDArray[np.int64] | None,
    span_tokens: NDArray[np.int64] | None,
    output_span: NDArray[np.int64] | None,
) -> PageRuns:
    """The runs of whole pages of every request; the last, incomplete page has no identity and no run.

    Args: total_tokens int64 [R], prompt plus output; the others as in RequestBatch (None: nothing is shared, every
    request is one run of its own; output_span None: outputs are unique).
    """
    num_requests = total_tokens.size
    if span_offset is None or span_id is None or span_tokens is None:
        offset = np.arange(num_requests + 1)
        return PageRuns(offset, offset[:-1], np.zeros(num_requests, np.int64), total_tokens // page_size)
    if output_span is None:
        first_unused = int(span_id.max(initial=-1)) + 1
        output_span = np.arange(first_unused, first_unused + num_requests)
    # A span gives at most a page that straddles its start and one run of whole pages.
    room = 2 * (span_id.size + num_requests)
    arrays = (np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64))
    offset = np.zeros(num_requests + 1, np.int64)
    used = _fill_runs(total_tokens, page_size, span_offset, span_id, span_tokens, output_span, offset, *arrays)
    return PageRuns(offset, *(array[:used] for array in arrays))


@njit(cache=True, nogil=True)
def _fill_runs(  # type: ignore[no-untyped-def]
    total_tokens, page_size, span_offset, span_id, span_tokens, output_span, offset, run_id, run_start, end_page
):
    """Fill the arrays of PageRuns, return the number of runs.

    A page across spans is named by a 64-bit hash of its pieces, made negative to keep clear of span ids.
    """
    used = 0
    for request in range(total_tokens.size):
        position = 0
        straddle = np.uint64(0)
        first = used
        num_spans = span_offset[request + 1] - span_offset[request]
        for k in range(num_spans + 1):
            if k < num_spans:
                identity = span_id[span_offset[request] + k]
                tokens = span_tokens[span_offset[request] + k]
            else:
                identity = output_span[request]
                tokens = total_tokens[request] - position
            begin = 0
            while begin < tokens:
                filled = position % page_size
                if filled == 0 and tokens - begin >= page_size:
                    pages = (tokens - begin) // page_size
                    name = identity
                    start = begin
                    piece = pages * page_size
                else:
                    piece = min(page_size - filled, tokens - begin)
                    if filled == 0:
                        straddle = np.uint64(0)
                    straddle = _mixed(_mixed(_mixed(straddle, identity), begin), piece)
                    pages = 1 if filled + piece == page_size else 0
                    name = -np.int64(straddle >> np.uint64(1)) - 1
                    start = 0
                begin += piece
                position += piece
                if pages == 0:
                    continue
                if used > first and run_id[used - 1] == name and name >= 0:
                    before = end_page[used - 2] if used - 1 > first else 0
                    if run_start[used - 1] + (end_page[used - 1] - before) * page_size == start:
                        end_page[used - 1] += pages
                        continue
                run_id[used] = name
                run_start[used] = start
                end_page[used] = position // page_size
                used += 1
        offset[request + 1] = used
    return used
