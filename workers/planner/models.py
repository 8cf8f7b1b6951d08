"""The latency models of a deployment, one per role, and what they say about load and capacity."""

from collections.abc import Mapping

from workers.planner import capacity, seeds, sla
from workers.planner.demand import Forecast
from workers.planner.latency import AggLatency, DecodeLatency, PrefillLatency
from workers.planner.observation import EngineFacts, Role, RoleView
from workers.planner.seeds import StepTimes
from workers.planner.settings import PlannerSettings


class Models:
    """Models of every role present: aggregated, or prefill and decode."""

    def __init__(
        self, settings: PlannerSettings, facts: Mapping[Role, EngineFacts], times: Mapping[Role, StepTimes]
    ) -> None:
        self._settings, self._facts = settings, facts
        self._agg, self._prefill, self._decode = (
            AggLatency(settings, facts["agg"]) if "agg" in facts else None,
            PrefillLatency(settings, facts["prefill"]) if "prefill" in facts else None,
            DecodeLatency(settings, facts["decode"]) if "decode" in facts else None,
        )
        if self._agg:
            seeds.seed_agg(self._agg, facts["agg"], times["agg"])
        if self._prefill:
            seeds.seed_prefill(self._prefill, facts["prefill"], times["prefill"])
        if self._decode:
            seeds.seed_decode(self._decode, facts["decode"], times["decode"])

    def learn(self, role: Role, view: RoleView) -> None:
        """The records of a tick."""
        model = {"agg": self._agg, "prefill": self._prefill, "decode": self._decode}[role]
        assert model is not None
        for record in view.records:
            model.learn(record)

    def step(self, role: Role, view: RoleView, hit_rate: float) -> int:
        """+1, 0 or -1 engines by present load. view: with at least one record."""
        records, ready, facts = view.records, view.ready, self._facts[role]
        if role == "agg":
            assert self._agg
            return sla.agg_step(self._agg, self._settings, facts, records, ready, hit_rate)
        if role == "prefill":
            assert self._prefill
            return sla.prefill_step(self._prefill, self._settings, records, ready, hit_rate)
        assert self._decode
        return sla.decode_step(self._decode, self._settings, facts, records, ready)

    def engine_rps(self, role: Role, ahead: Forecast) -> float | None:
        """Requests per second of one engine; None where nothing can be said."""
        facts = self._facts[role]
        if role == "agg":
            assert self._agg
            return capacity.agg_rps(self._agg, self._settings, facts, ahead)
        if role == "prefill":
            assert self._prefill
            return capacity.prefill_rps(self._prefill, self._settings, facts, ahead)
        assert self._decode
        return capacity.decode_rps(self._decode, self._settings, facts, ahead)
