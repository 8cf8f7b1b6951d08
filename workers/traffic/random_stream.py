"""The peer's random stream, bit for bit: ChaCha with 12 rounds, keyed from a 64-bit seed.

Arrivals and prefix groups of synthetic traffic are drawn from it, so a reproduced draw is a reproduced replay.
Source: traffic spec, section 2.2; ChaCha as in RFC 8439 with 12 rounds, a 64-bit block counter and a zero nonce.
"""

import numpy as np
from numpy.typing import NDArray

_WORDS = 16
_ROUND_PAIRS = 6
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_QUARTERS = (
    ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)
_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1


class RandomStream:
    """Draws of one stream, in order; mixed kinds of draws consume the same words."""

    def __init__(self, seed: int) -> None:
        self._key = _key_from_seed(seed)
        self._next_word = 0

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """float64 [count], each in [0, 1) with 53 random bits; two words each, low word first."""
        words = self._peek(2 * count)
        self._next_word += 2 * count
        bits = words[0::2].astype(np.uint64) | (words[1::2].astype(np.uint64) << np.uint64(32))
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, bound: int, count: int) -> NDArray[np.int64]:
        """int64 [count], each uniform over 0..bound-1; one word each, a second one in about `bound` of 2^32 draws."""
        if not 1 <= bound <= _MASK32:
            raise ValueError(f"bound must lie in 1..2^32-1, got {bound}")
        drawn = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            product = self._peek(count - done).astype(np.uint64) * np.uint64(bound)
            values = (product >> np.uint64(32)).astype(np.int64)
            biased = np.flatnonzero((product & np.uint64(_MASK32)) > np.uint64((1 << 32) - bound))
            taken = int(biased[0]) + 1 if biased.size else count - done
            drawn[done : done + taken] = values[:taken]
            self._next_word += taken
            done += taken
            if biased.size:
                drawn[done - 1] += self._carry(int(product[taken - 1]), bound)
        return drawn

    def _carry(self, product: int, bound: int) -> int:
        """The correction of one biased draw, from one more word."""
        second = int(self._peek(1)[0]) * bound
        self._next_word += 1
        return int((product & _MASK32) + (second >> 32) > _MASK32)

    def _peek(self, count: int) -> NDArray[np.uint32]:
        """The next `count` words, not consumed."""
        first = self._next_word // _WORDS
        last = (self._next_word + count + _WORDS - 1) // _WORDS
        words = _blocks(self._key, first, last - first)
        start = self._next_word - first * _WORDS
        return words[start : start + count]


def _key_from_seed(seed: int) -> list[int]:
    """Eight key words from a 64-bit seed by a PCG32 sequence."""
    state, key = seed & _MASK64, []
    for _ in range(8):
        state = (state * 6364136223846793005 + 11634580027462260723) & _MASK64
        mixed = (((state >> 18) ^ state) >> 27) & _MASK32
        turn = state >> 59
        key.append(((mixed >> turn) | (mixed << ((32 - turn) & 31))) & _MASK32)
    return key


def _blocks(key: list[int], first: int, count: int) -> NDArray[np.uint32]:
    """Output words of `count` blocks from block `first`, all blocks computed side by side."""
    counter = np.arange(first, first + count, dtype=np.uint64)
    start = np.zeros((_WORDS, count), dtype=np.uint32)
    start[:12] = np.array([*_CONSTANTS, *key], dtype=np.uint32)[:, None]
    start[12] = (counter & np.uint64(_MASK32)).astype(np.uint32)
    start[13] = (counter >> np.uint64(32)).astype(np.uint32)
    state = start.copy()
    for _ in range(_ROUND_PAIRS):
        for quarters in _QUARTERS:
            for quarter in quarters:
                _quarter_round(state, *quarter)
    return (state + start).T.reshape(-1)


def _quarter_round(state: NDArray[np.uint32], a: int, b: int, c: int, d: int) -> None:
    """One quarter round on four rows of `state`, in place."""
    for left, right, target, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[left] += state[right]
        mixed = state[target] ^ state[left]
        state[target] = (mixed << np.uint32(bits)) | (mixed >> np.uint32(32 - bits))
