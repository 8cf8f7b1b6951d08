"""Warnings: fields that the client wrote and that change nothing in this study, and what deserves a second look.

Source: service.md, section 8 (last row); the traffic page.
"""

from collections.abc import Collection, Iterator

from pydantic import BaseModel, ConfigDict

from app.schemas.presets import SCALING_POLICIES
from app.schemas.search_space import SearchSpace
from app.schemas.study import SmartSearchConfig
from app.schemas.sweep import BUDGET_FIELDS
from app.schemas.workload import ARRIVAL_FIELDS, SHARED_SYNTHETIC_FIELDS

ROUTER_WEIGHTS = ("overlap_score_credit", "prefill_load_scale", "router_temperature")
OFFLOAD_WEIGHTS = ("host_cache_hit_weight", "disk_cache_hit_weight")
OFFLOAD_FIELDS = ("kv_bytes_per_token", "offload_batch_size", "bandwidth_g1_to_g2_gbps", "bandwidth_g2_to_g1_gbps")
ROLE_FIELDS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "gpu_memory_utilization",
    "enable_prefix_caching",
)
PLANNER_FIELDS = (
    "planner_fpm_sampling",
    "planner_load_sensitivity",
    "min_endpoint",
    "prefill_min_endpoint",
    "decode_min_endpoint",
    "max_throughput_scaling_replicas",
    "startup_time",
)


class Warned(BaseModel):
    """A warning at a field: RFC 6901 pointer, and what about it."""

    model_config = ConfigDict(frozen=True)

    pointer: str
    detail: str


def advice(config: SmartSearchConfig, client_set: Collection[str]) -> list[Warned]:
    """Warnings about a valid configuration, in the order of its blocks.

    Args: client_set, pointers of the fields that the client wrote (`study.client_set`).
    """
    found = [*_space(config), *_router(config), *_planner(config), *_workload(config), *_goal_and_sweep(config)]
    written = set(client_set)
    return [warned for warned in found if warned.pointer in written]


def _inert(block: str, fields: Collection[str], why: str) -> Iterator[Warned]:
    for field in fields:
        yield Warned(pointer=f"/{block}/{field}", detail=f"has no effect: {why}")


def _space(config: SmartSearchConfig) -> Iterator[Warned]:
    space = config.search_space
    for role, mode in (("agg", "agg"), ("prefill", "disagg"), ("decode", "disagg")):
        if mode not in space.deployment_mode:
            yield from _inert("search_space", [f"{role}_{field}" for field in ROLE_FIELDS], f"{mode} is not searched")
    if space.decode_enable_prefix_caching:
        yield from _inert("search_space", ["decode_enable_prefix_caching"], "decode engines never cache prefixes")
    if space.num_g2_blocks == 0:
        yield from _inert("search_space", OFFLOAD_FIELDS, "num_g2_blocks is 0, there is no host offload")
    for field, info in SearchSpace.model_fields.items():
        values = getattr(space, field)
        if isinstance(values, list) and info.default is not None:
            repeats = [value for index, value in enumerate(values) if value in values[:index]]
            if repeats:
                detail = f"{len(repeats)} repeated {'entry' if len(repeats) == 1 else 'entries'} searched once"
                yield Warned(pointer=f"/search_space/{field}", detail=detail)


def _router(config: SmartSearchConfig) -> Iterator[Warned]:
    space = config.search_space
    if "kv_router" not in space.router_mode:
        yield from _inert("search_space", (*ROUTER_WEIGHTS, *OFFLOAD_WEIGHTS), "kv_router is not a choice")
    elif space.num_g2_blocks == 0:
        yield from _inert("search_space", OFFLOAD_WEIGHTS, "num_g2_blocks is 0, there is no host cache")


def _planner(config: SmartSearchConfig) -> Iterator[Warned]:
    entries = config.search_space.planner_scaling_policy
    policies = [SCALING_POLICIES[entry] if isinstance(entry, str) else entry for entry in entries]
    if not any(policy.enable_load_scaling or policy.enable_throughput_scaling for policy in policies):
        yield from _inert("search_space", PLANNER_FIELDS, "no scaling policy is searched")
    if not any(policy.enable_throughput_scaling for policy in policies):
        yield from _inert("search_space", ["load_predictor_candidates"], "no policy scales by throughput")
    elif not config.workload.is_trace_based:
        detail = "under synthetic traffic the first predictor is used everywhere"
        yield Warned(pointer="/search_space/load_predictor_candidates", detail=detail)


def _workload(config: SmartSearchConfig) -> Iterator[Warned]:
    load = config.workload
    if load.is_trace_based:
        yield from _inert("workload", (*SHARED_SYNTHETIC_FIELDS, *ARRIVAL_FIELDS), "a trace is replayed")
        if load.replay_concurrency is not None:
            why = "replay_concurrency is set, the trace's timestamps are ignored"
            yield from _inert("workload", ["arrival_speedup_ratio"], why)
        if load.trace_format != "mooncake":
            yield Warned(pointer="/workload/trace_format", detail="has no effect: a trace is read as mooncake")
        return
    yield from _inert("workload", ["arrival_speedup_ratio", "trace_format"], "the workload is synthetic")
    if load.request_rate is None:
        yield from _inert("workload", ARRIVAL_FIELDS, "in a closed loop requests arrive when others end")
    elif load.arrival == "constant":
        yield from _inert("workload", ["arrival_seed"], "constant arrivals are not random")
    if load.turns_per_session == 1:
        yield from _inert("workload", ["inter_turn_delay_ms"], "a session has one turn")
    if load.shared_prefix_ratio == 0.0:
        yield from _inert("workload", ["num_prefix_groups"], "shared_prefix_ratio is 0")
    elif load.num_prefix_groups == 0:
        yield from _inert("workload", ["shared_prefix_ratio"], "num_prefix_groups is 0")


def _goal_and_sweep(config: SmartSearchConfig) -> Iterator[Warned]:
    if config.sweep.whole_space:
        yield from _inert("sweep", BUDGET_FIELDS, "whole_space is true, the search ends by itself")
