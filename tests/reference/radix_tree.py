"""Radix tree of cached token sequences, as one SGLang rank keeps it (replay-engine specification, 7.6 and 7.10).

Edges hold whole pages. A locked node is used by a sequence and cannot be evicted; locking a node locks its path.
"""

from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


class Node:
    """An edge's tokens and the subtree below it."""

    def __init__(self, tokens: Tokens, parent: "Node | None", access: int) -> None:
        self.tokens = tokens
        self.parent = parent
        self.access = access
        self.locks = 0
        self.children: dict[int, Node] = {}


class RadixTree:
    """Sequences cached page by page; `size` and `evictable` are in tokens."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.clock: Iterator[int] = count(1)
        self.root = Node(np.empty(0, dtype=np.int64), None, 0)
        self.size = 0
        self.evictable = 0

    def match(self, tokens: Tokens) -> tuple[Node, int]:
        """Deepest node covering a prefix of whole pages, and its length; every node on the way is refreshed.

        An edge matched in part is refreshed as a whole and split, so that the matched part can be locked.
        """
        now, node, matched = next(self.clock), self.root, 0
        while True:
            child = self._child(node, tokens[matched:])
            if child is None:
                return node, matched
            child.access = now
            common = self._common_pages(child.tokens, tokens[matched:])
            if common < len(child.tokens):
                child = self._split(child, common)
            node, matched = child, matched + common

    def peek(self, tokens: Tokens) -> int:
        """Length of the cached prefix of whole pages, leaving the tree and its ages as they are."""
        node, matched = self.root, 0
        while (child := self._child(node, tokens[matched:])) is not None:
            common = self._common_pages(child.tokens, tokens[matched:])
            matched += common
            if common < len(child.tokens):
                break
            node = child
        return matched

    def insert(self, tokens: Tokens, holder: Node) -> tuple[Node, int]:
        """Add a sequence of whole pages; returns its last node and how many of its tokens were there already.

        A leaf that no other sequence holds than the inserting one (`holder`) grows in place instead of getting a child.
        """
        node, matched = self.match(tokens)
        if matched == len(tokens):
            return node, matched
        self.size += len(tokens) - matched
        if node.locks == (1 if node is holder else 0) and not node.children and node.parent is not None:
            node.tokens = tokens[matched - len(node.tokens) :].copy()
            self.evictable += len(tokens) - matched if node.locks == 0 else 0
            return node, matched
        leaf = Node(tokens[matched:].copy(), node, node.access if node.parent else next(self.clock))
        node.children[self._first_page(leaf.tokens)] = leaf
        self.evictable += len(leaf.tokens)
        return leaf, matched

    def sequences(self) -> list[Tokens]:
        """The longest sequences held: one per leaf, from the root."""
        paths = [list(self._path(leaf))[::-1] for leaf in self._leaves(self.root)]
        return [np.concatenate([step.tokens for step in path]) for path in paths]

    def lock(self, node: Node) -> None:
        """Protect the path from the root to `node`."""
        for step in self._path(node):
            if step.locks == 0:
                self.evictable -= len(step.tokens)
            step.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one lock."""
        for step in self._path(node):
            step.locks -= 1
            if step.locks == 0:
                self.evictable += len(step.tokens)

    def evict(self, tokens: int) -> int:
        """Drop at least `tokens` (rounded up to pages): tails of the least recently used unlocked leaves first."""
        dropped = 0
        while dropped < tokens:
            leaves = [leaf for leaf in self._leaves(self.root) if leaf.locks == 0]
            if not leaves:
                break
            dropped += self._trim(min(leaves, key=lambda leaf: leaf.access), tokens - dropped)
        return dropped

    def _trim(self, leaf: Node, wanted: int) -> int:
        size = min(len(leaf.tokens), -(-wanted // self.page) * self.page)
        kept = len(leaf.tokens) - size
        if kept == 0:
            assert leaf.parent is not None
            del leaf.parent.children[self._first_page(leaf.tokens)]
        leaf.tokens = leaf.tokens[:kept]
        self.size -= size
        self.evictable -= size
        return size

    def _split(self, child: Node, at: int) -> Node:
        """Cut an edge in two; the upper part keeps the locks that run through it."""
        assert child.parent is not None
        upper = Node(child.tokens[:at], child.parent, child.access)
        upper.locks = child.locks
        child.parent.children[self._first_page(upper.tokens)] = upper
        child.tokens, child.parent = child.tokens[at:], upper
        upper.children[self._first_page(child.tokens)] = child
        return upper

    def _child(self, node: Node, tokens: Tokens) -> Node | None:
        if len(tokens) < self.page:
            return None
        return node.children.get(self._first_page(tokens))

    def _first_page(self, tokens: Tokens) -> int:
        return hash(tokens[: self.page].tobytes())

    def _common_pages(self, a: Tokens, b: Tokens) -> int:
        shorter = min(len(a), len(b))
        differing = np.nonzero(a[:shorter] != b[:shorter])[0]
        common = int(differing[0]) if len(differing) else shorter
        return common // self.page * self.page

    def _path(self, node: Node) -> Iterator[Node]:
        while node.parent is not None:
            yield node
            node = node.parent

    def _leaves(self, node: Node) -> Iterator[Node]:
        for child in node.children.values():
            if child.children:
                yield from self._leaves(child)
            else:
                yield child
