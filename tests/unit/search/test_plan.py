"""Plans: pools, room, load and what a plan says when nothing fits."""

from pathlib import Path
from typing import Any

from app.routes.bodies import check, read_document
from app.schemas.study import SmartSearchConfig
from tests.unit.search.world import WorldFacts, config_of
from tests.unit.traces.helpers import take
from workers.plan import plan_of
from workers.search.nearest import nearest_fit
from workers.search.space import build_space

FIELD = Path(__file__).parents[2] / "golden" / "field"


def planned(facts: WorldFacts | None = None, **blocks: Any) -> Any:
    known = facts or WorldFacts()
    return plan_of(build_space(config_of(**blocks), known), known)


def test_pools_are_counted_after_each_filter() -> None:
    plan = planned(search_space={"context_length": 1000, "backend": ["vllm", "trtllm"]})
    vllm, trtllm = plan.branches[0].pools
    assert (vllm.enumerated, vllm.kv_capacity, vllm.perf_data) == (15, 7, 7)
    assert trtllm.perf_data == 0
    assert plan.branches[0].combinations == 7 * 4 == plan.combinations
    assert {(each.backend, each.code.value) for each in plan.excluded} == {
        ("vllm", "context_too_long"),
        ("trtllm", "no_perf_data"),
    }


def test_closed_loop_load_is_resolved() -> None:
    load = planned().load
    assert (load.shape, load.in_flight_cap, load.num_requests) == ("concurrency", 10, 30)


def test_rate_load_is_resolved() -> None:
    load = planned(workload={"concurrency": None, "request_rate": 25, "num_request_ratio": 4}).load
    assert (load.interval_ms, load.num_requests, load.in_flight_cap) == (40.0, 100, None)


def test_kv_load_spans_the_concurrencies_of_the_pool() -> None:
    plan = planned(workload={"concurrency": None, "kv_load_ratio": 1.0})
    rooms = {row.shape.tp: row.capacity_tokens for row in plan.kv_capacity if row.max_num_batched_tokens == 16384}
    assert rooms[1] == (810 - 128) // 64 * 64
    assert plan.load.min_concurrency == rooms[1] // 106
    assert plan.load.max_concurrency == max(
        8 // row.shape.tp * (row.capacity_tokens or 0) // 106 for row in plan.kv_capacity
    )


def test_trace_requests_over_the_context_are_counted_and_warned_about(tmp_path: Path) -> None:
    summary = take(tmp_path, (FIELD / "F05-request-longer-than-context.jsonl").read_bytes()).summary
    config = config_of(workload={"trace_path": "t"} | dict.fromkeys(("concurrency", "isl", "osl", "num_request_ratio")))
    facts = WorldFacts()
    plan = plan_of(build_space(config, facts), facts, summary)
    assert (plan.load.shape, plan.load.num_requests) == ("trace", 5)
    over = sum(count for tokens, count in summary["length_counts"] if tokens > plan.context.limit_tokens)
    assert (plan.context.num_requests_over, plan.context.longest_request_tokens) == (over, 300_060)
    assert any("300060" in each.detail for each in plan.warnings)


def test_what_a_trace_warns_about_is_said_in_the_plan(tmp_path: Path) -> None:
    summary = take(tmp_path, (FIELD / "F13-seconds-instead-of-milliseconds.jsonl").read_bytes()).summary
    config = config_of(workload={"trace_path": "t"} | dict.fromkeys(("concurrency", "isl", "osl", "num_request_ratio")))
    facts = WorldFacts()
    plan = plan_of(build_space(config, facts), facts, summary)
    (said,) = [each.detail for each in plan.warnings if each.pointer == "/workload/trace_path"]
    assert "time_unit=s" in said


def test_requests_over_the_context_are_counted_and_warned_about() -> None:
    plan = planned(search_space={"context_length": 111})
    assert plan.context.num_requests_over == 30
    assert any(each.pointer == "/workload" for each in plan.warnings)


def test_nothing_fits_names_the_reasons_and_the_nearest_fit() -> None:
    plan = planned(search_space={"context_length": 5000, "gpu_budget": 4})
    assert plan.combinations == 0
    assert plan.problem is not None
    assert plan.problem["reasons"][0]["code"] == "context_too_long"
    assert plan.nearest is not None
    assert plan.nearest.smallest_gpus == 8
    assert plan.nearest.longest_context_tokens == 4 * 810 - 64 - 1


def test_nearest_fit_offers_other_hardware_within_the_budget() -> None:
    config = config_of(search_space={"context_length": 5000, "gpu_budget": 4})
    facts = WorldFacts()
    near = nearest_fit(config, ["vllm"], facts, lambda: {"roomy": WorldFacts(tokens_per_gpu=9000), "same": facts})
    assert near.other_hardware == ["roomy"]


def test_repeated_pin_is_searched_once() -> None:
    reading = read_document("application/yaml", (FIELD / "F11-tiny-space-large-budget.yaml").read_bytes())
    space = build_space(check(reading.document, reading.faults).config, WorldFacts(tokens_per_gpu=100_000))
    assert space.size == 4


def test_default_space_has_both_modes_every_router_and_the_planners_that_throughput_can_use() -> None:
    config = SmartSearchConfig.model_validate(
        {
            "search_space": {"model_name": "Qwen/Qwen3-32B-FP8", "hardware_sku": "h200_sxm", "context_length": 400},
            "workload": {"isl": 100, "osl": 10, "concurrency": 4, "num_request_ratio": 2},
        }
    )
    facts = WorldFacts()
    plan = plan_of(build_space(config, facts), facts)
    assert [(branch.mode, branch.pool_size) for branch in plan.branches] == [("disagg", 1695), ("agg", 62)]
    assert plan.combinations == (1695 * 81 + 62 * 9) * 109 * (1 + 2 * 4 * 3)
