"""The compiled radix tree against the plain one: same hits, same room, same victims on random histories."""

from typing import Any

import numpy as np
import pytest

from tests.reference.radix_tree import Node, Tokens
from tests.reference.radix_tree import RadixTree as PlainTree
from workers.replay import lost_pages, radix
from workers.replay.compiled import bare_entry
from workers.replay.page_runs import END_PAGE, RUN_NAME, page_runs
from workers.replay.radix import EVICTABLE_PAGES, FREE_PAGES, OVERFLOW, RadixTree, new_tree

# Only compiled code calls these; here Python does.
evict, insert_prefix, lock_prefix, matched_pages, unlock = (
    bare_entry(each.py_func)
    for each in (radix.evict, radix.insert_prefix, radix.lock_prefix, radix.matched_pages, radix.unlock)
)
forget_lost, remembered_pages = (
    bare_entry(each.py_func) for each in (lost_pages.forget_lost, lost_pages.remembered_pages)
)

Spans = list[tuple[int, int]]
ENGINE, TOTAL_PAGES = 1, 40


def random_contents(rng: np.random.Generator, count: int) -> list[Spans]:
    """Prompts over few strings, so that prefixes are shared, cut inside a span and continued differently; an output."""
    lengths = rng.integers(1, 12, size=6)
    contents = []
    for r in range(count):
        ids = rng.permutation(6)[: rng.integers(1, 5)].tolist()
        spans = [(identity, int(lengths[identity])) for identity in ids]
        identity, length = spans[-1]
        contents.append([*spans[:-1], (identity, int(rng.integers(1, length + 1))), (100 + r, int(rng.integers(0, 9)))])
    return contents


