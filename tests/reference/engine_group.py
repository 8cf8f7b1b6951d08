"""One replica: a group of attention-DP ranks that start and end their passes together (R-DP)."""

from dataclasses import dataclass

from tests.reference.acceptance import Acceptance
from tests.reference.handoff_ranks import SglangDecodeRank, SglangPrefillRank, VllmDecodeRank, VllmPrefillRank
from tests.reference.sequence import PassLoad, PassResult, Sequence
from tests.reference.sglang import SglangRank
from tests.reference.vllm import VllmRank
from workers.replay.fleet import Pool


@dataclass(frozen=True)
class LatestPass:
    """The last pass that ended on a rank: its load, how long it took and when it ended, ms."""

    load: PassLoad
    wall_time_ms: float
    end_ms: float


class EngineGroup:
    """Ranks with own queues and pools, one common pass clock."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.number = number
        self.pool = pool
        ranks = range(pool.attention_dp)
        self.ranks = [_rank(pool, pool.acceptance_seed + number * pool.attention_dp + rank) for rank in ranks]
        self.end_ms: float | None = None
        self.group_pass = 0
        self.blocked_prefills = 0
        self.results: list[PassResult] = []
        self.start_ms = 0.0
        self.loads: list[PassLoad] = []
        self.latest: list[LatestPass | None] = [None] * pool.attention_dp

    @property
    def is_busy(self) -> bool:
        """True while a pass is under way."""
        return self.end_ms is not None

    @property
    def has_work(self) -> bool:
        """True while any rank has waiting or running sequences."""
        return any(rank.has_work for rank in self.ranks)

    def start_pass(self, now: float) -> bool:
        """Every rank with work runs its own pass; the group ends with the slowest. False if nothing could be done."""
        if not any(rank.running for rank in self.ranks):
            self._open_gate()
        may_prefill = self.blocked_prefills == 0
        by_rank = [rank.run_pass(now, self.group_pass, may_prefill) if rank.has_work else None for rank in self.ranks]
        results = [result for result in by_rank if result is not None]
        duration = max(result.duration_ms for result in results)
        if duration == 0.0 and not any(result.effect for result in results):
            return False
        self.results = results
        self.start_ms = now
        self.loads = [result.load if result else PassLoad() for result in by_rank]
        self.group_pass += 1
        self.blocked_prefills = max(0, self.blocked_prefills - 1)
        if any(result.did_prefill for result in results):
            self.blocked_prefills = self.pool.prefill_decode_interval
        self.end_ms = now + duration
        return True

    def _open_gate(self) -> None:
        """Passes that may not prefill and have nothing to decode take no time; they restore SGLang's start ratio."""
        for rank in self.ranks:
            if self.blocked_prefills and isinstance(rank, SglangRank):
                rank.ratio = rank.start_ratio
        self.blocked_prefills = 0

    def finish_pass(self) -> list[Sequence]:
        """Stamp the tokens of the pass with its end and return the sequences that ended with it.

        Of one rank, those without any output come first.
        """
        assert self.end_ms is not None
        self.latest = [LatestPass(load, self.end_ms - self.start_ms, self.end_ms) for load in self.loads]
        ended: list[Sequence] = []
        for result in self.results:
            for seq, tokens in result.emitted:
                seq.token_ms += [self.end_ms] * tokens
            ended += sorted(result.finished, key=lambda seq: seq.max_output > 0) + result.rejected
        if not self.has_work:
            self.group_pass = 0
            self._open_gate()
        self.end_ms = None
        return ended

    @property
    def rejected(self) -> set[int]:
        """Indices of the requests the last pass refused."""
        return {seq.index for result in self.results for seq in result.rejected}


Rank = VllmRank | SglangRank


def _rank(pool: Pool, seed: int) -> Rank:
    acceptance = Acceptance(pool.acceptance, seed)
    is_sglang = pool.backend == "sglang"
    if pool.role == "prefill":
        return SglangPrefillRank(pool, acceptance) if is_sglang else VllmPrefillRank(pool, acceptance)
    if pool.role == "decode":
        return SglangDecodeRank(pool, acceptance) if is_sglang else VllmDecodeRank(pool, acceptance)
    return SglangRank(pool, acceptance) if is_sglang else VllmRank(pool, acceptance)
