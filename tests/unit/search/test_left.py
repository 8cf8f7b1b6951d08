"""What a search says is left to do, against what it then does."""

from typing import Any

import pytest

from tests.unit.search.test_moves import SPACE as LARGE
from tests.unit.search.test_search import DISAGG
from tests.unit.search.world import config_of, judge, search_of
from workers.search import moves, outline
from workers.search.history import Told

FIRST_ROUNDS = 2
"""Rounds after which the leader stands as good as firm."""


def said_and_true(config: Any, n: int = 16) -> list[tuple[int | None, int]]:
    """Of every round of a study: what was said to be left before it, and the number of trials that then came."""
    search, history = search_of(config), list[Told]()
    said: list[tuple[int | None, int]] = []
    while proposals := search.ask(history, n):
        said.append((search.left(history), len(history)))
        history += [judge(config, each.deployment, len(history) + at) for at, each in enumerate(proposals)]
    return [(left, len(history) - done) for left, done in said]


@pytest.fixture
def pruning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds from the first candidate on, however small the space."""
    monkeypatch.setattr(outline, "EVALUATE_ALL", 0)


@pytest.mark.usefixtures("pruning")
@pytest.mark.parametrize("target", ["throughput", "throughput_per_gpu", "e2e_latency", "pareto"])
@pytest.mark.parametrize("space", [{}, DISAGG], ids=["agg", "both"])
@pytest.mark.parametrize("routers", [["round_robin"], ["round_robin", "kv_router"]], ids=["one", "routers"])
def test_left_is_unknown_at_first_and_then_close_to_the_truth(target: str, space: Any, routers: list[str]) -> None:
    weights = {"overlap_score_credit": [0.5, 1.0], "prefill_load_scale": [1.0], "router_temperature": [0.0]}
    config = config_of(search_space={**space, "router_mode": routers, **weights}, goal={"target": target})
    (first, _), *rest = said_and_true(config)
    assert first is None
    for left, truth in rest[FIRST_ROUNDS - 1 :]:
        assert left is not None
        assert truth <= left <= 1.3 * truth + 8


def test_small_space_is_known_from_the_start() -> None:
    assert all(left == truth for left, truth in said_and_true(config_of()))


@pytest.mark.parametrize("gpu_budget", [2, 8])
def test_random_search_without_budget_is_left_with_all_that_was_not_drawn(gpu_budget: int) -> None:
    sweep = {"algorithm": "random", "whole_space": True}
    config = config_of(search_space={"gpu_budget": gpu_budget}, sweep=sweep)
    assert all(left == truth for left, truth in said_and_true(config))


def test_range_of_kv_loads_ends_nobody_knows_when() -> None:
    workload = {"concurrency": None, "kv_load_ratio": [0.2, 0.8]}
    assert all(left is None for left, _ in said_and_true(config_of(workload=workload, goal={"target": "pareto"})))


@pytest.mark.usefixtures("pruning")
def test_large_space_is_known_up_to_its_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "BEST_FIRST", 48)
    monkeypatch.setattr(moves, "MOST_ARMS", 10)
    workload = {"shared_prefix_ratio": 0.5, "num_prefix_groups": 2}
    told = [left for left, _ in said_and_true(config_of(search_space=LARGE, workload=workload), n=16)]
    assert told[:4] == [None, 32, 16, None]