class Twins:
    """A compiled and a plain tree that live through the same history."""

    def __init__(self, contents: list[Spans], page: int) -> None:
        self.page = page
        self.runs = page_runs(
            np.array([sum(tokens for _, tokens in spans) for spans in contents]),
            page,
            np.cumsum([0] + [len(spans) - 1 for spans in contents]),
            np.array([identity for spans in contents for identity, _ in spans[:-1]]),
            np.array([tokens for spans in contents for _, tokens in spans[:-1]]),
            np.array([spans[-1][0] for spans in contents]),
        )
        self.tokens: list[Tokens] = [
            np.concatenate([identity * 1000 + np.arange(tokens) for identity, tokens in spans]) for spans in contents
        ]
        self.tree: RadixTree = new_tree(2, TOTAL_PAGES, 300)
        self.plain = PlainTree(page)
        self.plain_free = TOTAL_PAGES * page
        self.live: dict[int, tuple[int, Node, int]] = {}

    def pages(self, request: int) -> int:
        """Whole pages of a request."""
        return len(self.tokens[request]) // self.page

    def compare(self) -> None:
        """Room and every request's longest cached prefix are the same."""
        room = self.tree.nodes[ENGINE, [FREE_PAGES, EVICTABLE_PAGES]] * self.page
        assert room.tolist() == [self.plain_free, self.plain.evictable]
        for request, tokens in enumerate(self.tokens):
            assert self.matched(request, self.pages(request)) * self.page == self.plain.peek(tokens)

    def matched(self, request: int, limit: int) -> int:
        """Cached pages among the first `limit`, according to the compiled tree."""
        offset = self.runs.offset
        return int(
            matched_pages(self.tree, ENGINE, self.runs.runs, offset[request], offset[request + 1], limit, self.page)
        )

    def admit(self, request: int, limit: int) -> None:
        """Lock what is cached of the first `limit` pages."""
        hit = self.matched(request, limit)
        last = lock_prefix(self.tree, ENGINE, self.runs.runs, self.runs.offset[request], hit, self.page)
        node, _ = self.plain.match(self.tokens[request][: hit * self.page])
        self.plain.lock(node)
        self.live[request] = (last, node, hit)

    def publish(self, request: int, pages: int) -> None:
        """Compute and insert pages up to `pages`, if there is room after eviction."""
        last, node, depth = self.live[request]
        self.evict(pages - depth - self.plain_free // self.page)
        if self.plain_free < (pages - depth) * self.page:
            return
        self.tree.nodes[ENGINE, FREE_PAGES] -= pages - depth
        first_run = self.runs.offset[request]
        new_last, taken = insert_prefix(self.tree, ENGINE, last, depth, self.runs.runs, first_run, pages, self.page)
        self.tree.nodes[ENGINE, FREE_PAGES] += pages - depth - taken
        new_node, present = self.plain.insert(self.tokens[request][: pages * self.page], node)
        self.plain.lock(new_node)
        self.plain.unlock(node)
        self.plain_free -= pages * self.page - present
        assert taken * self.page == pages * self.page - present
        self.live[request] = (new_last, new_node, pages)

    def release(self, request: int) -> None:
        """Return the lock."""
        last, node, _ = self.live.pop(request)
        unlock(self.tree, ENGINE, last)
        self.plain.unlock(node)

    def evict(self, pages: int) -> None:
        """Free pages, oldest first."""
        evict(self.tree, ENGINE, pages)
        self.plain_free += self.plain.evict(pages * self.page)


@pytest.mark.parametrize("page", [1, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_tree_random_history_agrees_with_plain_tree(seed: int, page: int) -> None:
    rng = np.random.default_rng(seed)
    twins = Twins(random_contents(rng, 12), page)
    for _ in range(300):
        request = int(rng.integers(12))
        if request not in twins.live and rng.random() < 0.6:
            twins.admit(request, int(rng.integers(0, twins.pages(request) + 1)))
        elif request in twins.live:
            if rng.random() < 0.8:
                twins.publish(request, int(rng.integers(twins.live[request][2], twins.pages(request) + 1)))
            if rng.random() < 0.6:
                twins.release(request)
        else:
            twins.evict(int(rng.integers(0, 5)))
        twins.compare()
    assert twins.tree.counters[OVERFLOW] == 0
    assert twins.tree.nodes[0, FREE_PAGES] == TOTAL_PAGES


def test_page_runs_without_spans_are_one_run_per_request() -> None:
    runs = page_runs(np.array([10, 3, 8]), 4, None, None, None, None)
    assert runs.offset.tolist() == [0, 1, 2, 3]
    assert runs.runs[:, RUN_NAME].tolist() == [0, 1, 2]
    assert runs.runs[:, END_PAGE].tolist() == [2, 0, 2]


def test_insert_beyond_node_capacity_raises_the_overflow_flag() -> None:
    runs = page_runs(np.array([4, 4]), 1, None, None, None, None).runs
    tree = new_tree(1, 100, 1)
    insert_prefix(tree, 0, 0, 0, runs, 0, 4, 1)
    assert tree.counters[OVERFLOW] == 0
    insert_prefix(tree, 0, 0, 0, runs, 1, 4, 1)
    assert tree.counters[OVERFLOW] == 1


def test_evicted_pages_are_remembered_until_the_pass_ends() -> None:
    runs = page_runs(
        np.array([6, 9, 4]), 1, np.array([0, 1, 3, 4]), np.array([1, 1, 2, 3]), np.array([6, 6, 3, 4]), None
    )
    tree = new_tree(2, TOTAL_PAGES, 20, keeps_lost=True)
    for request, pages in enumerate((6, 9, 4)):
        tree.nodes[ENGINE, FREE_PAGES] -= pages - 6 * (request == 1)
        hit = 6 if request == 1 else 0
        last = lock_prefix(tree, ENGINE, runs.runs, runs.offset[request], hit, 1)
        last, _ = insert_prefix(tree, ENGINE, last, hit, runs.runs, runs.offset[request], pages, 1)
        unlock(tree, ENGINE, last)

    def seen(pages: Any) -> list[int]:
        spans = [(runs.offset[r], runs.offset[r + 1]) for r in range(3)]
        return [int(pages(tree, ENGINE, runs.runs, first, end, 9, 1)) for first, end in spans]

    before = seen(matched_pages)
    evict(tree, ENGINE, 2)
    evict(tree, ENGINE, 5)
    assert seen(remembered_pages) == before == [6, 9, 4]
    assert seen(matched_pages) == [2, 2, 4]
    forget_lost(tree, ENGINE)
    assert seen(remembered_pages) == seen(matched_pages) == [2, 2, 4]
