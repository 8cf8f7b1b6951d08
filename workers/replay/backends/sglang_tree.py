"""What SGLang keeps of a request in the radix tree, and the tree itself; apart from the backend because routers look too."""

from workers.replay.compiled import inner
from workers.replay.radix import RadixTree
from workers.replay.state import (
    BEFORE,
    SPARE_A,
    SPARE_B,
    SPARE_C,
    TOKENS,
    sgl_counters_of,
    sgl_nodes_of,
    sgl_slots_of,
)

# Columns of `requests` that belong to the backend in use. LAST_NODE: end of the request's locked path in the radix
# tree, TREE_PAGES: its pages. FRESH: 1 while a running request has not been in a decode pass. FIRST_RUN, END_RUN: rows
# of its content in `sgl_runs`.
LAST_NODE, TREE_PAGES, FRESH, FIRST_RUN, END_RUN = SPARE_A, SPARE_B, SPARE_C, BEFORE, TOKENS

@inner
def radix_tree_of(st):  # type: ignore[no-untyped-def]
    """The radix trees of all ranks; engine number = rank number."""
    return RadixTree(sgl_nodes_of(st), sgl_slots_of(st), sgl_counters_of(st))
