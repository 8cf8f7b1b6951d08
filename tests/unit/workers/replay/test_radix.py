"""The radix tree against a dictionary of pages: same hits, same room, same victims on random histories."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from workers.replay.radix import (
    OVERFLOW,
    evict,
    insert_prefix,
    lock_prefix,
    matched_pages,
    new_tree,
    page_runs,
    unlock,
)

Page = tuple[tuple[int, int], ...]


@dataclass
class PlainCache:
    """Pages by their whole path; a page without successor is a leaf."""

    free: int
    clock: int = 0
    accessed: dict[tuple[Page, ...], int] = field(default_factory=dict)
    locks: dict[tuple[Page, ...], int] = field(default_factory=dict)

    @property
    def evictable(self) -> int:
        return sum(count == 0 for count in self.locks.values())

    def matched(self, pages: list[Page], limit: int) -> int:
        depth = 0
        while depth < min(limit, len(pages)) and tuple(pages[: depth + 1]) in self.accessed:
            depth += 1
        return depth

    def touch(self, pages: list[Page], lock: int) -> None:
        self.clock += 1
        for depth in range(1, len(pages) + 1):
            path = tuple(pages[:depth])
            self.accessed[path] = self.clock
            self.locks[path] = self.locks.get(path, 0) + lock

    def release(self, pages: list[Page]) -> None:
        for depth in range(1, len(pages) + 1):
            self.locks[tuple(pages[:depth])] -= 1

    def evict(self, count: int) -> None:
        for _ in range(count):
            parents = {path[:-1] for path in self.accessed}
            leaves = [path for path, locks in self.locks.items() if locks == 0 and path not in parents]
            if not leaves:
                return
            victim = min(leaves, key=lambda path: self.accessed[path])
            del self.accessed[victim], self.locks[victim]
            self.free += 1


def tokens_of(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(identity, k) for identity, length in spans for k in range(length)]


def pages_of(spans: list[tuple[int, int]], page_size: int) -> list[Page]:
    tokens = tokens_of(spans)
    return [tuple(tokens[k : k + page_size]) for k in range(0, len(tokens) - page_size + 1, page_size)]


def random_prompts(rng: np.random.Generator, count: int) -> list[list[tuple[int, int]]]:
    """Prompts over few strings, so that prefixes are shared, cut inside a span and continued differently."""
    lengths = rng.integers(1, 12, size=6)
    prompts = []
    for _ in range(count):
        ids = rng.integers(0, 6, size=rng.integers(1, 5)).tolist()
        spans = [(identity, int(lengths[identity])) for k, identity in enumerate(ids) if k == 0 or identity != ids[k - 1]]
        identity, length = spans[-1]
        spans[-1] = (identity, int(rng.integers(1, length + 1)))
        prompts.append(spans)
    return prompts


@pytest.mark.parametrize("page_size", [1, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_tree_random_history_agrees_with_plain_pages(seed: int, page_size: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = random_prompts(rng, 12)
    outputs = rng.integers(0, 9, size=len(prompts))
    contents = [[*spans, (100 + r, int(outputs[r]))] for r, spans in enumerate(prompts)]
    pages = [pages_of(spans, page_size) for spans in contents]
    runs = page_runs(
        np.array([sum(n for _, n in spans) for spans in contents]),
        page_size,
        np.cumsum([0] + [len(spans) for spans in prompts]),
        np.array([identity for spans in prompts for identity, _ in spans]),
        np.array([n for spans in prompts for _, n in spans]),
        100 + np.arange(len(prompts)),
    )
    assert [int(runs.end_page[runs.offset[r + 1] - 1]) if p else 0 for r, p in enumerate(pages)] == [
        len(p) for p in pages
    ]
    total, engine = 40, 1
    tree = new_tree(2, total, 200)
    plain = PlainCache(total)
    live: dict[int, tuple[int, int]] = {}

    for _ in range(300):
        request = int(rng.integers(len(prompts)))
        if request not in live and rng.random() < 0.6:
            limit = int(rng.integers(0, len(pages[request]) + 1))
            hit = matched_pages(tree, engine, runs, request, limit, page_size)
            assert hit == plain.matched(pages[request], limit)
            live[request] = (lock_prefix(tree, engine, runs, request, hit, page_size), hit)
            plain.touch(pages[request][:hit], 1)
        elif request in live:
            last, depth = live[request]
            action = rng.random()
            target = int(rng.integers(depth, len(pages[request]) + 1)) if action < 0.8 else depth
            needed = target - depth
            short = max(0, needed - plain.free)
            evict(tree, engine, short)
            plain.evict(short)
            if target > depth and plain.free >= needed:
                held = plain.matched(pages[request], target)
                tree.free_pages[engine] -= needed
                last, taken = insert_prefix(tree, engine, last, depth, runs, request, target, page_size)
                tree.free_pages[engine] += needed - taken
                plain.release(pages[request][:depth])
                plain.touch(pages[request][:target], 1)
                assert taken == target - max(held, depth)
                plain.free -= taken
                live[request] = (last, target)
            if action > 0.4:
                unlock(tree, engine, last)
                plain.release(pages[request][: live.pop(request)[1]])
        else:
            count = int(rng.integers(0, 5))
            evict(tree, engine, count)
            plain.evict(count)
        assert (tree.free_pages[engine], tree.evictable_pages[engine]) == (plain.free, plain.evictable)
        for other, content in enumerate(pages):
            assert matched_pages(tree, engine, runs, other, len(content), page_size) == plain.matched(
                content, len(content)
            )
    assert tree.counters[OVERFLOW] == 0
    assert tree.free_pages[0] == total


def test_page_runs_without_spans_are_one_run_per_request() -> None:
    runs = page_runs(np.array([10, 3, 8]), 4, None, None, None, None)
    assert runs.offset.tolist() == [0, 1, 2, 3]
    assert runs.run_id.tolist() == [0, 1, 2]
    assert runs.end_page.tolist() == [2, 0, 2]


def test_insert_beyond_node_capacity_raises_the_overflow_flag() -> None:
    runs = page_runs(np.array([4, 4]), 1, None, None, None, None)
    tree = new_tree(1, 100, 1)
    insert_prefix(tree, 0, 0, 0, runs, 0, 4, 1)
    assert tree.counters[OVERFLOW] == 0
    insert_prefix(tree, 0, 0, 0, runs, 1, 4, 1)
    assert tree.counters[OVERFLOW] == 1
