"""`search_space`: which deployments a study may try.

Source: search.md, sections 1.1 to 1.3; the flat form.
"""

# ruff: noqa: RUF012 - pydantic copies default lists per instance
from typing import Annotated

from pydantic import AfterValidator, Field

from app.schemas.block import Block, Document, Flaw, OneOf, is_set, mapping_at
from app.schemas.names import known_model, known_sku
from app.schemas.parallel import Pin
from app.schemas.presets import (
    FPM_SAMPLINGS,
    LOAD_PREDICTORS,
    LOAD_SENSITIVITIES,
    SCALING_POLICIES,
    FpmEntry,
    PolicyEntry,
    PredictorEntry,
    SensitivityEntry,
)

MAX_GPUS = 4096
"""Limit of the service: GPUs per candidate (service.md, section 5)."""

PREFILL_TOKENS = (8192, 16384, 32768)
PREFILL_SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DECODE_TOKENS = (8192,)
DECODE_SEQS = (256, 512, 1024)
OVERLAP_CREDITS = (0.0, 0.5, 1.0)
PREFILL_LOAD_SCALES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
TEMPERATURES = (0.0, 0.2, 0.5, 1.0)
HOST_WEIGHTS = (0.5, 0.75, 1.0)
DISK_WEIGHTS = (0.0, 0.25, 0.5)

_MODES = OneOf(("disagg", "agg"), (("aggregated", "agg"), ("disaggregated", "disagg")))
_BACKENDS = OneOf(("vllm", "sglang", "trtllm"), (("tensorrt_llm", "trtllm"), ("tensorrt", "trtllm")))
_Knob = Field(min_length=1, max_length=64)
_Gpus = Annotated[int, Field(gt=0, le=MAX_GPUS)]
_Blocks = Annotated[int, Field(gt=0, le=65536)]
_Fraction = Annotated[float, Field(gt=0, le=1)]
_Rate = Annotated[float, Field(gt=0)]
_Tokens = Annotated[int, Field(gt=0, le=100_000_000)]
_Count = Annotated[int, Field(ge=0, le=2**53)]


