"""Objective values, ranking and the front against the reference probes."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from app.schemas.deployment import Deployment, ParallelShape, RoleDeployment, RouterConfig
from app.schemas.goal import Goal, Sla
from workers.search.candidate import scored
from workers.search.pareto import front_of
from workers.search.score import Scored, misses_sla, objective, ranked, score

PROBES: dict[str, dict[str, Any]] = {
    probe["id"][:3]: probe
    for probe in json.loads((Path(__file__).parents[2] / "golden" / "search-probes.json").read_text())
}


def test_objectives_and_scores_equal_the_probe() -> None:
    report, expected = PROBES["S08"]["config"]["report"], PROBES["S08"]["expected"]
    for target, value in expected["objectives"].items():
        assert objective(target, report) == value
        assert score(Goal(target=target), [value]) == expected["scores"][target]


def test_objective_without_a_sample_is_undefined() -> None:
    assert objective("ttft", {"mean_ttft_ms": 0.0, "num_ttft_samples": 0}) is None
    assert objective("e2e_latency", {"mean_e2e_latency_ms": None}) is None


def test_throughput_per_gpu_without_gpu_time_is_zero() -> None:
    assert objective("throughput_per_gpu", {"output_throughput_tok_s": 5.0, "duration_ms": 0.0}) == 0.0


def test_ranking_follows_the_probe() -> None:
    candidates = [Scored(c["name"], c["used_gpus"], c["score"]) for c in PROBES["S10"]["config"]["candidates"]]
    assert [candidate.canonical for candidate in ranked(candidates)] == PROBES["S10"]["expected"]["order"]


def test_ranking_puts_a_candidate_that_rejects_work_last() -> None:
    greedy, honest = Scored("a", 1, 100.0, rejected=1), Scored("b", 8, 1.0)
    assert ranked([greedy, honest])[0] is honest


def test_front_follows_the_probe_in_any_order_of_arrival() -> None:
    probe = PROBES["S09"]
    names = probe["config"]["objectives"]
    candidates = [
        Scored(c["name"], c["used_gpus"], 0.0, tuple(c[name] for name in names)) for c in probe["config"]["candidates"]
    ]
    for order in itertools.permutations(candidates):
        assert [candidate.canonical for candidate in front_of(names, order)] == probe["expected"]["front"]


@pytest.mark.parametrize("most_rejected", [0, 1])
def test_front_never_holds_a_dominated_point(most_rejected: int) -> None:
    rng = random.Random(7)
    names = ("throughput_per_gpu", "e2e_latency")
    points = [
        Scored(str(n), 1, 0.0, (rng.randrange(9), rng.randrange(9)), rng.randrange(most_rejected + 1))
        for n in range(200)
    ]
    brute = [
        p
        for p in points
        if not any(
            q.values[0] >= p.values[0]
            and q.values[1] <= p.values[1]
            and q.rejected <= p.rejected
            and (q.values, q.rejected) != (p.values, p.rejected)
            for q in points
        )
    ]
    assert {p.canonical for p in front_of(names, points)} == {p.canonical for p in brute}


@pytest.mark.parametrize(("ttft", "missed"), [(10.0, []), (10.1, ["ttft_ms"]), (None, ["ttft_ms"])])
def test_strict_sla_bounds_are_inclusive_and_need_a_sample(ttft: float | None, missed: list[str]) -> None:
    assert misses_sla(Goal(sla=Sla(ttft_ms=10.0)), {"mean_ttft_ms": ttft}) == missed


POOL = RoleDeployment(shape=ParallelShape(tp=1), replicas=2, max_num_batched_tokens=8192, max_num_seqs=256)
HALF = POOL.model_copy(update={"replicas": 1})
DEPLOYED: dict[str, Any] = {"backend": "vllm", "model_name": "m", "hardware_sku": "h"}
SIMPLE = Deployment(mode="agg", agg=POOL, **DEPLOYED)
ROUTED = SIMPLE.model_copy(update={"router": RouterConfig(mode="kv_router", overlap_score_credit=0.0)})
SCALED = SIMPLE.model_copy(update={"planner": {"enable_load_scaling": True}})
SPLIT = Deployment(mode="disagg", prefill=HALF, decode=HALF, **DEPLOYED)
SPLIT_ROUTED = SPLIT.model_copy(update={"router": ROUTED.router})


@pytest.mark.parametrize("other", [ROUTED, SCALED, SPLIT])
def test_equal_outcomes_rank_the_simplest_deployment_first(other: Deployment) -> None:
    simple, rest = scored(SIMPLE, 5.0, (5.0, 1.0)), scored(other, 5.0, (5.0, 1.0))
    assert ranked([rest, simple])[0] is simple
    assert front_of(("throughput_per_gpu", "e2e_latency"), [rest, simple]) == [simple, rest]


def test_fewer_moving_parts_rank_before_more_of_them_and_after_fewer_gpus() -> None:
    bigger = SIMPLE.model_copy(update={"agg": POOL.model_copy(update={"replicas": 3})})
    found = ranked([scored(each, 5.0, (5.0,)) for each in (SPLIT_ROUTED, bigger, SPLIT, SIMPLE)])
    assert found == [scored(each, 5.0, (5.0,)) for each in (SIMPLE, SPLIT, SPLIT_ROUTED, bigger)]


def test_better_outcome_ranks_before_a_simpler_deployment() -> None:
    assert ranked([scored(SIMPLE, 5.0, (5.0,)), scored(SPLIT_ROUTED, 5.1, (5.1,))])[0].score == 5.1
