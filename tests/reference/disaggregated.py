"""The clock of a disaggregated fleet: prefill engines, hand-over, decode engines (traffic specification, 1 and 5)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from app.schemas.status import ReasonCode
from tests.reference.engine_group import EngineGroup
from tests.reference.handoff_ranks import SglangDecodeRank, SglangPrefillRank, VllmDecodeRank, VllmPrefillRank
from tests.reference.kv_routing import KvRouting
from tests.reference.releases import Releases
from tests.reference.routing import RoundRobin
from tests.reference.sequence import Sequence
from workers.errors import StuckError
from workers.replay.fleet import Fleet, KvRouter, Pool
from workers.replay.handoff_loop import MOST_PASSES_AT_ONCE
from workers.replay.outcomes import COMPLETED, REJECTED, UNFINISHED
from workers.traffic.requests import RequestBatch


@dataclass(eq=False)
class HandOver:
    """One request on its way: its prefill half makes one token at most, its decode half makes all tokens."""

    prefill: Sequence
    decode: Sequence
    arrival: int
    source: tuple[int, int] = (-1, -1)
    target: tuple[int, int] = (-1, -1)
    cached_tokens: int = 0
    lands_ms: float = inf
    place: int = 0
    active: bool = False


class DisaggregatedReplay:
    """vLLM and TensorRT-LLM choose the source first, SGLang the destination."""

    def __init__(self, fleet: Fleet, batch: RequestBatch, sequences: list[Sequence]) -> None:
        assert fleet.prefill is not None
        assert fleet.decode is not None
        self.fleet = fleet
        self.sequences = sequences
        self.prefills = [EngineGroup(fleet.prefill, number) for number in range(fleet.prefill.replicas)]
        self.decodes = [EngineGroup(fleet.decode, number) for number in range(fleet.decode.replicas)]
        self.prefill_routing = _routing(fleet.router, fleet.prefill, len(sequences))
        self.decode_routing = _routing(fleet.router, fleet.decode, len(sequences))
        self.destination_first = fleet.prefill.backend == "sglang"
        self.releases = Releases(batch, sequences)
        self.stop_after_ms = inf if batch.stop_after_ms is None else batch.stop_after_ms
        self.prefill_replicas, self.decode_replicas = fleet.prefill.replicas, fleet.decode.replicas
        self.computed_prefill = 0
        self.now = 0.0
        self.targets = [(group.number, rank) for group in self.decodes for rank in range(len(group.ranks))]
        self.requested: dict[tuple[int, int], list[HandOver]] = {target: [] for target in self.targets}
        self.may_serve = dict.fromkeys(self.targets, 0)
        self.travelling: list[HandOver] = []
        self.held: list[HandOver] = []
        self.by_prefill: dict[Sequence, HandOver] = {}
        self.halves: list[Sequence] = []
        self.ended_at_once: list[Sequence] = []

    def run(self) -> None:
        """Jump from event to event until nothing is left or the time limit passes."""
        while (moment := self.next_moment()) < inf:
            if moment > self.stop_after_ms:
                return
            self.step(moment)
        self.check_all_done()

    def step(self, moment: float, *, may_arrive: bool = True) -> None:
        """Everything that happens at one instant.

        What is released by a pass without duration, or by a request that never got room, comes in another step of the same
        instant; so does what is released at a planner's tick.
        """
        self.now = moment
        self._finish_passes()
        self._hand_over()
        self._start_passes()
        for seq in self.releases.pop_due(self.now) if may_arrive else []:
            self._arrive(seq)
        self._hand_over()
        self._start_passes()
        self.may_serve = dict.fromkeys(self.targets, 0)
        while self.ended_at_once:
            self._ended(self.ended_at_once.pop(0), COMPLETED)

    def check_all_done(self) -> None:
        """Raises: StuckError when nothing can happen any more and requests are left."""
        if stuck := sum(seq.status == UNFINISHED and seq.arrival_ms == seq.arrival_ms for seq in self.sequences):
            raise StuckError(ReasonCode.REPLAY_STUCK, f"{stuck} requests cannot go on")

    def next_moment(self) -> float:
        """The next event, infinity when nothing is left."""
        return min(self.releases.next_ms, self.next_own_moment())

    def next_own_moment(self) -> float:
        """The next pass end or landing, infinity when nothing is under way."""
        ends = [g.end_ms for g in self.prefills + self.decodes if g.end_ms is not None]
        return min([inf, *ends, *(h.lands_ms for h in self.travelling if h.lands_ms > self.now)])

    # ---- passes

    def _finish_passes(self) -> None:
        """Completions due now, prefill engines first, each role by ascending engine; then the new hand-overs."""
        prefilled: list[HandOver] = []
        for group in self._due(self.prefills):
            for seq in self._end_pass(group, self.prefill_routing):
                prefilled += self._prefilled(seq, rejected=seq.index in group.rejected)
        for group in self._due(self.decodes):
            self.may_serve.update({(group.number, rank): 1 for rank in range(len(group.ranks))})
            for seq in self._end_pass(group, self.decode_routing):
                self._ended(seq, COMPLETED)
        self._serve_queues()
        for over in prefilled:
            if self.destination_first:
                self._depart(over)
            else:
                self._request_destination(over)

    def _end_pass(self, group: EngineGroup, routing: RoundRobin | KvRouting) -> list[Sequence]:
        ended = group.finish_pass()
        self.computed_prefill += sum(result.computed_prefill for result in group.results)
        if isinstance(routing, KvRouting):
            routing.pass_ended(group, ended)
        return ended

    def _due(self, groups: list[EngineGroup]) -> Iterable[EngineGroup]:
        return [g for g in groups if g.end_ms is not None and g.end_ms <= self.now]

    def _start_passes(self) -> None:
        """Passes on idle engines, prefill first."""
        for group in self.prefills:
            if not group.is_busy and group.has_work:
                group.start_pass(self.now)
        for group in self.decodes:
            self._start_decode(group)

    def _start_decode(self, group: EngineGroup) -> None:
        """A pass without duration ends at once, one that could do nothing serves its queues as if it had ended."""
        ranks = [(group.number, rank) for rank in range(len(group.ranks))]
        at_once = 0
        while not group.is_busy and group.has_work:
            self._note_queues()
            had_effect = group.start_pass(self.now)
            if had_effect:
                if group.end_ms != self.now:
                    return
                at_once = 0 if any(result.emitted for result in group.results) else at_once + 1
                if at_once > MOST_PASSES_AT_ONCE:
                    raise StuckError(ReasonCode.REPLAY_STUCK, f"engine {group.number} cannot go on at {self.now} ms")
                self.ended_at_once += self._end_pass(group, self.decode_routing)
            self.may_serve.update(dict.fromkeys(ranks, 1))
            if not self._hand_over() and not had_effect:
                return

    def _note_queues(self) -> None:
        for target in self.targets:
            self._rank(target).others_wait = bool(self.requested[target])
            self._rank(target).coming_tokens = sum(over.decode.prompt for over in self.coming(target))

    def coming(self, target: tuple[int, int]) -> list[HandOver]:
        """Requests that want room on a decode rank or have it, but have not landed there."""
        return [over for over in self.by_prefill.values() if over.target == target and not over.active]

    def _prefilled(self, seq: Sequence, rejected: bool) -> list[HandOver]:
        over = self.by_prefill[seq]
        over.decode.admissions = list(seq.admissions)
        if rejected:
            del self.by_prefill[seq]
            self._ended(over.decode, REJECTED)
            return []
        self.held.append(over)
        return [over]

    def _ended(self, seq: Sequence, status: int) -> None:
        seq.status, seq.end_ms = status, self.now
        self.releases.ended(seq, self.now)

    # ---- hand-over

    def _arrive(self, seq: Sequence) -> None:
        half = replace(seq, max_output=min(1, seq.max_output), admissions=[], token_ms=[])
        over = HandOver(prefill=half, decode=seq, arrival=len(self.halves))
        self.by_prefill[half] = over
        self.halves.append(half)
        if self.destination_first:
            self._request_destination(over)
        else:
            self._queue_prompt(over)

    def _queue_prompt(self, over: HandOver) -> None:
        over.source = self.prefill_routing.pick(over.prefill)
        over.decode.prefill_worker = over.source[0] * self.prefills[0].pool.attention_dp + over.source[1]
        self.prefills[over.source[0]].ranks[over.source[1]].submit(over.prefill)

    def _request_destination(self, over: HandOver) -> None:
        """Queue for room on a decode rank; one between passes serves the head of its queue at once."""
        over.target = self.decode_routing.pick(over.decode)
        over.decode.worker, over.decode.dp_rank = over.target
        if self._rank(over.target).can_never_hold(over.decode):
            self._fail(over)
            return
        self.requested[over.target].append(over)
        if not self.decodes[over.target[0]].is_busy:
            self._reserve_head(over.target)

    def _fail(self, over: HandOver) -> None:
        """No decode rank of this kind ever takes the prompt: the request ends here, and its session with it."""
        over.active = True
        if over in self.held:
            self.held.remove(over)
            self.held.append(over)
        over.decode.status, over.decode.end_ms = REJECTED, self.now
        self.releases.abandoned(self.now)

    def _reserve_head(self, target: tuple[int, int]) -> bool:
        """Give the first in the queue its room, if there is room (and, SGLang apart, a slot to run in)."""
        over = self.requested[target][0]
        rank = self._rank(target)
        if not self.destination_first and len(rank.running) >= rank.pool.max_num_seqs:
            return False
        cached = rank.reserve(over.decode)
        if cached is None:
            return False
        self.requested[target].pop(0)
        over.cached_tokens = cached
        if self.destination_first:
            self._queue_prompt(over)
        else:
            self._depart(over)
        return True

    def _depart(self, over: HandOver) -> None:
        over.lands_ms = self.now + (transfer_ms := self._transfer_ms(over))
        over.place = over.arrival if transfer_ms > 0 else 0  # at once: in the order of departure
        self.travelling.append(over)

    def _transfer_ms(self, over: HandOver) -> float:
        transfer = self.fleet.transfer
        if not transfer.bytes_per_token or not transfer.bandwidth_gb_per_s:
            return 0.0
        tokens = over.decode.prompt
        if transfer.timing == "destination_missing":
            assert self.fleet.decode is not None
            size = self.fleet.decode.block_size
            tokens = -(-over.decode.prompt // size) * size - over.cached_tokens
        return tokens * transfer.bytes_per_token / (transfer.bandwidth_gb_per_s * 1e9) * 1000.0

    def _hand_over(self) -> bool:
        """Reservations, activations and releases on engines between passes, until nothing changes; True if any did."""
        any_changed, changed = False, True
        while changed:
            changed = self._activate_landed() | self._serve_queues()
            any_changed |= changed
        for over in [h for h in self.held if h.active and not self.prefills[h.source[0]].is_busy]:
            self.held.remove(over)
            del self.by_prefill[over.prefill]
            source = self.prefills[over.source[0]].ranks[over.source[1]]
            assert isinstance(source, VllmPrefillRank | SglangPrefillRank)
            source.release(over.prefill)
        return any_changed

    def _activate_landed(self) -> bool:
        landed = [h for h in self.travelling if h.lands_ms <= self.now and not self.decodes[h.target[0]].is_busy]
        for over in sorted(landed, key=self._activation_order):
            self.travelling.remove(over)
            over.active = True
            self.held.remove(over)
            self.held.append(over)
            self._rank(over.target).activate(over.decode)
            self.may_serve[over.target] += 1
        return bool(landed)

    def _activation_order(self, over: HandOver) -> tuple[bool, tuple[int, int], float, int]:
        """What waited for the end of a pass rank by rank, then what lands just now."""
        lands_now = over.lands_ms == self.now
        return lands_now, (0, 0) if lands_now else over.target, over.lands_ms, over.place

    def _serve_queues(self) -> bool:
        """One reservation per pass end and per activation of a rank."""
        served = False
        for target, queue in self.requested.items():
            while queue and not self.decodes[target[0]].is_busy and self.may_serve[target] > 0:
                if not self._reserve_head(target):
                    break
                self.may_serve[target] -= 1
                served = True
        return served

    def _rank(self, target: tuple[int, int]) -> VllmDecodeRank | SglangDecodeRank:
        rank = self.decodes[target[0]].ranks[target[1]]
        assert isinstance(rank, VllmDecodeRank | SglangDecodeRank)
        return rank


def _routing(router: KvRouter | None, pool: Pool, num_requests: int) -> RoundRobin | KvRouting:
    if router:
        return KvRouting(router, pool, num_requests)
    return RoundRobin(pool.replicas, pool.attention_dp, flat=True)
