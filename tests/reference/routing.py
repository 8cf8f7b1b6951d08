"""Round robin over engines, blind to load and cache (traffic specification, section 4.1)."""

from collections import Counter

from tests.reference.sequence import Sequence


class RoundRobin:
    """One counter over the ready replicas and, inside each replica, one over its attention-DP ranks.

    The counter is the place after the last one taken: when the set of ready replicas changes it stays where it is.
    """

    def __init__(self, replicas: int, ranks: int, flat: bool = False) -> None:
        self.ready = list(range(replicas))
        self.ranks = ranks
        self.flat = flat
        self.turn = 0
        self.routed_in: Counter[int] = Counter()

    def pick(self, seq: Sequence) -> tuple[int, int]:
        """(replica, rank) of the next request; `flat` walks all ranks of a replica before the next replica."""
        if self.flat:
            place = self._next(len(self.ready) * self.ranks)
            return self.ready[place // self.ranks], place % self.ranks
        replica = self.ready[self._next(len(self.ready))]
        rank = self.routed_in[replica] % self.ranks
        self.routed_in[replica] += 1
        return replica, rank

    def add(self, replica: int) -> None:
        """Engine `replica` takes requests from now on."""
        self.ready = sorted([*self.ready, replica])

    def _next(self, count: int) -> int:
        place = self.turn % count
        self.turn = place + 1
        return place
