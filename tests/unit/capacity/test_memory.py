"""KV capacity per rank: the peer's probes, refusals with their numbers, and the disk."""

from pathlib import Path
from typing import Any

import pytest

from app.schemas.deployment import ParallelShape
from app.schemas.status import ReasonCode
from tests.golden.files import cases
from workers.capacity import memory
from workers.capacity.kv_blocks import blocks_per_rank
from workers.errors import EvaluationError, InfeasibleError, UnsupportedError
from workers.timing import disk_cache, perf_data

PROBES = [case for case in cases("engine-probes") if case["id"].startswith("K")]


def probe_capacity(engine: dict[str, Any]) -> memory.KvCapacity:
    worker = engine["workers"]["aggregated"]
    parallelism, scheduler = worker["parallelism"], worker.get("scheduler", {})
    configured = worker.get("kv_cache", {}).get("capacity", {}).get("memory_fraction")
    return memory.kv_capacity(
        engine["model"],
        engine["hardware"],
        engine["backend"],
        ParallelShape(
            tp=parallelism["tensor"],
            pp=parallelism.get("pipeline", 1),
            attention_dp=parallelism.get("attention_data", 1),
            moe_ep=parallelism.get("moe_expert", 1),
        ),
        max_num_batched_tokens=scheduler.get("max_batched_tokens", 8192),
        max_num_seqs=scheduler.get("max_sequences", 256),
        memory_fraction=configured or (0.88 if engine["backend"] == "sglang" else 0.9),
        nextn=engine.get("nextn"),
    )


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.SETTING, str(tmp_path))
    forget()
    return tmp_path


def forget() -> None:
    """What a new process would not know."""
    memory._answer.cache_clear()
    memory._file.cache_clear()


def refusal(model: str, hardware: str, backend: str, shape: ParallelShape, **options: Any) -> EvaluationError:
    with pytest.raises(EvaluationError) as caught:
        memory.kv_capacity(model, hardware, backend, shape, **options)
    return caught.value


@pytest.mark.parametrize("probe", PROBES, ids=[probe["id"] for probe in PROBES])
def test_capacity_equals_the_peers_probe(probe: dict[str, Any]) -> None:
    capacity, expected = probe_capacity(probe["config"]["engine"]), probe["expected"]
    assert capacity.tokens_per_rank == expected["kv_tokens_per_rank"]
    assert blocks_per_rank(capacity.tokens_per_rank, expected["block_size"]) == expected["num_gpu_blocks_per_rank"]
    assert capacity.kv_bytes_per_token == expected["kv_bytes_per_token"]
    assert capacity.kv_budget_bytes == expected["total_kv_size_bytes"]
    assert capacity.weights_bytes == expected["memory_breakdown"]["weights_bytes"]


def test_weights_larger_than_the_gpu_are_infeasible_with_their_numbers() -> None:
    error = refusal("deepseek-ai/DeepSeek-V3", "h100_sxm", "vllm", ParallelShape(tp=8, moe_ep=8))
    assert isinstance(error, InfeasibleError)
    assert error.code is ReasonCode.NO_KV_BUDGET
    assert error.numbers["gpu_gib"] == 80.0
    assert error.numbers["usable_gib"] == 72.0
    assert error.numbers["weights_gib"] == pytest.approx(90_845_872_128 / 2**30, abs=1e-3)
    assert error.numbers["short_gib"] == pytest.approx(error.numbers["needed_gib"] - 72.0, abs=2e-3)
    assert "84.6 GiB" in error.detail


def test_no_budget_of_sglang_is_stated_in_its_own_way_of_counting() -> None:
    error = refusal("deepseek-ai/DeepSeek-V3", "h100_sxm", "sglang", ParallelShape(tp=8, moe_ep=8))
    assert error.numbers["needed_gib"] == error.numbers["weights_gib"]
    assert error.numbers["usable_gib"] < 72.0


def test_no_budget_is_stated_for_the_smallest_memory_fraction_too() -> None:
    error = refusal("Qwen/Qwen3-32B-FP8", "h200_sxm", "vllm", ParallelShape(tp=1), memory_fraction=1e-300)
    assert error.code is ReasonCode.NO_KV_BUDGET
    assert error.numbers["usable_gib"] == 0.0
    assert error.numbers["weights_gib"] > 30


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("Qwen/Qwen3-32B-FP8", ParallelShape(tp=3)),
        ("Qwen/Qwen3-30B-A3B-FP8", ParallelShape(tp=16, moe_tp=16)),
    ],
)
def test_shape_that_does_not_divide_the_model_is_unsupported(model: str, shape: ParallelShape) -> None:
    error = refusal(model, "h200_sxm", "vllm", shape)
    assert isinstance(error, UnsupportedError)
    assert error.code is ReasonCode.BACKEND_CANNOT_RUN_SHAPE


def test_unknown_model_and_hardware_have_no_data() -> None:
    assert refusal("a/b", "h200_sxm", "vllm", ParallelShape(tp=1)).code is ReasonCode.NO_PERF_DATA
    assert refusal("Qwen/Qwen3-8B", "tpu", "vllm", ParallelShape(tp=1)).code is ReasonCode.NO_PERF_DATA


@pytest.mark.usefixtures("fresh_cache")
def test_capacities_and_refusals_on_disk_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, tight = ParallelShape(tp=2), ParallelShape(tp=8, moe_ep=8)
    capacity = memory.kv_capacity("Qwen/Qwen3-32B-FP8", "h200_sxm", "vllm", fits)
    error = refusal("deepseek-ai/DeepSeek-V3", "h100_sxm", "vllm", tight)
    forget()
    monkeypatch.setattr(perf_data.PerfDataPackage, "load", lambda *_: pytest.fail("asked the package"))
    assert memory.kv_capacity("Qwen/Qwen3-32B-FP8", "h200_sxm", "vllm", fits) == capacity
    again = refusal("deepseek-ai/DeepSeek-V3", "h100_sxm", "vllm", tight)
    assert (type(again), again.code, again.detail, dict(again.numbers)) == (
        type(error),
        error.code,
        error.detail,
        dict(error.numbers),
    )


def test_batching_that_costs_memory_is_asked_separately() -> None:
    shape = ParallelShape(tp=2)
    small = memory.kv_tokens_per_rank("Qwen/Qwen3-32B-FP8", "h200_sxm", "vllm", shape, max_num_batched_tokens=8192)
    large = memory.kv_tokens_per_rank("Qwen/Qwen3-32B-FP8", "h200_sxm", "vllm", shape, max_num_batched_tokens=32768)
    assert (small, large) == (1_741_181, 1_701_245)


def test_transfer_bytes_follow_the_base_dtype_and_the_tp_share() -> None:
    assert memory.kv_transfer_bytes_per_token("Qwen/Qwen3-32B-FP8", ParallelShape(tp=1)) == 262_144
    assert memory.kv_transfer_bytes_per_token("Qwen/Qwen3-32B-FP8", ParallelShape(tp=4)) == 65_536
