"""Hand-made observations."""

from collections.abc import Sequence
from typing import Any

from workers.planner.observation import EngineFacts, Observation, PassRecord, Role, RoleView, Traffic
from workers.planner.planner import Planner
from workers.planner.settings import PlannerSettings

FACTS = EngineFacts(gpus=1, max_kv_tokens=12800, max_num_batched_tokens=8192, max_num_seqs=256)


class Lines:
    """5 ms and 0.05 ms a prompt token; 4 ms, 0.1 ms a request and 1 us a KV token."""

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        """Of n prompts."""
        return 5.0 + 0.05 * n * (isl - prefix)

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:
        """Of n requests."""
        return 4.0 + 0.1 * n + 0.001 * total_context


def record(engine: int = 0, rank: int = 0, **load: Any) -> PassRecord:
    """A record of one rank; what is not said is 0."""
    fields = ("num_prefill_requests", "prefill_tokens", "num_decode_requests", "decode_kv_tokens")
    waiting = ("queued_prefill_tokens", "queued_decode_kv_tokens")
    known = dict.fromkeys((*fields, *waiting), 0) | {"wall_time_ms": 0.0} | load
    return PassRecord(engine=engine, dp_rank=rank, **known)


def view(*records: PassRecord, ready: int | None = None, expected: int | None = None) -> RoleView:
    """A role whose engines have all reported, unless said otherwise."""
    engines = len({each.engine for each in records}) if ready is None else ready
    return RoleView(engines, engines if expected is None else expected, records)


def agg_planner(facts: EngineFacts = FACTS, **settings: Any) -> Planner:
    """A planner of aggregated engines."""
    return Planner(PlannerSettings(**settings), {"agg": facts}, {"agg": Lines()})


def look(at_s: float, traffic: Traffic | None = None, **roles: RoleView) -> Observation:
    """A tick. roles: by name."""
    views: dict[Role, RoleView] = dict(roles.items())  # type: ignore[misc]
    return Observation(at_s * 1000.0, views, traffic or Traffic())


def evenly(engines: int, **load: Any) -> Sequence[PassRecord]:
    """The same load on every engine."""
    return [record(engine, **load) for engine in range(engines)]
