"""The plain replay with a planner in the loop: ticks, start-ups and drains around the static clocks.

All work of an instant settles before its tick; an engine whose start-up ends takes work of that very instant. Rules: search
specification, section 5.
"""

from dataclasses import dataclass, replace
from math import inf

from tests.reference.aggregated import AggregatedReplay
from tests.reference.disaggregated import DisaggregatedReplay
from tests.reference.elastic_engines import ElasticEngines, Life
from tests.reference.engine_group import EngineGroup
from tests.reference.outcomes import outcomes_of
from tests.reference.sequence import Sequence, sequences
from workers.planner.observation import Observation, Role, Scaler, Traffic
from workers.replay.fleet import Fleet
from workers.replay.outcomes import COMPLETED, Outcomes
from workers.traffic.requests import RequestBatch


@dataclass
class PlainElastic:
    """What happened: outcomes, (instant, role, from, to, engines) of every change, every engine's life, observations."""

    outcomes: Outcomes
    events: list[tuple[float, Role, int, int, tuple[int, ...]]]
    lives: dict[Role, list[Life]]
    observations: list[Observation]


def replay_elastic(fleet: Fleet, batch: RequestBatch, scaler: Scaler) -> PlainElastic:
    """Replay every request while `scaler` adds and drains engines. Raises: as `plain_replay.replay`."""
    return _ElasticReplay(fleet, batch, scaler).run()


