"""KV-aware routing of one pool: cached prefix against load (traffic specification, section 4.2).

The router sees the caches as they were at each engine's last pass end, and counts load by itself.
"""

from dataclasses import dataclass, field
from itertools import accumulate
from math import exp

from tests.reference.block_pool import chain_hashes
from tests.reference.engine_group import EngineGroup
from tests.reference.sequence import Sequence
from workers.replay.fleet import KvRouter, Pool
from workers.traffic.random_stream import RandomStream


@dataclass
class Load:
    """What the router believes of one rank: prompt tokens before their first token, blocks of unfinished requests."""

    cached: set[int] = field(default_factory=set)
    prefill_tokens: dict[Sequence, int] = field(default_factory=dict)
    blocks: dict[Sequence, list[int]] = field(default_factory=dict)

    def overlap(self, keys: list[int]) -> int:
        """Leading full blocks of a prompt in this cache."""
        missing = (i for i, key in enumerate(keys) if key not in self.cached)
        return next(missing, len(keys))


class KvRouting:
    """Picks the rank of least cost; equal costs are decided by one number per request, where the peer draws every time."""

    def __init__(self, router: KvRouter, pool: Pool, num_requests: int) -> None:
        self.router = router
        self.role = pool.role
        self.block_size = pool.block_size
        self.draws = RandomStream(router.seed + int(pool.role == "decode")).uniforms(num_requests)
        self.attention_dp = pool.attention_dp
        self.loads: dict[tuple[int, int], Load] = {}
        self.ready: list[int] = []
        for replica in range(pool.replicas):
            self.add(replica)

    def add(self, replica: int) -> None:
        """Engine `replica` takes requests from now on."""
        self.ready = sorted([*self.ready, replica])
        self.loads |= {(replica, rank): Load() for rank in range(self.attention_dp)}

    def pick(self, seq: Sequence) -> tuple[int, int]:
        """(replica, rank) of a request, whose load counts there from now on."""
        keys = chain_hashes(seq.tokens[: seq.prompt], self.block_size)
        places = [(replica, rank) for replica in self.ready for rank in range(self.attention_dp)]
        costs = [self._cost(seq, keys, self.loads[place]) for place in places]
        place = places[self._choose(costs, float(self.draws[seq.index]))]
        load = self.loads[place]
        load.prefill_tokens[seq] = seq.prompt - self.block_size * load.overlap(keys)
        load.blocks[seq] = keys
        return place

    def pass_ended(self, group: EngineGroup, ended: list[Sequence]) -> None:
        """First tokens end prefill load, ended requests all load; the caches show what this pass put there."""
        for rank, engine in enumerate(group.ranks):
            load = self.loads[group.number, rank]
            for seq in [seq for result in group.results for seq, _ in result.emitted] + ended:
                load.prefill_tokens.pop(seq, None)
            for seq in ended:
                load.blocks.pop(seq, None)
            load.cached = engine.cached_keys()

    def _cost(self, seq: Sequence, keys: list[int], load: Load) -> float:
        """Prefill engines have no decode load, decode engines no prefill load and no use for a cached prefix."""
        tokens = sum(load.prefill_tokens.values()) + seq.prompt
        prefill = max(0.0, tokens / self.block_size - self.router.overlap_score_credit * load.overlap(keys))
        active = {key for blocks in load.blocks.values() for key in blocks}
        cost = 0.0 if self.role == "decode" else self.router.prefill_load_scale * prefill
        return cost if self.role == "prefill" else cost + len(active | set(keys))

    def _choose(self, costs: list[float], draw: float) -> int:
        spread = max(costs) - min(costs)
        if self.router.temperature <= 0.0 or spread == 0.0:
            equals = [place for place, cost in enumerate(costs) if cost == min(costs)]
            return equals[int(draw * len(equals))]
        weights = [exp(-(cost - min(costs)) / (spread * self.router.temperature)) for cost in costs]
        reached = list(accumulate(weights))
        return next((place for place, sum_ in enumerate(reached) if sum_ > draw * reached[-1]), len(costs) - 1)
