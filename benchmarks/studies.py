"""Whole studies in this process, without database or broker: the search asks, the evaluation answers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from app.schemas.deployment import Deployment
from app.schemas.status import TrialStatus
from app.schemas.study import SmartSearchConfig, canonical_json
from workers.evaluate import evaluate_many
from workers.plan import plan
from workers.search.candidate import scored
from workers.search.history import Coverage, Told
from workers.search.score import Scored
from workers.search.search import Prepared, Search, prepared
from workers.verdict import Verdict

ROUND_TRIALS = 512
MAX_TRIALS = 20_000


@dataclass(frozen=True)
class Study:
    """What became of a study. seconds: plan, search and replays."""

    history: list[Told]
    coverage: Coverage | None
    seconds: float


def evaluate(config: SmartSearchConfig, deployments: Sequence[Deployment], first: int = 0) -> list[Told]:
    """Trials of these deployments, numbered from `first`."""
    verdicts = evaluate_many(config, deployments, None, lambda: False)
    return [told(first + at, *pair) for at, pair in enumerate(zip(deployments, verdicts, strict=True))]


def told(number: int, deployment: Deployment, verdict: Verdict) -> Told:
    """A trial as the search hears of it."""
    reason = verdict.reason.code if verdict.reason else None
    return Told(number, deployment, verdict.status, reason, verdict.score, verdict.objectives, verdict.rejected)


def run(config: SmartSearchConfig) -> Study:
    """Search until it ends by itself."""
    started = time.perf_counter()
    search, history = Search(config, plan(config), config.sweep.seed), list[Told]()
    while proposals := search.ask(history, min(ROUND_TRIALS, MAX_TRIALS - len(history))):
        history += evaluate(config, [each.deployment for each in proposals], len(history))
        if len(history) >= MAX_TRIALS:
            break
    return Study(history, search.coverage(history), time.perf_counter() - started)


def brute_force(config: SmartSearchConfig) -> Study:
    """Evaluate every candidate of the space."""
    started = time.perf_counter()
    space = space_of(config).outline.space
    deployments = [
        space.deployment(number, index) for number, branch in enumerate(space.branches) for index in range(branch.size)
    ]
    return Study(evaluate(config, deployments), None, time.perf_counter() - started)


def space_of(config: SmartSearchConfig) -> Prepared:
    """Outline and locator of a configuration."""
    return prepared(canonical_json(config))


def candidates(study: Study) -> list[Scored]:
    """The feasible trials as ranking sees them."""
    return [
        scored(t.deployment, t.score or 0.0, t.objectives, t.rejected)
        for t in study.history
        if t.status == TrialStatus.FEASIBLE
    ]
