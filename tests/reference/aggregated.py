"""The clock of an aggregated fleet: what happens at one instant, in which order (traffic specification, 1)."""

from math import inf

from app.schemas.status import ReasonCode
from tests.reference.engine_group import EngineGroup
from tests.reference.kv_routing import KvRouting
from tests.reference.releases import Releases
from tests.reference.routing import RoundRobin
from tests.reference.sequence import Sequence
from workers.errors import StuckError
from workers.replay.fleet import Fleet
from workers.replay.outcomes import COMPLETED, REJECTED
from workers.traffic.requests import RequestBatch


class AggregatedReplay:
    """Engines that prefill and decode, requests routed to them at their release."""

    prefill_replicas = 0

    def __init__(self, fleet: Fleet, batch: RequestBatch, sequences: list[Sequence]) -> None:
        assert fleet.agg is not None
        self.groups = [EngineGroup(fleet.agg, number) for number in range(fleet.agg.replicas)]
        self.kv_routing = KvRouting(fleet.router, fleet.agg, len(sequences)) if fleet.router else None
        self.routing = self.kv_routing or RoundRobin(fleet.agg.replicas, fleet.agg.attention_dp)
        self.releases = Releases(batch, sequences)
        self.stop_after_ms = inf if batch.stop_after_ms is None else batch.stop_after_ms
        self.decode_replicas = fleet.agg.replicas
        self.computed_prefill = 0
        self.now = 0.0

    def run(self) -> None:
        """Jump from event to event until nothing is left or the time limit passes."""
        while (moment := self.next_moment()) < inf and moment <= self.stop_after_ms:
            self.step(moment)

    def next_moment(self) -> float:
        """The next event, infinity when nothing is left."""
        return min([self.releases.next_ms] + [g.end_ms for g in self.groups if g.end_ms is not None])

    def step(self, moment: float) -> None:
        """Everything that happens at one instant."""
        assert moment >= self.now, "the clock never runs back"
        self.now = moment
        self._finish_passes()
        self._release()
        self._start_passes()

    def _finish_passes(self) -> None:
        """Completions due now by ascending engine; follow-ups and refills are released after all of them."""
        for group in self.groups:
            if group.end_ms is not None and group.end_ms <= self.now:
                self._finish_pass(group)

    def _finish_pass(self, group: EngineGroup) -> None:
        ended = group.finish_pass()
        if self.kv_routing:
            self.kv_routing.pass_ended(group, ended)
        for seq in ended:
            seq.status = REJECTED if seq.index in group.rejected else COMPLETED
            seq.end_ms = self.now
            self.releases.ended(seq, self.now)
        self.computed_prefill += sum(result.computed_prefill for result in group.results)

    def _release(self) -> None:
        for seq in self.releases.pop_due(self.now):
            seq.worker, seq.dp_rank = self.routing.pick(seq)
            self.groups[seq.worker].ranks[seq.dp_rank].submit(seq)

    def _start_passes(self) -> None:
        """A pass without duration ends at once and the next one starts, before what it releases is routed."""
        for group in self.groups:
            while not group.is_busy and group.has_work:
                if not group.start_pass(self.now):
                    raise StuckError(ReasonCode.REPLAY_STUCK, f"engine {group.number} cannot go on at {self.now} ms")
                if group.end_ms == self.now:
                    self._finish_pass(group)
