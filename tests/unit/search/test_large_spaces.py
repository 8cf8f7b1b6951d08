"""A space of more than a billion candidates, with its real size: nothing of it is listed, and nothing is claimed."""

import tracemalloc

import pytest

from app.schemas.presets import SCALING_POLICIES
from app.schemas.status import TrialStatus
from tests.unit.search.world import config_of, search_of
from workers.search import moves
from workers.search.candidate import canonical_json
from workers.search.history import Told

CONFIG = {
    "search_space": {
        "model_name": "Qwen/Qwen3-30B-A3B-FP8",
        "gpu_budget": 12,
        "deployment_mode": ["disagg", "agg"],
        "backend": ["vllm", "sglang", "trtllm"],
        "router_mode": ["round_robin", "kv_router"],
        "planner_scaling_policy": list(SCALING_POLICIES),
    },
    # Shared tokens loosen the bounds, so that much may still win.
    "workload": {"shared_prefix_ratio": 0.5, "num_prefix_groups": 2},
    "goal": {"target": "goodput_per_gpu", "sla": {"ttft_ms": 500.0, "itl_ms": 50.0}},
}
FIRST, MEMORY_MB = 64, 100


def test_a_billion_candidates_are_searched_in_bounded_memory_and_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "BEST_FIRST", FIRST)
    search, history = search_of(config_of(**CONFIG)), list[Told]()
    assert search._ready.outline.space.size > 10**9
    tracemalloc.start()
    try:
        while len(history) < 4 * FIRST:
            asked = search.ask(history, 32)
            assert asked
            for each in asked:
                # Worse from trial to trial, so that the first one leads.
                score = 1.0 / (1 + len(history))
                history.append(Told(len(history), each.deployment, TrialStatus.FEASIBLE, None, score, (score,)))
        coverage = search.coverage(history)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_MB * 1e6
    assert len({canonical_json(told.deployment) for told in history}) == len(history)
    assert coverage.total == search._ready.outline.space.size
    assert coverage.evaluated == len(history)
    assert not coverage.exhaustive
