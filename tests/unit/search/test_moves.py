"""Spaces taken for too large: best first for a while, then step by step from what leads."""

from typing import Any

import pytest

from tests.unit.search.world import brute_force, config_of, run, scored, search_of
from workers.search import moves, outline
from workers.search.candidate import canonical_json, flat_candidate
from workers.search.history import Told
from workers.search.score import ranked

SPACE = {
    "gpu_budget": 8,
    "deployment_mode": ["agg", "disagg"],
    "prefill_max_num_batched_tokens": [8192],
    "prefill_max_num_seqs": [1, 16, 64],
    "decode_max_num_seqs": [256],
    "agg_max_num_seqs": [256],
}
FIRST = 24


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every space counts as large while more than a handful may win."""
    monkeypatch.setattr(outline, "EVALUATE_ALL", 0)
    monkeypatch.setattr(moves, "BEST_FIRST", FIRST)
    monkeypatch.setattr(moves, "MOST_ARMS", 10)


def large(target: str = "throughput", **sweep: Any) -> tuple[list[Told], Any]:
    # Shared tokens loosen the bounds, so that much may still win.
    workload = {"shared_prefix_ratio": 0.5, "num_prefix_groups": 2}
    return run(config_of(search_space=SPACE, workload=workload, goal={"target": target}, sweep=sweep))


def best(history: list[Told]) -> float:
    return ranked([scored(told) for told in history if told.score is not None])[0].score


@pytest.mark.parametrize("target", ["throughput", "e2e_latency"])
def test_moves_find_the_optimum_with_part_of_the_replays_and_do_not_claim_all(target: str) -> None:
    history, coverage = large(target)
    config = config_of(
        search_space=SPACE, workload={"shared_prefix_ratio": 0.5, "num_prefix_groups": 2}, goal={"target": target}
    )
    everything = brute_force(config)
    assert best(history) == best(everything)
    assert FIRST < len(history) < len(everything)
    assert not coverage.exhaustive
    assert coverage.skipped > 0


def test_moves_repeat_with_their_seed_and_never_repeat_a_candidate() -> None:
    texts = [canonical_json(told.deployment) for told in large()[0]]
    assert texts == [canonical_json(told.deployment) for told in large()[0]]
    assert len(texts) == len(set(texts))


def test_moves_from_a_front_end() -> None:
    history, coverage = large("pareto")
    assert len(history) > FIRST
    assert not coverage.exhaustive


def test_a_step_changes_one_role_or_one_knob() -> None:
    space = {**SPACE, "router_mode": ["round_robin", "kv_router"], "backend": ["vllm", "sglang"]}
    known = search_of(config_of(search_space=space))._ready.outline
    own = known.branches[1]
    arm = (own.first + own.num_groups // 2, 3)
    here, steps = flat(known, arm), set(moves._neighbours(own, arm))
    changed = [{_root(name) for name, value in flat(known, near).items() if value != here.get(name)} for near in steps]
    assert steps
    assert all(len(each - {"used_gpus", "router_mode"}) == 1 for each in changed if "router" not in each)
    assert {"backend", "prefill", "decode", "router"} <= set().union(*changed)


def _root(name: str) -> str:
    weights = {"router_mode", "overlap_score_credit", "prefill_load_scale", "router_temperature"}
    return "router" if name in weights else name.split("_")[0] if name.startswith(("prefill", "decode")) else name


def flat(known: Any, arm: tuple[int, int]) -> dict[str, Any]:
    own = known.branches[known.branch_of(arm[0])]
    index = ((arm[0] - own.first) * own.num_options + arm[1]) * len(own.branch.loads)
    return flat_candidate(known.space.deployment(known.branch_of(arm[0]), index))
