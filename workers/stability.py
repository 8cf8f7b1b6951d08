"""How firm the leaders of a study stand: replayed again under a little less and more load, and other random arrivals.

The five best of a scalar goal, the first ten of a front. Deterministic: it depends on the configuration and on the
leaders alone, so a study that is resumed says the same.

Source: service contract, section 8.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.schemas.advice import Warned
from app.schemas.deployment import Deployment
from app.schemas.status import TrialStatus
from app.schemas.study import SmartSearchConfig
from app.schemas.workload import Workload
from workers.evaluate import evaluate_many
from workers.search.candidate import scored
from workers.search.pareto import front_of
from workers.search.score import ranked
from workers.traffic.workload import TraceFile
from workers.verdict import Verdict

LEADERS, FRONT_LEADERS = 5, 10
LOADS = (0.9, 1.1)
NUM_SEEDS = 5
MOST_REQUESTS = 2_000_000
"""Requests replayed in all; a check that takes more is left out, with a warning."""

SATURATED_TTFT = 2.0
"""The winner stands at the edge of saturation if a tenth more load makes its mean TTFT so many times longer."""


@dataclass(frozen=True, slots=True)
class Variation:
    """One change of the load. name: as the document says it."""

    name: str
    load_ratio: float
    arrival_seed: int | None = None

    def applied(self, config: SmartSearchConfig) -> SmartSearchConfig:
        """The configuration under the changed load; a load that belongs to the candidate is left to `deployed`."""
        return config.model_copy(update={"workload": config.workload.model_copy(update=self._changes(config.workload))})

    def deployed(self, deployment: Deployment) -> Deployment:
        """The candidate under the changed load."""
        if deployment.kv_load_ratio is None:
            return deployment
        return deployment.model_copy(update={"kv_load_ratio": deployment.kv_load_ratio * self.load_ratio})

    def _changes(self, workload: Workload) -> dict[str, Any]:
        if self.arrival_seed is not None:
            return {"arrival_seed": self.arrival_seed}
        for name in ("concurrency", "replay_concurrency"):
            cap = getattr(workload, name)
            if cap is not None:
                return {name: max(1, round(cap * self.load_ratio))}
        if workload.is_trace_based:
            return {"arrival_speedup_ratio": workload.arrival_speedup_ratio * self.load_ratio}
        return {} if workload.request_rate is None else {"request_rate": workload.request_rate * self.load_ratio}


@dataclass(frozen=True, slots=True)
class Stability:
    """documents: one per leader, in their order, empty when not checked. warnings: for the study."""

    documents: tuple[dict[str, Any], ...] = ()
    warnings: tuple[Warned, ...] = field(default=())


UNFINISHED = Stability(
    warnings=(
        Warned(pointer="/sweep/max_eval_seconds", detail="the stability of the winner could not be checked in time"),
    )
)


def variations(workload: Workload) -> tuple[Variation, ...]:
    """Every change of the load that is tried."""
    loads = [Variation(f"{ratio:g} of the load", ratio) for ratio in LOADS]
    if workload.request_rate is None or workload.arrival != "poisson":
        return tuple(loads)
    first = workload.arrival_seed + 1
    return (*loads, *(Variation(f"arrival seed {seed}", 1.0, seed) for seed in range(first, first + NUM_SEEDS)))


def num_replays(config: SmartSearchConfig, num_leaders: int) -> int:
    """Replays that the check takes."""
    return num_leaders * (1 + len(variations(config.workload)))


def stability(
    config: SmartSearchConfig,
    leaders: Sequence[Deployment],
    trace: TraceFile | None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Stability:
    """The leaders, best first, under every variation of the load; a warning instead if it had to stop."""
    changes = variations(config.workload)
    usual = list(evaluate_many(config, leaders, trace, should_stop))
    requests = sum(int(verdict.load.get("num_requests") or 0) for verdict in usual)
    if requests * len(changes) > MOST_REQUESTS:
        detail = f"the stability of the winner is not checked: it would take {requests * len(changes)} requests"
        return Stability(warnings=(Warned(pointer="/workload", detail=detail),))
    outcomes = [
        list(evaluate_many(change.applied(config), [change.deployed(each) for each in leaders], trace, should_stop))
        for change in changes
    ]
    if should_stop():
        return UNFINISHED
    standings = [_standings(config, leaders, verdicts) for verdicts in outcomes]
    documents = tuple(
        _document(config, changes, [verdicts[at] for verdicts in outcomes], [standing[at] for standing in standings])
        for at in range(len(leaders))
    )
    return Stability(documents, tuple(_warnings(config, changes, usual, outcomes, standings)))


def _standings(
    config: SmartSearchConfig, leaders: Sequence[Deployment], verdicts: Sequence[Verdict]
) -> list[int | bool | None]:
    """Rank among the leaders, or whether still on the front; None for a leader that is no candidate any more."""
    results = {
        at: scored(leader, verdict.score, verdict.objectives, verdict.rejected)
        for at, (leader, verdict) in enumerate(zip(leaders, verdicts, strict=True))
        if verdict.status == TrialStatus.FEASIBLE and verdict.score is not None
    }
    if config.goal.is_pareto:
        front = {id(member) for member in front_of(config.goal.objectives, results.values())}
        return [id(results[at]) in front if at in results else None for at in range(len(leaders))]
    rank = {id(each): place for place, each in enumerate(ranked(list(results.values())), start=1)}
    return [rank[id(results[at])] if at in results else None for at in range(len(leaders))]


def _document(
    config: SmartSearchConfig,
    changes: Sequence[Variation],
    verdicts: Sequence[Verdict],
    standings: Sequence[int | bool | None],
) -> dict[str, Any]:
    standing = "on_front" if config.goal.is_pareto else "rank"
    rows = []
    for change, verdict, place in zip(changes, verdicts, standings, strict=True):
        named = dict(zip(config.goal.objectives, verdict.objectives, strict=False))
        row = {"variation": change.name, "load_ratio": change.load_ratio, "arrival_seed": change.arrival_seed}
        rows.append({**row, "objectives": named or None, standing: place})
    return {"variations": rows}


def _warnings(
    config: SmartSearchConfig,
    changes: Sequence[Variation],
    usual: Sequence[Verdict],
    outcomes: Sequence[Sequence[Verdict]],
    standings: Sequence[Sequence[int | bool | None]],
) -> Iterator[Warned]:
    for change, standing in zip(changes, standings, strict=True):
        if config.goal.is_pareto:
            off = sum(place is not True for place in standing)
            if off:
                detail = f"at {change.name} {off} of the first {len(standing)} candidates leave the front"
                yield Warned(pointer="/workload", detail=detail)
        elif standing and standing[0] != 1:
            best = standing.index(1) + 1 if 1 in standing else None
            instead = f"the one of rank {best} is best" if best else "none of the leaders is a candidate"
            yield Warned(pointer="/workload", detail=f"at {change.name} the winner is not the best: {instead}")
    if config.goal.is_pareto or not usual:
        return
    now = usual[0].metrics.get("mean_ttft_ms")
    more = outcomes[LOADS.index(1.1)][0].metrics.get("mean_ttft_ms")
    if now and more and more > SATURATED_TTFT * now:
        detail = (
            f"the winner stands at the edge of saturation: a tenth more load takes its mean TTFT"
            f" from {now:.0f} to {more:.0f} ms"
        )
        yield Warned(pointer="/workload", detail=detail)
