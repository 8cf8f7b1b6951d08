"""No replay of a trace beats the bounds that follow from its sums and extremes; the plain replay judges."""

import random
from typing import Any

import numpy as np
import pytest

from app.schemas.plan import TracePlan
from app.schemas.study import SmartSearchConfig
from tests.unit.search.world import WorldFacts, config_of, fleet_of, measure, times
from workers.search.bound_load import bound_load
from workers.search.outline import outline
from workers.search.score import objectives, signed
from workers.search.space import build_space
from workers.traffic.requests import RequestBatch

OBJECTIVES = ["throughput", "throughput_per_gpu", "throughput_per_user", "e2e_latency", "ttft"]
DISAGG = {"deployment_mode": ["disagg", "agg"], "prefill_max_num_seqs": [1, 64], "decode_max_num_seqs": [256]}
NUM_REQUESTS, SPAN_MS = 40, 900.0


def config(cap: int | None = None, **space: Any) -> SmartSearchConfig:
    workload = dict.fromkeys(("isl", "osl", "concurrency", "num_request_ratio"))
    trace = {"trace_path": "some-trace", "replay_concurrency": cap}
    goal = {"target": "pareto", "pareto_objectives": OBJECTIVES}
    return config_of(search_space={"gpu_budget": 4, **space}, workload={**workload, **trace}, goal=goal)


def batch(seed: int, cap: int | None) -> RequestBatch:
    """Short and long prompts, outputs of one token among them."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, SPAN_MS, NUM_REQUESTS)) if cap is None else np.zeros(NUM_REQUESTS)
    if cap is None:
        arrival[0], arrival[-1] = 0.0, SPAN_MS
    return RequestBatch(
        arrival_ms=arrival,
        delay_ms=np.zeros(NUM_REQUESTS),
        input_tokens=rng.integers(3, 100, NUM_REQUESTS),
        output_tokens=rng.choice([1, 2, 9, 30], NUM_REQUESTS),
        session=np.arange(NUM_REQUESTS),
        order=np.arange(NUM_REQUESTS),
        in_flight_cap=cap,
    )


def sums(requests: RequestBatch, **changes: Any) -> TracePlan:
    known = {
        "num_requests": NUM_REQUESTS,
        "num_requests_over": 0,
        "num_requests_without_output": 0,
        "input_tokens": int(requests.input_tokens.sum()),
        "output_tokens": int(requests.output_tokens.sum()),
        "shortest_prompt_tokens": int(requests.input_tokens.min()),
        "longest_request_tokens": int((requests.input_tokens + requests.output_tokens).max()),
        "span_ms": SPAN_MS,
        "max_turns": 1,
        "shares_tokens": False,
    }
    return TracePlan(**{**known, **changes})


@pytest.mark.parametrize("cap", [None, 6], ids=["open", "capped"])
@pytest.mark.parametrize("space", [{}, DISAGG], ids=["agg", "both"])
def test_no_replay_of_a_trace_beats_its_bound(
    space: dict[str, Any], cap: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.search.outline.EVALUATE_ALL", 0)
    asked, requests, rng = config(cap, **space), batch(4, cap), random.Random(1)
    known = outline(build_space(asked, WorldFacts()), WorldFacts(), times, sums(requests))
    assert np.isfinite(known.gains).any(axis=1).all()
    for number, own in enumerate(known.branches):
        for group in rng.sample(range(own.num_groups), min(12, own.num_groups)):
            deployment = known.space.deployment(number, group * own.num_options)
            metrics = measure(fleet_of(deployment), requests, None)
            assert metrics["completed_requests"] == NUM_REQUESTS
            values = objectives(asked.goal, metrics, deployment.used_gpus)
            bounds = known.gains[:, own.first + group].tolist()
            for name, value, bound in zip(OBJECTIVES, values, bounds, strict=True):
                assert value is not None
                assert signed(name, value) <= bound + 1e-9 * abs(bound)


def test_arrivals_bound_the_throughput_of_a_trace() -> None:
    requests = batch(4, None)
    load = bound_load(config(), sums(requests))
    assert load is not None
    assert load.span_ms == SPAN_MS
    sessions = bound_load(config(), sums(requests, max_turns=3))
    assert sessions is not None
    assert sessions.span_ms is None


@pytest.mark.parametrize("change", [{"num_requests_over": 1}, {"num_requests_without_output": 1}])
def test_a_trace_that_not_every_candidate_completes_has_no_bounds(change: dict[str, int]) -> None:
    assert bound_load(config(), sums(batch(4, None), **change)) is None


def test_engines_too_small_for_the_longest_request_have_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.search.outline.EVALUATE_ALL", 0)
    facts, requests = WorldFacts(tokens_per_gpu=400), batch(4, None)
    space = build_space(config(), facts)
    known = outline(space, facts, times, sums(requests, longest_request_tokens=500))
    shapes = [space.deployment(0, group).agg for group in range(known.gains.shape[1])]
    small = [shape is not None and shape.shape.tp == 1 for shape in shapes]
    assert any(small)
    assert not all(small)
    assert np.isinf(known.gains[0, small]).all()
    assert np.isfinite(known.gains[0, [not each for each in small]]).all()
