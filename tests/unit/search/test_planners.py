"""Planner knobs: which policies a goal keeps, what every planner is told, and which of them act alike."""

import importlib.util
from typing import Any

import pytest

from app.errors import InvalidRequestError
from app.routes.bodies import RefusedError, check
from app.schemas import policies
from app.schemas.presets import SCALING_POLICIES
from tests.unit.search.world import WorldFacts, config_of
from workers.plan import plan
from workers.search.candidate import flat_candidate
from workers.search.classes import classes
from workers.search.forecasts import chosen_predictors, predictor_fields
from workers.search.planners import planners
from workers.search.space import build_space
from workers.search.study_space import check_policies

EVERY = {"planner_scaling_policy": list(SCALING_POLICIES)}
TOKEN_BOUNDS = {"ttft_ms": 500.0, "itl_ms": 40.0}


def kept(goal: dict[str, Any]) -> set[str]:
    config = config_of(search_space=EVERY, goal=goal)
    names = {policy.model_dump_json(): name for name, policy in SCALING_POLICIES.items()}
    return {names[policy.model_dump_json()] for policy in policies.kept_policies(config.search_space, config.goal)}


LOAD_ONLY = {"disabled", "load_180_5", "load_180_10"}


@pytest.mark.parametrize(
    ("goal", "target", "expected"),
    [
        ({"target": "throughput"}, "throughput", LOAD_ONLY),
        ({"target": "throughput_per_user"}, "throughput", LOAD_ONLY),
        ({"target": "e2e_latency"}, "latency", LOAD_ONLY),
        ({"target": "ttft"}, "latency", LOAD_ONLY),
        ({"target": "goodput", "sla": TOKEN_BOUNDS}, "sla", set(SCALING_POLICIES)),
        ({"target": "goodput_per_gpu", "sla": TOKEN_BOUNDS}, "sla", set(SCALING_POLICIES)),
        ({"target": "goodput", "sla": {"e2e_ms": 900.0}}, None, {"disabled"}),
        ({"target": "min_gpus", "sla": {"e2e_ms": 900.0}}, None, {"disabled"}),
        ({"target": "pareto"}, "throughput", LOAD_ONLY),
    ],
)
def test_goal_decides_target_and_policies(goal: dict[str, Any], target: str | None, expected: set[str]) -> None:
    assert policies.optimization_target(config_of(goal=goal).goal) == target
    assert kept(goal) == expected


def test_front_with_goodput_and_token_bounds_steers_by_them() -> None:
    goal = {"target": "pareto", "pareto_objectives": ["goodput", "throughput_per_user"], "sla": TOKEN_BOUNDS}
    assert policies.optimization_target(config_of(goal=goal).goal) == "sla"


def test_planner_of_a_candidate_states_bounds_target_and_forecast() -> None:
    space = {"planner_scaling_policy": ["hybrid_180_5"], "planner_fpm_sampling": ["small"], "min_endpoint": 2}
    space |= {"planner_load_sensitivity": ["default"], "startup_time": 30.0, "min_gpu_budget": 4}
    config = config_of(search_space=space, goal={"target": "goodput", "sla": TOKEN_BOUNDS})
    (planner,) = planners(config, {180: {"load_predictor": "kalman", "load_predictor_log1p": False}})
    assert planner == {
        "enable_throughput_scaling": True,
        "enable_load_scaling": True,
        "throughput_adjustment_interval_seconds": 180,
        "load_adjustment_interval_seconds": 5,
        "max_num_fpm_samples": 32,
        "fpm_sample_bucket_size": 4,
        "load_scaling_down_sensitivity": 80,
        "load_min_observations": 5,
        "optimization_target": "sla",
        "max_gpu_budget": 8,
        "min_gpu_budget": 4,
        "min_endpoint": 2,
        "max_throughput_scaling_replicas": 8,
        "ttft_ms": 500.0,
        "itl_ms": 40.0,
        "startup_s": 30.0,
        "load_predictor": "kalman",
        "load_predictor_log1p": False,
    }


def test_load_only_planner_names_no_forecast() -> None:
    config = config_of(search_space={"planner_scaling_policy": ["load_180_5"]})
    assert all("load_predictor" not in (each or {}) for each in planners(config, {180: {"load_predictor": "kalman"}}))


def test_scaling_policy_multiplies_with_sampling_and_sensitivity() -> None:
    config = config_of(search_space={"planner_scaling_policy": ["disabled", "load_180_5", "load_180_10"]})
    assert len(planners(config, {})) == 1 + 2 * 4 * 3


