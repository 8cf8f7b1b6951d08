"""What is made from an object alone, kept for the next replays."""

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST_REQUESTS = 1 << 20
"""Requests whose arrays one `Kept` holds: some 300 bytes each."""


class Kept(threading.local, Generic[T]):
    """Values by the identity of what they were made from, which stays alive as long as they do.

    Every thread has its own, so what a replay changes in them no other replay sees in its midst. With `most` entries, or
    entries of `most_weight` together, the oldest go; the newest always stays.
    """

    def __init__(self, most: int, most_weight: int = MOST_REQUESTS) -> None:
        self._most, self._most_weight = most, most_weight
        self._entries: dict[Hashable, tuple[tuple[object, ...], T, int]] = {}
        self._weight = 0

    def of(self, owners: tuple[Any, ...], make: Callable[[], T], key: Hashable = None, weight: int = 0) -> T:
        """The value made from `owners` under `key`: the kept one, else that of `make`."""
        place = (*map(id, owners), key)
        entry = self._entries.get(place)
        if entry is None:
            value = make()
            while self._entries and (len(self._entries) >= self._most or self._weight + weight > self._most_weight):
                self._weight -= self._entries.pop(next(iter(self._entries)))[2]
            entry = self._entries[place] = (owners, value, weight)
            self._weight += weight
        return entry[1]
