"""The adapter form says the same as the flat form, and never beside it."""

from pathlib import Path
from typing import Any

import pytest

from app.routes.bodies import RefusedError, check
from app.routes.faults import Fault
from app.schemas.advice import advice
from app.schemas.study import config_sha256

SPACE = {"model_name": "Qwen/Qwen3-32B-FP8", "hardware_sku": "h200_sxm", "gpu_budget": 8, "deployment_mode": ["agg"]}
LOAD = {"isl": 1024, "osl": 128, "concurrency": 16, "num_request_ratio": 4}


def adapted(**adapters: Any) -> dict[str, Any]:
    named = {f"dynamo.{name}": {"search_space": knobs} for name, knobs in adapters.items()}
    return {"search_space": SPACE, "workload": LOAD, "adapters": named}


def flat(**knobs: Any) -> dict[str, Any]:
    return {"search_space": {**SPACE, **knobs}, "workload": LOAD}


def refused(document: Any) -> list[Fault]:
    with pytest.raises(RefusedError) as caught:
        check(document)
    return caught.value.faults


def test_adapter_form_has_the_hash_of_its_flat_twin() -> None:
    policy = {
        "enable_throughput_scaling": False,
        "enable_load_scaling": True,
        "throughput_adjustment_interval_seconds": 60,
        "load_adjustment_interval_seconds": 5,
    }
    ours = adapted(
        router={"mode": ["kv_router"], "temperature": [0], "overlap_score_credit": [1.0]},
        planner={"scaling_policy": ["disabled", policy], "fpm_sampling": {"preset": "default"}, "min_endpoint": 2},
    )
    theirs = flat(
        router_mode=["kv_router"],
        router_temperature=[0.0],
        overlap_score_credit=[1],
        planner_scaling_policy=["disabled", policy],
        min_endpoint=2,
    )
    assert config_sha256(check(ours).config) == config_sha256(check(theirs).config)


def test_planner_switched_off_is_the_policy_disabled() -> None:
    config = check(adapted(planner={"scaling_policy": False})).config
    assert config.search_space.planner_scaling_policy == ["disabled"]


def test_flat_knob_beside_its_adapter_is_refused_with_its_new_home() -> None:
    document = adapted(router={"mode": ["kv_router"]})
    document["search_space"] = {**SPACE, "router_temperature": [0.0]}
    (fault,) = refused(document)
    assert fault.pointer == "/search_space/router_temperature"
    assert "adapters.dynamo.router.search_space.temperature" in fault.remedy


def test_fault_in_an_adapter_points_where_the_client_wrote_it() -> None:
    (fault,) = refused(adapted(router={"mode": ["least_loaded"]}))
    assert fault.pointer == "/adapters/dynamo.router/search_space/mode/0"


@pytest.mark.parametrize(
    ("adapters", "pointer"),
    [
        ({"dynamo.ruoter": {"search_space": {}}}, "/adapters/dynamo.ruoter"),
        ({"dynamo.router": {"search_space": {"modes": ["kv_router"]}}}, "/adapters/dynamo.router/search_space/modes"),
        ({"dynamo.router": {"space": {}}}, "/adapters/dynamo.router/space"),
        ({"dynamo.router": []}, "/adapters/dynamo.router"),
        ([], "/adapters"),
    ],
)
def test_unknown_or_malformed_adapters_are_refused(adapters: Any, pointer: str) -> None:
    faults = refused({"search_space": SPACE, "workload": LOAD, "adapters": adapters})
    assert pointer in {fault.pointer for fault in faults}


def test_adapter_budget_that_contradicts_the_space_is_refused() -> None:
    (fault,) = refused(adapted(planner={"max_num_gpus": 16}))
    assert fault.pointer == "/adapters/dynamo.planner/search_space/max_num_gpus"


def test_composite_dict_needs_all_fields_and_no_others() -> None:
    pointers = {f.pointer for f in refused(flat(planner_fpm_sampling=[{"max_num_fpm_samples": 8, "bucket": 4}]))}
    assert pointers == {
        "/search_space/planner_fpm_sampling/0/fpm_sample_bucket_size",
        "/search_space/planner_fpm_sampling/0/bucket",
    }


def test_warnings_name_inert_fields_that_the_client_wrote_and_no_defaults() -> None:
    document = flat(prefill_max_num_seqs=[1], router_mode=["round_robin"], router_temperature=[0.2])
    document["workload"] = {**LOAD, "trace_format": "azure", "inter_turn_delay_ms": 5}
    checked = check(document)
    assert {warned.pointer for warned in advice(checked.config, checked.client_set)} == {
        "/search_space/prefill_max_num_seqs",
        "/search_space/router_temperature",
        "/workload/trace_format",
        "/workload/inter_turn_delay_ms",
    }


def test_budget_of_the_client_is_told_from_the_default() -> None:
    assert check(flat()).config.sweep.whole_space is True
    document = {**flat(), "sweep": {"max_rounds": 20}}
    assert check(document).config.sweep.whole_space is False
    assert check({**flat(), "sweep": {"algorithm": "random"}}).config.sweep.whole_space is False


def test_vizier_without_its_extra_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPICA_VIZIER_PYTHON", str(tmp_path / "bin" / "python"))
    (fault,) = refused({**flat(), "sweep": {"algorithm": "vizier"}})
    assert fault.pointer == "/sweep/algorithm"
    assert "extra" in fault.fault


def test_baseline_is_one_mode_with_strict_fields() -> None:
    assert check({**flat(), "baseline": {"agg": {"tp": 2, "replicas": 4}}}).config.baseline is not None
    (fault,) = refused({**flat(), "baseline": {"agg": {"tp": 2}, "decode": {"tp": 2}}})
    assert fault.pointer == "/baseline"
