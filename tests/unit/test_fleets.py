"""Deployments to fleets, loads and requests."""

from pathlib import Path
from typing import Any

import pytest

from app.schemas.deployment import RouterConfig
from app.schemas.status import ReasonCode
from tests.unit.deployments import SMALL_LOAD, agg, disagg, role, study
from tests.unit.traces.contents import Stored, stored
from tests.unit.traces.helpers import lines, row
from workers.errors import InfeasibleError
from workers.fleets import DRAFT_ACCEPTANCE, Run, plan_run

KV_LOAD = {"isl": 4000, "osl": 1000, "kv_load_ratio": 0.5, "num_request_ratio": 2}


def planned(workload: dict[str, Any], deployment: Any, trace: Stored | None = None) -> Run:
    return plan_run(study(workload).workload, deployment, trace)


def test_kv_load_records_every_figure_of_the_traffic_page() -> None:
    run = planned(KV_LOAD, agg(tp=2, replicas=2))
    capacity = 1_741_181 // 64 * 64 * 2
    assert run.load == {
        "kv_load_ratio": 0.5,
        "concurrency": capacity // 4500 // 2,
        "kv_load_concurrency_capacity": capacity // 4500,
        "kv_load_capacity_tokens": capacity,
        "agg_kv_capacity_tokens": capacity,
        "num_requests": capacity // 4500 // 2 * 2,
    }
    assert run.batch.in_flight_cap == run.load["concurrency"]


def test_kv_load_ratio_zero_gives_concurrency_one() -> None:
    assert planned(KV_LOAD | {"kv_load_ratio": 0}, agg()).load["concurrency"] == 1


def test_ratio_of_the_deployment_goes_before_the_workloads_range() -> None:
    ranged = study(KV_LOAD | {"kv_load_ratio": [0.0, 1.0]}, {"target": "pareto"})
    run = plan_run(ranged.workload, agg(kv_load_ratio=0.25), None)
    assert run.load["kv_load_ratio"] == 0.25
    assert run.load["concurrency"] == 1_741_120 // 4500 // 4


def test_range_that_was_not_drawn_is_a_fault() -> None:
    ranged = study(KV_LOAD | {"kv_load_ratio": [0.0, 1.0]}, {"target": "pareto"})
    with pytest.raises(ValueError, match="drawn"):
        plan_run(ranged.workload, agg(), None)


def test_decode_capacity_drives_the_load_of_a_disaggregated_deployment() -> None:
    run = planned(KV_LOAD, disagg(role(tp=4, replicas=1), role(tp=2, replicas=2)))
    decode = 1_741_120 * 2
    assert run.load["kv_load_capacity_tokens"] == run.load["decode_kv_capacity_tokens"] == decode
    assert run.load["prefill_kv_capacity_tokens"] not in (None, decode)
    assert run.fleet.prefill is not None
    assert run.fleet.decode is not None
    assert run.fleet.agg is None


def test_fixed_concurrency_records_capacity_but_no_kv_load() -> None:
    load = planned(SMALL_LOAD, agg()).load
    assert load == {"concurrency": 2, "num_requests": 4, "agg_kv_capacity_tokens": 1_741_120}


def test_request_rate_is_an_open_loop_of_that_many_requests() -> None:
    run = planned({"isl": 10, "osl": 2, "request_rate": 4.0, "num_request_ratio": 3}, agg())
    assert run.batch.in_flight_cap is None
    assert run.load["concurrency"] is None
    assert run.batch.arrival_ms[:3].tolist() == [0.0, 250.0, 500.0]
    assert run.batch.num_requests == 12


def test_poisson_arrivals_follow_the_seed() -> None:
    workload = {"isl": 10, "osl": 2, "request_rate": 4.0, "num_request_ratio": 3, "arrival": "poisson"}
    one, again, other = (
        planned(workload | {"arrival_seed": seed}, agg()).batch.arrival_ms.tolist() for seed in (1, 1, 2)
    )
    assert one == again != other


