"""The reference configurations: which are taken, and where the others are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.routes.bodies import RefusedError, check, read_document
from app.routes.faults import Fault, faults
from app.schemas.study import SmartSearchConfig, canonical_json, client_set, config_sha256

GOLDEN = Path(__file__).parents[2] / "golden"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "config-public.json").read_text())["cases"]
VALID = [case for case in CASES if case["valid"]]
INVALID = [case for case in CASES if not case["valid"]]


def refusals(name: str) -> list[Fault]:
    path = GOLDEN / "field" / name
    kind = "application/json" if path.suffix == ".json" else "application/yaml"
    reading = read_document(kind, path.read_bytes())
    with pytest.raises(RefusedError) as caught:
        check(reading.document, reading.faults)
    json.dumps([fault.model_dump() for fault in caught.value.faults], allow_nan=False)
    return caught.value.faults


def accepted(name: str) -> SmartSearchConfig:
    reading = read_document("application/yaml", (GOLDEN / "field" / name).read_bytes())
    return check(reading.document, reading.faults).config


def by_pointer(found: list[Fault]) -> dict[str, Fault]:
    return {fault.pointer: fault for fault in found}


@pytest.mark.parametrize("case", VALID, ids=lambda case: case["id"])
def test_valid_case_is_accepted_and_survives_its_canonical_form(case: dict[str, Any]) -> None:
    config = SmartSearchConfig.model_validate(case["config"])
    again = SmartSearchConfig.model_validate(json.loads(canonical_json(config)))
    assert canonical_json(again) == canonical_json(config)


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case["id"])
def test_invalid_case_is_refused_at_its_pointer_with_a_remedy(case: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        SmartSearchConfig.model_validate(case["config"])
    found = faults(caught.value)
    assert found
    assert all(fault.pointer.startswith(case["error_at"]) and fault.remedy for fault in found)


def test_pareto_goal_without_load_takes_the_whole_kv_range() -> None:
    case = next(case for case in CASES if case["id"] == "pareto-defaults-kv-load")
    assert SmartSearchConfig.model_validate(case["config"]).workload.kv_load_range == (0.0, 1.0)


def test_trace_with_synthetic_fields_lists_every_offender() -> None:
    case = next(case for case in CASES if case["id"] == "trace-with-synthetic")
    with pytest.raises(ValidationError) as caught:
        SmartSearchConfig.model_validate(case["config"])
    fault = by_pointer(faults(caught.value))["/workload"].fault
    assert all(field in fault for field in ("isl", "osl", "concurrency", "num_request_ratio"))


@pytest.mark.parametrize(("case", "name"), [("unknown-hardware", "h200_sxm"), ("unknown-model", "Qwen/Qwen3-32B-FP8")])
def test_unknown_name_is_answered_with_the_nearest(case: str, name: str) -> None:
    config = next(each for each in CASES if each["id"] == case)["config"]
    with pytest.raises(ValidationError) as caught:
        SmartSearchConfig.model_validate(config)
    assert repr(name) in faults(caught.value)[0].remedy


def test_f01_non_finite_numbers_are_named_at_all_three_places() -> None:
    found = by_pointer(refusals("F01-nonfinite-json.json"))
    assert {"/workload/request_rate", "/workload/num_request_ratio", "/goal/sla/itl_ms"} <= set(found)
    assert found["/goal/sla/itl_ms"].value == "-Infinity"


def test_f06_and_f09_are_valid_configurations() -> None:
    assert accepted("F06-model-does-not-fit.yaml").search_space.gpu_budget == 2
    assert accepted("F09-sla-nobody-can-meet.yaml").goal.sla is not None


def test_f07_four_spellings_are_refused_together_with_the_legal_ones() -> None:
    found = by_pointer(refusals("F07-sku-spelled-differently.yaml"))
    expected = {
        "/search_space/model_name": "Qwen/Qwen3-32B-FP8",
        "/search_space/hardware_sku": "h200_sxm",
        "/search_space/deployment_mode/0": "agg",
        "/search_space/backend/0": "trtllm",
    }
    assert set(found) == set(expected)
    assert all(f"{name!r}" in found[pointer].remedy for pointer, name in expected.items())


def test_f08_eight_unknown_keys_come_first_and_their_consequences_name_them() -> None:
    found = refusals("F08-misspelled-keys.yaml")
    expected = {
        "/search_space/gpu_buget": "gpu_budget",
        "/search_space/agg_max_num_seq": "agg_max_num_seqs",
        "/workload/num_requests_ratio": "num_request_ratio",
        "/workload/shared_prefix": "shared_prefix_ratio",
        "/goal/sla/ttft": "ttft_ms",
        "/goal/sla/itl": "itl_ms",
        "/sweep/max_round": "max_rounds",
        "/seed": "sweep.seed",
    }
    assert {fault.pointer for fault in found[:8]} == set(expected)
    assert all(repr(expected[fault.pointer]) in fault.remedy for fault in found[:8])
    assert {fault.caused_by for fault in found[8:]} == {"/workload/num_requests_ratio", "/goal/sla/ttft"}


def test_f10_names_every_violation_and_the_way_to_each_shape() -> None:
    found = by_pointer(refusals("F10-four-load-shapes-at-once.yaml"))
    assert set(found) == {
        "/workload",
        "/workload/replay_concurrency",
        "/workload/arrival_speedup_ratio",
        "/workload/kv_load_ratio",
    }
    whole = found["/workload"]
    assert all(field in whole.fault for field in ("isl", "concurrency", "request_rate", "kv_load_ratio"))
    assert "turns_per_session would have no effect" in whole.fault
    assert all(shape in whole.remedy for shape in ("a trace", "a request rate", "a concurrency", "a KV load"))


def test_f14_every_scalar_trap_is_named_and_no_tag_is_followed() -> None:
    found = by_pointer(refusals("F14-yaml-scalar-traps.yaml"))
    assert set(found) == {
        "/search_space/gpu_budget",
        "/search_space/min_gpu_budget",
        "/search_space/deployment_mode",
        "/search_space/no_admission_control",
        "/search_space/agg_gpu_memory_utilization",
        "/workload/isl",
        "/workload/osl",
        "/workload/request_rate",
        "/extra",
    }
    assert "octal" in found["/search_space/min_gpu_budget"].fault
    assert "base-60" in found["/workload/request_rate"].fault
    assert "twice" in found["/workload/isl"].fault
    assert "tag" in found["/extra"].fault


def test_json_and_yaml_of_one_study_have_one_hash() -> None:
    as_json = b"""{
      "search_space": {"model_name": "Qwen/Qwen3-32B-FP8", "hardware_sku": "h200_sxm"},
      "workload": {"isl": 10, "osl": 5, "request_rate": 1, "num_request_ratio": 4.0}
    }"""
    as_yaml = b"""
workload: {num_request_ratio: 4, request_rate: 1.0, osl: 5, isl: 10}
search_space:
  hardware_sku: h200_sxm
  model_name: 'Qwen/Qwen3-32B-FP8'
"""
    configs = [
        check(read_document("application/json", as_json).document).config,
        check(read_document("application/yaml", as_yaml).document).config,
    ]
    assert config_sha256(configs[0]) == config_sha256(configs[1])


def test_client_set_lists_only_what_the_client_wrote() -> None:
    document = next(case for case in CASES if case["id"] == "kv-load-zero")["config"]
    assert "/workload/kv_load_ratio" in client_set(document)
    assert "/sweep/max_rounds" not in client_set(document)
