"""A pinned menu is refused where it is written: at validation, entry by entry."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.schemas.study import SmartSearchConfig

DENSE, MOE = "Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-30B-A3B-FP8"


def document(pins: list[Any], mode: str = "agg", **space: Any) -> dict[str, Any]:
    return {
        "search_space": {
            "model_name": DENSE,
            "hardware_sku": "h200_sxm",
            "gpu_budget": 8,
            "deployment_mode": [mode],
            "parallel_configs": pins,
            **space,
        },
        "workload": {"isl": 100, "osl": 10, "concurrency": 4, "num_request_ratio": 2},
    }


def faults(written: dict[str, Any]) -> list[tuple[tuple[Any, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        SmartSearchConfig.model_validate(written)
    return [(line["loc"], line["msg"]) for line in caught.value.errors()]


def at(index: int, *rest: str) -> tuple[Any, ...]:
    return ("search_space", "parallel_configs", index, *rest)


def test_every_entry_over_the_budget_is_named_with_what_it_takes() -> None:
    found = faults(document([{"tp": 8}, {"tp": 8, "replicas": 2}, {"tp": 4, "pp": 4}]))
    assert found == [(at(1), "takes 16 GPUs; gpu_budget is 8"), (at(2), "takes 16 GPUs; gpu_budget is 8")]


def test_both_roles_of_a_pair_count() -> None:
    pair = {"prefill": {"tp": 4}, "decode": {"tp": 2, "replicas": 3}}
    assert faults(document([pair], "disagg")) == [(at(0), "takes 10 GPUs; gpu_budget is 8")]
    assert SmartSearchConfig.model_validate(document([pair], "disagg", gpu_budget=10))


def test_budget_left_out_is_the_default_one() -> None:
    written = document([{"tp": 8, "replicas": 5}])
    del written["search_space"]["gpu_budget"]
    assert faults(written) == [(at(0), "takes 40 GPUs; gpu_budget is 32")]


def test_entry_below_the_least_budget_is_refused() -> None:
    assert faults(document([{"tp": 2}], min_gpu_budget=4)) == [(at(0), "takes 2 GPUs; min_gpu_budget is 4")]


@pytest.mark.parametrize(
    ("model", "pin", "backends"),
    [
        (DENSE, {"tp": 2, "attention_dp": 2}, ["vllm"]),
        (DENSE, {"tp": 2, "moe_ep": 2}, ["vllm", "sglang"]),
        (MOE, {"tp": 4, "moe_ep": 2}, ["vllm", "sglang", "trtllm"]),
        (MOE, {"tp": 4, "moe_tp": 2, "moe_ep": 2}, ["vllm"]),
        (MOE, {"tp": 2, "attention_dp": 2, "moe_ep": 4}, ["trtllm"]),
    ],
)
def test_shape_that_no_backend_can_run_is_refused(model: str, pin: dict[str, int], backends: list[str]) -> None:
    ((loc, fault),) = faults(document([pin], model_name=model, backend=backends))
    assert loc == at(0)
    assert ", ".join(backends) in fault


def test_shape_that_one_backend_can_run_is_accepted() -> None:
    pin = {"tp": 4, "moe_tp": 2, "moe_ep": 2}
    config = SmartSearchConfig.model_validate(document([pin], model_name=MOE, backend=["vllm", "sglang"]))
    assert len(config.search_space.parallel_configs) == 1


@pytest.mark.parametrize("budget", ["8", None, -8, True, 10**30])
def test_faulty_budget_is_the_only_fault(budget: Any) -> None:
    assert [loc for loc, _ in faults(document([{"tp": 8}], gpu_budget=budget))] == [("search_space", "gpu_budget")]


@pytest.mark.parametrize("pin", [7, None, {}, {"tp": -1}, {"tp": 2, "x": 1}, {"prefill": {"tp": 2}, "decode": 3}])
def test_faulty_entry_is_refused_for_itself(pin: Any) -> None:
    mode = "disagg" if isinstance(pin, dict) and "prefill" in pin else "agg"
    assert all(loc[:3] == at(0) and "GPUs" not in fault for loc, fault in faults(document([pin], mode)))