def test_load_of_more_requests_than_the_service_replays_is_infeasible() -> None:
    with pytest.raises(InfeasibleError) as caught:
        planned(KV_LOAD | {"num_request_ratio": 1e6}, agg())
    assert caught.value.numbers["max_requests"] == 5_000_000


def test_equal_loads_share_one_batch() -> None:
    assert planned(SMALL_LOAD, agg(tp=2)).batch is planned(SMALL_LOAD, agg(tp=4)).batch


def test_engines_carry_the_deployments_limits() -> None:
    fields = {"max_num_batched_tokens": 16384, "max_num_seqs": 512, "block_size": 16, "enable_prefix_caching": False}
    pool = planned(SMALL_LOAD, agg(tp=4, replicas=2, role_fields=fields)).fleet.agg
    assert pool is not None
    assert (pool.max_num_batched_tokens, pool.max_num_seqs, pool.block_size) == (16384, 512, 16)
    assert (pool.replicas, pool.gpus_per_replica, pool.attention_dp) == (2, 4, 1)
    assert not pool.prefix_caching
    assert pool.acceptance == ()


@pytest.mark.parametrize(
    ("backend", "context_length", "limit"),
    [("vllm", None, 40_960), ("vllm", 9_000, 9_000), ("sglang", None, None), ("trtllm", 9_000, 9_000)],
)
def test_context_limit_is_the_models_for_vllm_only(backend: str, context_length: int | None, limit: int | None) -> None:
    pool = planned(SMALL_LOAD, agg(backend=backend, context_length=context_length)).fleet.agg
    assert pool is not None
    assert pool.context_length == limit


def test_drafts_without_stated_acceptance_take_the_default_rates() -> None:
    pool = planned(SMALL_LOAD, agg(aic_nextn=2)).fleet.agg
    assert pool is not None
    assert pool.acceptance == DRAFT_ACCEPTANCE[:2]


def test_router_weights_reach_the_fleet_only_under_kv_router() -> None:
    routed = planned(SMALL_LOAD, agg(router=RouterConfig(mode="kv_router", temperature=0.5))).fleet.router
    assert routed is not None
    assert routed.temperature == 0.5
    assert planned(SMALL_LOAD, agg(router=RouterConfig(temperature=0.5))).fleet.router is None


def test_planner_that_scales_is_part_of_the_run() -> None:
    fields = {"optimization_target": "throughput", "max_gpu_budget": 16, "load_adjustment_interval_seconds": 7}
    planner = planned(SMALL_LOAD, agg(planner={"enable_load_scaling": True, **fields})).planner
    assert planner is not None
    assert (planner.max_gpu_budget, planner.interval_s) == (16, 7)


def test_planner_without_scaling_is_a_static_run() -> None:
    assert planned(SMALL_LOAD, agg()).planner is None
    assert planned(SMALL_LOAD, agg(planner={"enable_load_scaling": False})).planner is None


def test_role_without_kv_budget_is_infeasible_before_any_traffic() -> None:
    with pytest.raises(InfeasibleError) as caught:
        planned(SMALL_LOAD, agg(tp=1, model_name="meta-llama/Meta-Llama-3.1-70B"))
    assert caught.value.code is ReasonCode.NO_KV_BUDGET


def test_trace_is_driven_as_the_workload_says(tmp_path: Path) -> None:
    rows = [row(timestamp=100 * i, input_length=40, hash_ids=[i, i + 50]) for i in range(5)]
    trace = stored(tmp_path, lines(*rows), block_size=32)
    run = planned({"trace_path": "t", "arrival_speedup_ratio": 2.0}, agg(), trace)
    assert run.batch.arrival_ms.tolist() == [0.0, 50.0, 100.0, 150.0, 200.0]
    capped = planned({"trace_path": "t", "replay_concurrency": 3}, agg(), trace)
    assert capped.batch.in_flight_cap == 3


def test_trace_workload_without_its_trace_is_a_fault() -> None:
    with pytest.raises(ValueError, match="stored trace"):
        planned({"trace_path": "t"}, agg())
