"""What SGLang's radix tree held at the end of an engine's last pass: what a KV-aware router believes to be cached.

A pass evicts when it starts, but the router hears of it when it ends (as it does of new pages, which only then enter the
tree). Until then a node remembers how many pages it has LOST from its tail, and a node without pages keeps its number and
its place under its parent. LOST_NEXT chains the nodes that lost pages, from the engine's root on.
"""

from workers.replay.compiled import inner
from workers.replay.page_runs import END_PAGE, RUN_FIRST, RUN_NAME
from workers.replay.radix import LOST, LOST_NEXT, NEWER, NONE, PAGES, PARENT, RUN_ID, RUN_START, SPARE, child_of


@inner
def remembered_pages(tree, engine, runs, first_run, end_run, limit, page_size):  # type: ignore[no-untyped-def]
    """How many of the first `limit` pages of the request with runs [first_run, end_run) the tree holds or has lost."""
    nodes = tree.nodes
    node = engine
    depth = 0
    begin = 0
    for run in range(first_run, end_run):
        end = min(runs[run, END_PAGE], limit)
        while depth < end:
            run_id, start = runs[run, RUN_NAME], runs[run, RUN_FIRST] + (depth - begin) * page_size
            child = child_of(tree, node, run_id, start)
            node = child if child != NONE else _lost_child(tree, engine, node, run_id, start)
            if node == NONE:
                return depth
            pages = nodes[node, PAGES] + nodes[node, LOST]
            common = min(pages, end - depth)
            depth += common
            if common < pages:
                return depth
        if depth == limit:
            break
        begin = runs[run, END_PAGE]
    return depth


@inner
def _lost_child(tree, engine, parent, run_id, run_start):  # type: ignore[no-untyped-def]
    """The child whose pages are all lost and whose first one was (run_id, run_start), or NONE."""
    nodes = tree.nodes
    node = nodes[engine, LOST_NEXT]
    while node != NONE:
        if (
            nodes[node, PAGES] == 0
            and nodes[node, PARENT] == parent
            and nodes[node, RUN_ID] == run_id
            and nodes[node, RUN_START] == run_start
        ):
            return node
        node = nodes[node, LOST_NEXT]
    return NONE


@inner
def forget_lost(tree, engine):  # type: ignore[no-untyped-def]
    """A pass ended: what the engine has lost is known; numbers of nodes without pages may be used again."""
    nodes, counters = tree.nodes, tree.counters
    node = nodes[engine, LOST_NEXT]
    nodes[engine, LOST_NEXT] = NONE
    while node != NONE:
        after = nodes[node, LOST_NEXT]
        nodes[node, LOST] = 0
        if nodes[node, PAGES] == 0:
            nodes[node, NEWER] = counters[SPARE]
            counters[SPARE] = node
        node = after
