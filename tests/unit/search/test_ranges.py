"""A range of KV loads in spaces too large to try every load: expectations put loads in order, replays decide."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from app.schemas.study import SmartSearchConfig
from tests.unit.search.world import config_of, judge, run, search_of
from workers.search import outline
from workers.search.history import Told
from workers.search.hypervolume import hypervolume
from workers.search.loads import first_ratios
from workers.search.ranges import FEWEST

SPACE = {
    "deployment_mode": ["agg", "disagg"],
    "gpu_budget": 4,
    "prefill_max_num_batched_tokens": [8192],
    "prefill_max_num_seqs": [1, 64],
    "decode_max_num_seqs": [256],
}
LOADS = [0.0, 1.0]


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is small enough to be evaluated in full."""
    monkeypatch.setattr(outline, "EVALUATE_ALL", 0)


def ranged(objectives: list[str] | None = None, **space: Any) -> SmartSearchConfig:
    goal: dict[str, object] = {"target": "pareto"}
    if objectives is not None:
        goal["pareto_objectives"] = objectives
    return config_of(search_space={**SPACE, **space}, workload={"concurrency": None, "kv_load_ratio": LOADS}, goal=goal)


def every_concurrency(config: SmartSearchConfig) -> list[Told]:
    """All loads of all candidates."""
    known = search_of(config)._ready.outline
    told: list[Told] = []
    for number, own in enumerate(known.branches):
        for group in range(own.num_groups):
            capacity = int(known.capacity[own.first + group])
            for concurrency in range(1, capacity + 1):
                ratio = (concurrency + 1e-9) / capacity
                index = group * own.num_options * len(own.branch.loads)
                told.append(judge(config, known.space.deployment(number, index, ratio), len(told)))
    return told


def area(history: Iterable[Told]) -> float:
    return hypervolume([(t.objectives[0], t.objectives[1]) for t in history if t.objectives], (0.0, 0.0))


def test_a_range_ends_with_nearly_the_whole_front_after_few_replays() -> None:
    config = ranged()
    history, coverage = run(config)
    everything = every_concurrency(config)
    assert area(history) >= 0.96 * area(everything)
    assert len(history) < len(everything) / 5
    assert coverage.evaluated == len(history)
    assert not coverage.exhaustive


def test_a_range_of_three_objectives_ends() -> None:
    history, coverage = run(ranged(["throughput_per_gpu", "throughput_per_user", "ttft"]), limit=1000)
    assert len(history) < 1000
    assert coverage.skipped > 0


def test_other_options_begin_at_the_loads_of_the_front_and_end_when_it_stands_still() -> None:
    config = ranged(router_mode=["round_robin", "kv_router"], router_temperature=[0.0])
    history, coverage = run(config, limit=2000)
    places = [(str(told.deployment.roles), told.deployment.kv_load_ratio) for told in history]
    routed = [at for at, told in enumerate(history) if told.deployment.router.mode == "kv_router"]
    before = set(places[: routed[0]])
    assert {places[at] for at in routed[:FEWEST]} <= before
    assert len(routed) < len(before) * (len(search_of(config)._ready.outline.space.branches[0].routers) - 1) / 4
    assert not coverage.exhaustive


def test_what_is_expected_is_close_to_what_replays_say() -> None:
    config = ranged(deployment_mode=["agg"])
    known = search_of(config)._ready.outline
    ratios = first_ratios(0.0, 1.0)
    off = []
    for group in known.order.tolist():
        for place, ratio in enumerate(ratios):
            told = judge(config, known.space.deployment(0, group * len(known.branches[0].branch.loads), ratio), 0)
            off.append(np.array(told.objectives) / known.expected[:, group, place])
    assert np.all(np.median(off, axis=0) > 0.8)
    assert np.all(np.median(off, axis=0) < 1.25)
