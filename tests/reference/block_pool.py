"""KV block pool of one vLLM or TensorRT-LLM rank, block by block.

Rules: replay-engine specification, sections 4 and 5. A block is free, private (owned, not yet full), cached and
active (full, owned) or cached and inactive (full, nobody's, kept for reuse, oldest release evicted first).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Block:
    """A physical block; key is its chain hash once it is full, owners how many sequences hold it."""

    owners: int = 1
    key: int | None = None


def chain_hashes(tokens: NDArray[np.int64], block_size: int) -> list[int]:
    """Identity of every full block: a hash over all tokens from the start of the sequence to the block's end."""
    keys: list[int] = []
    parent = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, tokens[start : start + block_size].tobytes()))
        keys.append(parent)
    return keys


class BlockPool:
    """N blocks; the invariant is free + active + inactive = N."""

    def __init__(self, num_blocks: int, retain: bool) -> None:
        self.num_blocks = num_blocks
        self.retain = retain
        self.free = num_blocks
        self.copies: dict[int, list[Block]] = {}
        self.inactive: dict[Block, None] = {}
        self.times_released = 0

    @property
    def active(self) -> int:
        """Blocks owned by at least one sequence."""
        return self.num_blocks - self.free - len(self.inactive)

    def match(self, keys: list[int]) -> list[Block]:
        """Longest leading run of cached blocks; of several copies the oldest answers."""
        hits: list[Block] = []
        for key in keys:
            if key not in self.copies:
                break
            hits.append(self.copies[key][0])
        return hits

    def is_inactive(self, block: Block) -> bool:
        """True for a cached block that nobody holds."""
        return block in self.inactive

    def can_take(self, fresh: int, hits: list[Block]) -> bool:
        """True if `fresh` new blocks exist beside pinning the hits."""
        pinned = sum(self.is_inactive(block) for block in hits)
        return fresh <= self.free + len(self.inactive) - pinned

    def take(self, fresh: int, hits: list[Block]) -> list[Block]:
        """Pin the hits and allocate `fresh` private blocks: free ones first, then the least recently released."""
        for block in hits:
            self.inactive.pop(block, None)
            block.owners += 1
        for _ in range(max(0, fresh - self.free)):
            self._evict()
        self.free -= fresh
        assert self.free >= 0
        return hits + [Block() for _ in range(fresh)]

    def fill(self, block: Block, key: int) -> None:
        """A private block became full and can be found from now on."""
        if self.retain:
            block.key = key
            self.copies.setdefault(key, []).append(block)

    def release(self, blocks: list[Block]) -> None:
        """Give blocks back from last to first, so that a sequence's tail is evicted before its head."""
        self.times_released += any(block.owners == 1 for block in blocks)
        for block in reversed(blocks):
            block.owners -= 1
            if block.owners:
                continue
            if block.key is None:
                self.free += 1
            else:
                self.inactive[block] = None

    def _evict(self) -> None:
        block = next(iter(self.inactive))
        del self.inactive[block]
        assert block.key is not None
        self.copies[block.key].remove(block)
        if not self.copies[block.key]:
            del self.copies[block.key]
        self.free += 1
