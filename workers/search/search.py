"""The search of a study, as a pure function of its history: what to evaluate next, and how much is settled.

`auto` goes through the groups of the space in the order of their bounds, each with its first option; then through the
other options (routers, planners), those of the best groups first. It skips what is proven no better than what it has,
and ends when nothing is left, or when the client's own budget is spent. `random` draws without replacement from
everything. `vizier` asks a GP bandit, which sees parameters instead of candidates (see `bandit`). A range of KV loads is
sampled at both ends and the middle, then refined along the front.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

from app.schemas.deployment import ParallelShape
from app.schemas.plan import Plan, TracePlan
from app.schemas.study import SmartSearchConfig, canonical_json
from workers.search import coverage, draw, left
from workers.search.bandit import Bandit
from workers.search.baseline import baseline_deployment
from workers.search.bounds import Times
from workers.search.forecasts import predictor_fields
from workers.search.history import Coverage, Proposal, Told
from workers.search.locate import Locator
from workers.search.outline import Outline, outline
from workers.search.ranges import FEWEST
from workers.search.refine import refinements
from workers.search.rounds import allowance
from workers.search.standing import Arm, Standing
from workers.search.study_space import catalog_facts, study_space
from workers.timing.aic import AicTimes, aic_times, engine_identity, persist_all

FIRST_BATCH = 16
"""Trials asked for at first, but as many as a range of KV loads takes anyway; later as many as there have been, so that
early results spare late replays."""

Pick = tuple[Arm, float | None]
"""An arm, and the KV load ratio to try where a range is searched."""


class Search:
    """The sampler of one study; it keeps no state between calls."""

    def __init__(self, config: SmartSearchConfig, plan: Plan, seed: int, ready: "Prepared | None" = None) -> None:
        # The space follows from the configuration; of the plan only what the trace says and the load predictors matter.
        self._config, self._seed = config, seed
        self._ready = ready or prepared(canonical_json(config), _predictors(plan), plan.trace)

    def ask(self, history: Sequence[Told], n: int, should_stop: Callable[[], bool] = lambda: False) -> list[Proposal]:
        """At most n proposals to evaluate next; none when the search has ended.

        Raises: SamplerError; StoppedError if `should_stop` ends an optimizer that takes its time.
        """
        baseline = baseline_deployment(self._config)
        if baseline is not None and not any(told.deployment == baseline for told in history):
            return [Proposal(baseline)][:n]
        ours = [told for told in history if told.deployment != baseline]
        standing = Standing.of(self._ready.outline, self._ready.locator, history)
        if self._config.sweep.whole_space:
            wanted = min(n, max(self._first_batch, len(ours))) if self._ready.outline.is_bounded else n
            return self._proposals(islice(self._picks(standing, None), wanted))
        return self._within_budget(standing, ours, n, should_stop)

    def coverage(self, history: Sequence[Told]) -> Coverage:
        """How much of the space the history settles."""
        standing = Standing.of(self._ready.outline, self._ready.locator, history)
        # An optimizer is not asked just to learn whether it would answer: its studies end by their budget.
        ended = self._config.sweep.algorithm == "vizier" or not self.ask(history, 1)
        return coverage.coverage(standing, ended=ended)

    def left(self, history: Sequence[Told]) -> int | None:
        """About how many trials are still to come, whatever the budget; None while nothing tells."""
        if self._config.sweep.algorithm == "vizier":
            return None
        standing = Standing.of(self._ready.outline, self._ready.locator, history)
        if self._config.sweep.algorithm == "random":
            return None if self._config.workload.kv_load_range else standing.outline.space.size - len(standing.asked)
        return left.arms_left(standing)

    @property
    def _first_batch(self) -> int:
        return FEWEST if self._config.workload.kv_load_range is not None else FIRST_BATCH

    def _within_budget(
        self, standing: Standing, history: Sequence[Told], n: int, should_stop: Callable[[], bool]
    ) -> list[Proposal]:
        modes = [branch.mode for branch in self._ready.outline.space.branches]
        spent = [False] * len(modes)
        while (turn := allowance(self._config.sweep, modes, history, spent)).branch is not None:
            wanted = min(n, turn.trials)
            if self._config.sweep.algorithm == "vizier":
                proposals = self._suggested(standing, turn.branch, history, wanted, should_stop)
            else:
                proposals = self._proposals(islice(self._picks(standing, turn.branch), wanted))
            if proposals or turn.trials == 0:
                return proposals
            spent[turn.branch] = True
        return []

    def _suggested(
        self, standing: Standing, branch: int, history: Sequence[Told], n: int, should_stop: Callable[[], bool]
    ) -> list[Proposal]:
        if n == 0 or standing.has_asked_all(branch):
            return []
        seed = self._config.sweep.seed
        return self._ready.bandit(branch).ask(history, n, seed, should_stop)

    def _picks(self, standing: Standing, branch: int | None) -> Iterator[Pick]:
        """What is left to ask, in order; only of one branch if given."""
        if self._config.sweep.algorithm == "random":
            return draw.draws(standing, branch, self._seed)
        return refinements(standing, branch, self._seed)

    def _proposals(self, picks: Iterator[Pick]) -> list[Proposal]:
        return [_proposal(self._ready.outline, arm, ratio) for arm, ratio in picks]


def _predictors(plan: Plan) -> str:
    return json.dumps(predictor_fields(plan.load_predictors), sort_keys=True)


class Prepared:
    """What every round of a study needs anew: outline, locator, and the bandits of its branches."""

    def __init__(self, known: Outline, is_moe: bool) -> None:
        self.outline = known
        self.locator = Locator(known.space)
        self._is_moe = is_moe
        self._bandits: dict[int, Bandit] = {}

    def bandit(self, branch: int) -> Bandit:
        """The bandit of a branch, made when it is first asked."""
        if branch not in self._bandits:
            self._bandits[branch] = Bandit(self.outline.space, branch, self._is_moe)
        return self._bandits[branch]


@lru_cache(maxsize=8)
def prepared(document: str, predictors: str = "{}", trace: TracePlan | None = None) -> Prepared:
    """What the search of a configuration works with; the last few are kept.

    Args: document, the configuration in canonical JSON; predictors, fields of the load predictor chosen per interval;
    trace, what the plan says of it.
    """
    config = SmartSearchConfig.model_validate_json(document)
    space = config.search_space
    used: set[AicTimes] = set()

    def times(backend: str, shape: ParallelShape) -> Times:
        identity = engine_identity(space.model_name, space.hardware_sku, backend, shape, space.aic_nextn)
        used.add(known := aic_times(identity))
        return known

    chosen = {int(interval): fields for interval, fields in json.loads(predictors).items()}
    facts = catalog_facts(config)
    ready = Prepared(outline(study_space(config, chosen), facts, times, trace), facts.is_moe)
    persist_all(used)  # The replays, in other processes, ask the same questions.
    return ready


def _proposal(known: Outline, arm: Arm, ratio: float | None) -> Proposal:
    number = known.branch_of(arm[0])
    own = known.branches[number]
    index = ((arm[0] - own.first) * own.num_options + arm[1]) * len(own.branch.loads)
    return Proposal(known.space.deployment(number, index, ratio))