class _ElasticReplay:
    def __init__(self, fleet: Fleet, batch: RequestBatch, scaler: Scaler) -> None:
        self.batch, self.scaler = batch, scaler
        self.seqs = sequences(batch)
        self.clock: AggregatedReplay | DisaggregatedReplay
        if fleet.agg:
            self.clock = clock = AggregatedReplay(fleet, batch, self.seqs)
            self.engines = {"agg": ElasticEngines("agg", fleet.agg, clock.groups, clock.routing, scaler.startup_ms)}
        else:
            self.clock = both = DisaggregatedReplay(fleet, batch, self.seqs)
            assert fleet.prefill is not None
            assert fleet.decode is not None
            wait_ms = scaler.startup_ms
            self.engines = {
                "prefill": ElasticEngines("prefill", fleet.prefill, both.prefills, both.prefill_routing, wait_ms),
                "decode": ElasticEngines("decode", fleet.decode, both.decodes, both.decode_routing, wait_ms),
            }
        self.tick_ms = scaler.interval_ms
        self.reported: set[tuple[str, Sequence]] = set()
        self.observations: list[Observation] = []
        self.events: list[tuple[float, Role, int, int, tuple[int, ...]]] = []

    def run(self) -> PlainElastic:
        """Jump from instant to instant; without requests left there is no further tick."""
        while (moment := self.clock.next_moment()) < inf:
            ready_ms = min(engines.next_ready_ms for engines in self.engines.values())
            if min(moment, ready_ms, self.tick_ms) > self.clock.stop_after_ms:
                break
            if ready_ms <= min(moment, self.tick_ms):
                for engines in self.engines.values():
                    engines.start_due(ready_ms)
            elif self._is_tick_due(moment):
                self._tick(self.tick_ms)
                self.tick_ms += self.scaler.interval_ms
            else:
                self._step(moment)
                self._remove_drained(moment)
        if isinstance(self.clock, DisaggregatedReplay) and moment == inf:
            self.clock.check_all_done()
        return PlainElastic(self._outcomes(), self.events, self._lives(), self.observations)

    def _is_tick_due(self, moment: float) -> bool:
        """Aggregated requests released at the instant of a tick come before it, disaggregated ones after it."""
        if isinstance(self.clock, DisaggregatedReplay) and moment == self.tick_ms:
            return self.clock.next_own_moment() > moment
        return self.tick_ms < moment

    def _step(self, moment: float) -> None:
        if isinstance(self.clock, DisaggregatedReplay):
            self.clock.step(moment, may_arrive=moment < self.tick_ms)
        else:
            self.clock.step(moment)

    def _tick(self, now: float) -> None:
        views = {role: engines.view(now) for role, engines in self.engines.items()}
        self.observations.append(Observation(now, views, self._traffic(now)))  # type: ignore[arg-type]
        wanted = self.scaler.decide(self.observations[-1])
        for role, engines in self.engines.items():
            if role in wanted:
                engines.scale(wanted[role], now)  # type: ignore[index]
                self.events += engines.events
                engines.events = []
        if isinstance(self.clock, DisaggregatedReplay):
            self._open_queues(self.clock)
        self._remove_drained(now)

    def _open_queues(self, clock: DisaggregatedReplay) -> None:
        clock.targets = [(group.number, rank) for group in clock.decodes for rank in range(len(group.ranks))]
        for target in clock.targets:
            clock.requested.setdefault(target, [])
            clock.may_serve.setdefault(target, 0)

    def _remove_drained(self, now: float) -> None:
        for role, engines in self.engines.items():
            engines.remove_drained(lambda group, role=role: self._has_work(role, group), now)  # type: ignore[misc]

    def _has_work(self, role: str, group: EngineGroup) -> bool:
        """A source is busy until its prompts are released, a destination from the request for room on."""
        if group.is_busy or group.has_work:
            return True
        if not isinstance(self.clock, DisaggregatedReplay):
            return False
        if role == "prefill":
            return any(over.source[0] == group.number for over in self.clock.by_prefill.values())
        return any(over.target[0] == group.number and not over.active for over in self.clock.by_prefill.values())

    def _traffic(self, now: float) -> Traffic:
        released = [seq for seq in self.seqs if self._is_new("arrival", seq, seq.arrival_ms, now)]
        completed = [seq for seq in self.seqs if seq.status == COMPLETED and self._is_new("end", seq, seq.end_ms, now)]
        admitted = [
            seq
            for seq in self._admitting()
            if seq.admissions and self._is_new("admission", seq, seq.admissions[0][0], now)
        ]
        return Traffic(
            num_requests=len(released),
            num_completed=len(completed),
            isl_tokens=sum(seq.prompt for seq in completed),
            osl_tokens=sum(len(seq.token_ms) for seq in completed),
            num_admitted=len(admitted),
            hit_rate_sum=sum(seq.admissions[0][1] / seq.prompt for seq in admitted if seq.prompt),
        )

    def _admitting(self) -> list[Sequence]:
        """Requests as the engines see them that compute their prompts."""
        if isinstance(self.clock, DisaggregatedReplay):
            return self.clock.halves
        return self.seqs

    def _is_new(self, event: str, seq: Sequence, moment: float, now: float) -> bool:
        """True once per event: at the first tick after it, or at its own instant if it came before that tick."""
        is_new = moment <= now and (event, seq) not in self.reported
        if is_new:
            self.reported.add((event, seq))
        return is_new

    def _outcomes(self) -> Outcomes:
        outcomes = outcomes_of(self.batch, self.seqs, self.clock)
        seconds = {role: self._worker_s(engines, outcomes) for role, engines in self.engines.items()}
        decode_s = seconds["agg"] if "agg" in seconds else seconds["decode"]
        return replace(outcomes, prefill_worker_s=seconds.get("prefill", 0.0), decode_worker_s=decode_s)

    def _worker_s(self, engines: ElasticEngines, outcomes: Outcomes) -> float:
        end = outcomes.end_of_replay_ms
        ends = [end if life.removed_ms is None else min(life.removed_ms, end) for life in engines.lives]
        return sum(max(0.0, to - life.created_ms) for to, life in zip(ends, engines.lives, strict=True)) / 1000.0

    def _lives(self) -> dict[Role, list[Life]]:
        return {role: engines.lives for role, engines in self.engines.items()}  # type: ignore[misc]
