"""The search against brute force in a small world, where the plain replay judges."""

import random
from collections import Counter

import numpy as np
import pytest

from app.schemas.status import TrialStatus
from tests.unit.search.world import brute_force, config_of, judge, run, scored, search_of
from workers.search import outline
from workers.search.candidate import canonical_json
from workers.search.concurrencies import spans
from workers.search.history import Told
from workers.search.pareto import front_of
from workers.search.score import ranked
from workers.search.search import FIRST_BATCH

DISAGG = {
    "deployment_mode": ["disagg", "agg"],
    "gpu_budget": 4,
    "prefill_max_num_batched_tokens": [8192],
    "prefill_max_num_seqs": [1, 64, 128],
    "decode_max_num_seqs": [256, 512],
}


@pytest.fixture
def pruning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins and bounds from the first candidate on, however small the space."""
    monkeypatch.setattr(outline, "EVALUATE_ALL", 0)


def feasible(history: list[Told]) -> list[Told]:
    return [told for told in history if told.status == TrialStatus.FEASIBLE]


def winner(history: list[Told]) -> tuple[str, float]:
    first = ranked([scored(told) for told in feasible(history)])[0]
    return first.canonical, first.score


@pytest.mark.usefixtures("pruning")
@pytest.mark.parametrize(
    "target", ["throughput", "throughput_per_gpu", "throughput_per_user", "e2e_latency", "ttft", "goodput_per_gpu"]
)
@pytest.mark.parametrize("space", [{}, DISAGG], ids=["agg", "both"])
@pytest.mark.parametrize(
    "load", [{}, {"concurrency": None, "request_rate": 40, "num_request_ratio": 0.75}], ids=["closed", "open"]
)
def test_auto_returns_the_optimum_of_brute_force(
    target: str, space: dict[str, object], load: dict[str, object]
) -> None:
    goal: dict[str, object] = {"target": target}
    if target.startswith("goodput"):
        goal["sla"] = {"e2e_ms": 220.0}
    config = config_of(search_space=space, workload=load, goal=goal)
    history, coverage = run(config)
    everything = brute_force(config)
    assert winner(history) == winner(everything)
    assert coverage.exhaustive
    assert coverage.evaluated + coverage.bounded_out == coverage.total == len(everything)


@pytest.mark.usefixtures("pruning")
def test_bounds_spare_most_replays_of_a_scalar_goal() -> None:
    config = config_of(search_space=DISAGG, goal={"target": "throughput_per_gpu"})
    history, coverage = run(config, n=4)
    assert coverage.total is not None
    assert len(history) < coverage.total / 3


@pytest.mark.usefixtures("pruning")
def test_no_replay_beats_its_bound() -> None:
    targets = ["throughput", "throughput_per_gpu", "throughput_per_user"]
    for space, load in (
        ({}, {}),
        (DISAGG, {}),
        (DISAGG, {"concurrency": None, "request_rate": 40, "num_request_ratio": 0.75}),
    ):
        config = config_of(
            search_space=space,
            workload=load,
            goal={"target": "pareto", "pareto_objectives": targets},
        )
        prepared = search_of(config)._ready
        for told in brute_force(config):
            place = prepared.locator.place(told.deployment)
            assert place is not None
            own = prepared.outline.branches[place[0]]
            bounds = own.gains[:, place[1] // own.num_options]
            assert np.all(np.array(told.objectives) <= bounds * (1 + 1e-12))


@pytest.mark.usefixtures("pruning")
@pytest.mark.parametrize("space", [{}, DISAGG], ids=["agg", "both"])
def test_auto_returns_the_front_of_brute_force_up_to_twins(space: dict[str, object]) -> None:
    config = config_of(search_space=space, goal={"target": "pareto"})
    history, coverage = run(config)
    everything = brute_force(config)
    ours, theirs = ([scored(told) for told in feasible(each)] for each in (history, everything))
    objectives = config.goal.objectives
    assert {member.values for member in front_of(objectives, ours)} == {
        member.values for member in front_of(objectives, theirs)
    }
    assert coverage.exhaustive


@pytest.mark.usefixtures("pruning")
def test_twins_have_equal_outcomes() -> None:
    config = config_of(
        search_space={**DISAGG, "router_mode": ["kv_router", "round_robin"], "router_temperature": [0.0]}
    )
    prepared = search_of(config)._ready.outline
    rng = random.Random(5)
    for number, own in enumerate(prepared.branches):
        pairs = [
            (group, int(prepared.standing[own.first + group]) - own.first)
            for group in range(own.num_groups)
            if prepared.standing[own.first + group] != own.first + group
        ]
        for group, twin in rng.sample(pairs, 6):
            told = [
                judge(config, prepared.space.deployment(number, each * own.num_options), 0) for each in (group, twin)
            ]
            assert told[0].objectives == told[1].objectives
            assert canonical_json(told[1].deployment) < canonical_json(told[0].deployment)


def test_small_space_is_evaluated_completely_and_once() -> None:
    config = config_of(
        search_space={"parallel_configs": [{"tp": 4}, {"tp": 2, "replicas": 2}, {"tp": 2, "replicas": 2}]},
        goal={"target": "pareto"},
        sweep={"max_rounds": 40, "candidates_per_round": 8},
    )
    history, coverage = run(config)
    texts = [canonical_json(told.deployment) for told in history]
    assert len(texts) == len(set(texts)) == coverage.evaluated == coverage.total == 8
    assert coverage.exhaustive


def test_client_budget_is_kept_exactly_and_is_not_exhaustive() -> None:
    config = config_of(sweep={"max_rounds": 3, "candidates_per_round": 5})
    history, coverage = run(config)
    assert len(history) == 15
    assert not coverage.exhaustive
    assert coverage.total is not None
    assert coverage.skipped == coverage.total - coverage.evaluated - coverage.bounded_out


def test_max_trials_is_a_budget_over_all_branches() -> None:
    history, _ = run(config_of(search_space=DISAGG, sweep={"max_trials": 7}))
    assert len(history) == 7


def test_asking_is_a_pure_function_of_history() -> None:
    config = config_of(search_space=DISAGG, sweep={"max_rounds": 4, "candidates_per_round": 4})
    history, _ = run(config)
    for cut in (0, 4, 9):
        once, twice = (search_of(config).ask(history[:cut], 512) for _ in range(2))
        assert once == twice


def test_random_search_repeats_with_its_seed_and_never_repeats_a_candidate() -> None:
    def texts(seed: int) -> list[str]:
        config = config_of(sweep={"algorithm": "random", "seed": seed, "max_rounds": 2, "candidates_per_round": 10})
        return [canonical_json(told.deployment) for told in run(config)[0]]

    first = texts(1)
    assert first == texts(1)
    assert first != texts(2)
    assert len(set(first)) == len(first) == 20


def test_failed_trials_are_not_asked_for_again_and_spoil_the_certificate() -> None:
    config = config_of(search_space={"parallel_configs": [{"tp": 4}]})
    search = search_of(config)
    asked = search.ask([], 512)
    history = [Told(number, each.deployment, TrialStatus.FAILED) for number, each in enumerate(asked)]
    assert search.ask(history, 512) == []
    assert not search.coverage(history).exhaustive


def test_shapes_without_kv_budget_are_left_out_or_infeasible_and_counted() -> None:
    config = config_of(search_space={"context_length": 2000})
    space = search_of(config)._ready.outline.space
    assert {each.code.value for each in space.excluded} == {"context_too_long"}
    assert min(role.engine_gpus for role in space.branches[0].roles) == 4


def test_kv_load_range_is_refined_only_around_the_front() -> None:
    config = config_of(
        search_space={"gpu_budget": 2, "agg_max_num_seqs": [256], "agg_max_num_batched_tokens": [8192]},
        workload={"concurrency": None, "kv_load_ratio": [0.0, 1.0]},
        goal={"target": "pareto"},
    )
    history, coverage = run(config)
    ratios = Counter(told.deployment.kv_load_ratio for told in history)
    assert {0.0, 0.5, 1.0} <= set(ratios)
    assert any(ratio not in (0.0, 0.5, 1.0) for ratio in ratios)
    assert len({(canonical_json(t.deployment)) for t in history}) == len(history)
    assert coverage.evaluated == len(history)


def test_kv_load_range_counts_its_concurrencies_and_is_not_covered_while_some_are_left() -> None:
    config = config_of(
        search_space={"gpu_budget": 2, "agg_max_num_seqs": [256], "agg_max_num_batched_tokens": [8192]},
        workload={"concurrency": None, "kv_load_ratio": [0.0, 0.5]},
        goal={"target": "pareto"},
    )
    history, coverage = run(config)
    known = search_of(config)._ready.outline
    whole = spans(known.capacity, 0.0, 0.5)
    assert coverage.total == whole.sum()
    assert coverage.evaluated == len(history) == (coverage.total or 0) - coverage.skipped
    assert coverage.skipped > 0
    assert not coverage.exhaustive


def test_kv_loads_of_one_concurrency_are_one_load() -> None:
    config = config_of(
        search_space={"gpu_budget": 2, "agg_max_num_seqs": [256], "agg_max_num_batched_tokens": [8192]},
        workload={"concurrency": None, "kv_load_ratio": [0.0, 0.1]},
        goal={"target": "pareto"},
    )
    history, coverage = run(config)
    assert [told.deployment.kv_load_ratio for told in history] == [0.0] * 3
    assert coverage.exhaustive


def test_baseline_is_evaluated_first_even_outside_the_space() -> None:
    baseline = {"agg": {"tp": 8, "max_num_seqs": 100}}
    config = config_of(search_space={"parallel_configs": [{"tp": 4}]}, baseline=baseline)
    history, coverage = run(config)
    assert history[0].deployment.agg is not None
    assert history[0].deployment.agg.max_num_seqs == 100
    assert coverage.evaluated == coverage.total == 4


@pytest.mark.usefixtures("pruning")
def test_a_broken_bound_is_no_longer_trusted() -> None:
    config = config_of(goal={"target": "throughput"}, search_space=DISAGG)
    search = search_of(config)
    asked = search.ask([], 3)
    told = [Told(n, each.deployment, TrialStatus.FEASIBLE, None, 1e12, (1e12,)) for n, each in enumerate(asked)]
    assert len(search.ask(told, 512)) == FIRST_BATCH


def test_without_bounds_a_round_takes_as_many_as_it_may() -> None:
    assert len(search_of(config_of()).ask([], 512)) == 60
    assert len(search_of(config_of()).ask([], 25)) == 25