def test_static_candidate_says_no_more_of_a_planner_than_that_there_is_none() -> None:
    config = config_of()
    flat = flat_candidate(build_space(config, WorldFacts()).deployment(0, 0))
    named = {name: value for name, value in flat.items() if "scaling" in name or "fpm" in name}
    assert named == {"enable_throughput_scaling": False, "enable_load_scaling": False}


def test_planners_that_act_alike_are_twins_and_no_limit_stands_for_another() -> None:
    config = config_of(search_space={"planner_scaling_policy": ["disabled", "load_180_5", "load_180_10"]})
    facts = WorldFacts()
    space = build_space(config, facts)
    known = classes(space, 0, facts)
    assert len(set(known.routing[1].tolist())) == 3, "static, every 5 s, every 10 s"
    assert all(row.tolist() == list(range(row.size)) for row in known.batching)


def test_router_of_one_engine_matters_only_where_a_planner_may_add_engines() -> None:
    space = {"planner_scaling_policy": ["disabled", "load_180_5"], "router_mode": ["kv_router"]}
    config = config_of(search_space=space | {"router_temperature": [0.0]})
    facts = WorldFacts()
    known = classes(build_space(config, facts), 0, facts)
    assert known.single.any()
    assert [len(set(row.tolist())) for row in known.routing] == [1 + 9, 9 + 9], "alone, beside others: static + scaled"


def test_sla_planners_differ_by_what_they_sample() -> None:
    space = {"planner_scaling_policy": ["load_180_5"], "planner_load_sensitivity": ["default"]}
    config = config_of(search_space=space, goal={"target": "goodput", "sla": TOKEN_BOUNDS})
    facts = WorldFacts()
    assert len(set(classes(build_space(config, facts), 0, facts).routing[1].tolist())) == 4


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As on an installation that lacks these packages."""
    found = importlib.util.find_spec
    monkeypatch.setattr(policies, "find_spec", lambda name: None if name in packages else found(name))


def document(**space: Any) -> dict[str, Any]:
    goal = {"target": "goodput", "sla": TOKEN_BOUNDS}
    known = {"model_name": "Qwen/Qwen3-32B-FP8", "hardware_sku": "h200_sxm", **space}
    load = {"isl": 100, "osl": 10, "concurrency": 4, "num_request_ratio": 2}
    return {"search_space": known, "workload": load, "goal": goal}


def test_predictors_that_all_need_the_missing_extra_are_refused_at_their_pointer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch, "pmdarima", "prophet")
    asked = document(load_predictor_candidates=["arima_raw", "prophet_w20_raw"])
    with pytest.raises(RefusedError) as refused:
        check(asked)
    (fault,) = refused.value.faults
    assert fault.pointer == "/search_space/load_predictor_candidates"
    assert "`predictors`" in fault.fault
    assert "requirements-predictors.lock" in fault.remedy
    check(document(load_predictor_candidates=["arima_raw", "constant_last"]))
    check(document(load_predictor_candidates=["arima_raw"], planner_scaling_policy=["load_180_5"]))


def test_policies_without_any_use_are_refused_at_the_clients_own_place() -> None:
    asked = document() | {"goal": {"target": "throughput"}}
    asked["adapters"] = {"dynamo.planner": {"search_space": {"scaling_policy": ["throughput_180_5"]}}}
    with pytest.raises(RefusedError) as refused:
        check(asked)
    (fault,) = refused.value.faults
    assert fault.pointer == "/adapters/dynamo.planner/search_space/scaling_policy"


def test_policies_without_any_use_cannot_be_planned() -> None:
    config = config_of(search_space={"planner_scaling_policy": ["throughput_180_5"]})
    with pytest.raises(InvalidRequestError, match="planner_scaling_policy"):
        check_policies(config)


def test_synthetic_study_takes_the_first_predictor_in_plan_and_candidates() -> None:
    config = check(document(planner_scaling_policy=["throughput_180_5", "hybrid_600_5"])).config
    found = chosen_predictors(config.model_copy(), None)
    assert [(each.interval_s, each.winner) for each in found] == [(180, "constant_last"), (600, "constant_last")]
    assert predictor_fields(found)[600] == {"load_predictor": "constant", "load_predictor_log1p": False}


def test_trace_that_is_not_at_hand_leaves_the_predictor_open() -> None:
    config = check(document() | {"workload": {"trace_path": "t"}}).config
    found = plan(config).load_predictors
    assert [(each.interval_s, each.winner) for each in found] == [(180, None), (600, None)]
    assert all("when the study is planned" in each.reason for each in found)