class SearchSpace(Block):
    """Deployment modes, engines, parallel shapes, router and planner: lists are searched, scalars are pinned."""

    model_name: Annotated[str, AfterValidator(known_model)]
    hardware_sku: Annotated[str, AfterValidator(known_sku)]
    deployment_mode: Annotated[list[Annotated[str, _MODES]], _Knob] = ["disagg", "agg"]
    backend: Annotated[list[Annotated[str, _BACKENDS]], _Knob] = ["vllm"]
    parallel_configs: Annotated[list[Pin], Field(max_length=1000)] = []
    gpu_budget: _Gpus = 32
    min_gpu_budget: _Gpus | None = None
    min_endpoint: _Gpus | None = None
    prefill_min_endpoint: _Gpus | None = None
    decode_min_endpoint: _Gpus | None = None
    max_throughput_scaling_replicas: _Gpus = 8
    context_length: _Tokens | None = None
    startup_time: Annotated[float, Field(ge=0)] | None = None
    aic_nextn: Annotated[int, Field(ge=0, le=5)] | None = None

    prefill_max_num_batched_tokens: Annotated[list[Annotated[int, OneOf(PREFILL_TOKENS)]], _Knob] = [*PREFILL_TOKENS]
    prefill_max_num_seqs: Annotated[list[Annotated[int, OneOf(PREFILL_SEQS)]], _Knob] = [*PREFILL_SEQS]
    decode_max_num_batched_tokens: Annotated[list[Annotated[int, OneOf(DECODE_TOKENS)]], _Knob] = [*DECODE_TOKENS]
    decode_max_num_seqs: Annotated[list[Annotated[int, OneOf(DECODE_SEQS)]], _Knob] = [*DECODE_SEQS]
    agg_max_num_batched_tokens: Annotated[list[Annotated[int, OneOf(PREFILL_TOKENS)]], _Knob] = [*PREFILL_TOKENS]
    agg_max_num_seqs: Annotated[list[Annotated[int, OneOf(DECODE_SEQS)]], _Knob] = [*DECODE_SEQS]
    agg_block_size: _Blocks = 64
    prefill_block_size: _Blocks = 64
    decode_block_size: _Blocks = 64
    agg_gpu_memory_utilization: _Fraction = 0.9
    prefill_gpu_memory_utilization: _Fraction = 0.9
    decode_gpu_memory_utilization: _Fraction = 0.9
    agg_enable_prefix_caching: bool = True
    prefill_enable_prefix_caching: bool = True
    decode_enable_prefix_caching: bool = False
    num_g2_blocks: _Count = 0
    kv_bytes_per_token: Annotated[int, Field(gt=0, le=2**53)] | None = None
    offload_batch_size: Annotated[int, Field(gt=0, le=2**53)] | None = None
    bandwidth_g1_to_g2_gbps: _Rate | None = None
    bandwidth_g2_to_g1_gbps: _Rate | None = None

    router_mode: Annotated[list[Annotated[str, OneOf(("kv_router", "round_robin"))]], _Knob] = [
        "kv_router",
        "round_robin",
    ]
    overlap_score_credit: Annotated[list[Annotated[float, OneOf(OVERLAP_CREDITS)]], _Knob] = [*OVERLAP_CREDITS]
    prefill_load_scale: Annotated[list[Annotated[float, OneOf(PREFILL_LOAD_SCALES)]], _Knob] = [*PREFILL_LOAD_SCALES]
    router_temperature: Annotated[list[Annotated[float, OneOf(TEMPERATURES)]], _Knob] = [*TEMPERATURES]
    host_cache_hit_weight: Annotated[list[Annotated[float, OneOf(HOST_WEIGHTS)]], _Knob] = [*HOST_WEIGHTS]
    disk_cache_hit_weight: Annotated[list[Annotated[float, OneOf(DISK_WEIGHTS)]], _Knob] = [*DISK_WEIGHTS]
    prefill_load_model_type: Annotated[list[Annotated[str, OneOf(("none",))]], _Knob] = ["none"]
    active_decode_blocks_threshold: _Fraction | None = None
    active_prefill_tokens_threshold: _Tokens | None = None
    active_prefill_tokens_threshold_frac: _Rate | None = None
    no_admission_control: bool = False

    planner_scaling_policy: Annotated[list[PolicyEntry], _Knob] = [*SCALING_POLICIES]
    planner_fpm_sampling: Annotated[list[FpmEntry], _Knob] = [*FPM_SAMPLINGS]
    planner_load_sensitivity: Annotated[list[SensitivityEntry], _Knob] = [*LOAD_SENSITIVITIES]
    load_predictor_candidates: Annotated[list[PredictorEntry], _Knob] = [*LOAD_PREDICTORS]


ADMISSION_FIELDS = (
    "active_decode_blocks_threshold",
    "active_prefill_tokens_threshold",
    "active_prefill_tokens_threshold_frac",
    "no_admission_control",
)


def budget_flaws(document: Document) -> list[Flaw]:
    """0 < min_gpu_budget <= gpu_budget."""
    space = mapping_at(document, "search_space")
    lowest, highest = (
        space.get("min_gpu_budget"),
        space.get("gpu_budget", SearchSpace.model_fields["gpu_budget"].default),
    )
    if type(lowest) is not int or type(highest) is not int or lowest <= highest:
        return []
    return [
        Flaw(
            ("search_space", "min_gpu_budget"),
            "min_over_max_budget",
            f"is larger than gpu_budget ({highest})",
            f"use at most {highest}, or raise gpu_budget",
            lowest,
        )
    ]


def router_flaws(document: Document) -> list[Flaw]:
    """Admission thresholds do not go with the KV router."""
    space = mapping_at(document, "search_space")
    modes = space.get("router_mode", ["kv_router", "round_robin"])
    if not isinstance(modes, list) or "kv_router" not in modes:
        return []
    return [
        Flaw(
            ("search_space", field),
            "admission_with_kv_router",
            "cannot be set while kv_router is a choice of router_mode",
            "remove it, or write router_mode: [round_robin]",
            space[field],
        )
        for field in ADMISSION_FIELDS
        if is_set(space, field) and space[field] is not False
    ]


def offload_flaws(document: Document) -> list[Flaw]:
    """Host offload needs the bytes of a token."""
    space = mapping_at(document, "search_space")
    blocks = space.get("num_g2_blocks")
    if type(blocks) is not int or blocks <= 0 or is_set(space, "kv_bytes_per_token"):
        return []
    at = ("search_space", "kv_bytes_per_token")
    remedy = "give the bytes that one token's KV takes on one rank, or set num_g2_blocks to 0"
    return [Flaw(at, "offload_needs_bytes", "is required when num_g2_blocks is above 0", remedy, None, (at,))]
