"""KV-derived load of whole deployments: the traffic page's formulas on direct calls of the data package."""

import logging
import math
import random
from typing import Any

import pytest
from aisimulate_core.sdk.memory import estimate_kv_cache
from aisimulate_core.sdk.models import check_is_moe

from app.schemas.deployment import Backend, Deployment, ParallelShape, RoleDeployment
from app.schemas.status import ReasonCode
from workers.capacity.roles import load_capacity_concurrency, load_capacity_tokens, role_capacities
from workers.errors import EvaluationError, InfeasibleError
from workers.timing import perf_data
from workers.traffic.load_shape import kv_load_concurrency

MODELS = (
    "Qwen/Qwen3-32B-FP8",
    "meta-llama/Meta-Llama-3.1-70B",
    "Qwen/Qwen3-30B-A3B-FP8",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-120b",
)
HARDWARE = ("h200_sxm", "b200_sxm", "l40s")
BACKENDS: tuple[Backend, ...] = ("vllm", "sglang", "trtllm")


def random_shape(draw: random.Random, model: str) -> ParallelShape:
    gpus = draw.choice((1, 2, 4, 8, 16))
    if not check_is_moe(model) or gpus == 1:
        return ParallelShape(tp=gpus)
    by_dp, by_ep = draw.random() < 0.5, draw.random() < 0.5
    attention = {"tp": 1, "attention_dp": gpus} if by_dp else {"tp": gpus}
    return ParallelShape(**attention, **({"moe_ep": gpus} if by_ep else {"moe_tp": gpus}))


def random_role(draw: random.Random, model: str) -> RoleDeployment:
    return RoleDeployment(
        shape=random_shape(draw, model),
        replicas=draw.randint(1, 4),
        max_num_batched_tokens=draw.choice((8192, 16384, 32768)),
        max_num_seqs=draw.choice((1, 64, 256, 1024)),
        block_size=draw.choice((1, 16, 32, 64)),
        gpu_memory_utilization=draw.choice((0.8, 0.88, 0.9, 0.95)),
    )


def random_deployment(seed: int) -> Deployment:
    draw = random.Random(seed)
    model = MODELS[seed % len(MODELS)]
    common: dict[str, Any] = {
        "backend": draw.choice(BACKENDS),
        "model_name": model,
        "hardware_sku": HARDWARE[seed // len(MODELS) % len(HARDWARE)],
        "aic_nextn": draw.choice((None, None, 1)) if "DeepSeek" in model else None,
    }
    if draw.random() < 0.7:
        return Deployment(mode="agg", agg=random_role(draw, model), **common)
    return Deployment(mode="disagg", prefill=random_role(draw, model), decode=random_role(draw, model), **common)


def direct_tokens(deployment: Deployment, role: RoleDeployment) -> int | None:
    """Tokens per rank by one call of the package; None where it refuses."""
    shape = role.shape
    sharded = shape.moe_tp * shape.moe_ep > 1
    logging.getLogger("aisimulate_core").setLevel(logging.ERROR)
    try:
        estimate = estimate_kv_cache(
            deployment.model_name,
            deployment.hardware_sku,
            deployment.backend,
            perf_data.data_version(deployment.hardware_sku, deployment.backend),
            max_num_tokens=role.max_num_batched_tokens,
            max_batch_size=role.max_num_seqs,
            memory_fraction_kind="of_free" if deployment.backend == "trtllm" else "of_total",
            memory_fraction_value=role.gpu_memory_utilization,
            tp_size=shape.tp,
            attention_dp_size=shape.attention_dp,
            moe_tp_size=shape.moe_tp if sharded else None,
            moe_ep_size=shape.moe_ep if sharded else None,
            nextn=deployment.aic_nextn or 0,
        )
    except ValueError:
        return None
    return int(estimate["total_kv_size_tokens"])


@pytest.mark.parametrize("seed", range(200))
def test_kv_load_equals_the_formulas_on_direct_calls(seed: int) -> None:
    deployment = random_deployment(seed)
    direct = {name: direct_tokens(deployment, role) for name, role in deployment.roles.items()}
    if any(tokens is None for tokens in direct.values()):
        with pytest.raises(EvaluationError):
            role_capacities(deployment)
        return
    draw = random.Random(1000 + seed)
    isl, osl, ratio = draw.randint(1, 20_000), draw.randint(1, 4_000), draw.choice((0.0, 0.3, 1.0, 1.7))
    expected = {}
    for name, role in deployment.roles.items():
        usable = math.floor((direct[name] or 0) / role.block_size) * role.block_size
        expected[name] = usable * role.shape.attention_dp * role.replicas
    capacities = role_capacities(deployment)
    assert {name: capacity.capacity_tokens for name, capacity in capacities.items()} == expected
    loaded = expected["agg" if deployment.mode == "agg" else "decode"]
    assert load_capacity_tokens(capacities) == loaded
    concurrency = math.floor(loaded / (isl + math.floor(osl / 2)))
    if concurrency < 1:
        with pytest.raises(InfeasibleError):
            load_capacity_concurrency(capacities, isl, osl)
        return
    assert load_capacity_concurrency(capacities, isl, osl) == concurrency
    assert kv_load_concurrency(ratio, concurrency) == max(1, math.floor(ratio * concurrency))


def small_deployment(**role: Any) -> Deployment:
    fields = {"shape": ParallelShape(tp=2), "replicas": 1, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    return Deployment(
        mode="agg",
        backend="vllm",
        model_name="Qwen/Qwen3-32B-FP8",
        hardware_sku="h200_sxm",
        agg=RoleDeployment(**(fields | role)),
    )


def test_request_larger_than_the_cache_is_infeasible_with_both_numbers() -> None:
    with pytest.raises(InfeasibleError) as caught:
        load_capacity_concurrency(role_capacities(small_deployment()), 2_000_000, 1)
    assert caught.value.code is ReasonCode.KV_CAPACITY_BELOW_ONE_REQUEST
    assert caught.value.numbers == {"kv_load_capacity_tokens": 1_741_120, "average_tokens_per_request": 2_000_000}


def test_block_larger_than_the_cache_leaves_no_budget() -> None:
    with pytest.raises(InfeasibleError) as caught:
        role_capacities(small_deployment(block_size=1_741_182))
    assert caught.value.code is ReasonCode.NO_KV_BUDGET


def test_disagg_prefill_that_does_not_fit_is_infeasible_though_decode_does() -> None:
    role = {"replicas": 1, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    deployment = Deployment(
        mode="disagg",
        backend="vllm",
        model_name="meta-llama/Meta-Llama-3.1-70B",
        hardware_sku="h200_sxm",
        prefill=RoleDeployment(shape=ParallelShape(tp=1), **role),
        decode=RoleDeployment(shape=ParallelShape(tp=4), **role),
    )
    with pytest.raises(InfeasibleError) as caught:
        role_capacities(deployment)
    assert caught.value.code is ReasonCode.NO_KV_BUDGET
