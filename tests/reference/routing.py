"""Round robin over engines, blind to load and cache (traffic specification, section 4.1)."""

from tests.reference.sequence import Sequence


class RoundRobin:
    """One counter over replicas and, inside each replica, one over its attention-DP ranks."""

    def __init__(self, replicas: int, ranks: int, flat: bool = False) -> None:
        self.replicas = replicas
        self.ranks = ranks
        self.flat = flat
        self.routed = 0
        self.routed_in = [0] * replicas

    def pick(self, seq: Sequence) -> tuple[int, int]:
        """(replica, rank) of the next request; `flat` walks all ranks of a replica before the next replica."""
        turn = self.routed
        self.routed += 1
        if self.flat:
            return divmod(turn % (self.replicas * self.ranks), self.ranks)
        replica = turn % self.replicas
        rank = self.routed_in[replica] % self.ranks
        self.routed_in[replica] += 1
        return replica, rank
