"""Reader of the reference format: one prediction configuration of the peer simulator to a replayable case.

Defaults per backend are those of the engine spec, section 12. What the replay does not model is refused by name.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

import orjson

from app.catalog import snapshot
from app.schemas.deployment import ParallelShape
from app.schemas.status import ReasonCode
from workers.capacity.kv_blocks import blocks_per_rank
from workers.capacity.memory import kv_tokens_per_rank, kv_transfer_bytes_per_token
from workers.case_rules import refuse_contradictions
from workers.errors import UnsupportedError
from workers.planner.settings import PlannerSettings
from workers.replay.fleet import Fleet, KvRouter, Pool, RoleName, StepTimes, Transfer
from workers.replay.metrics import Sla
from workers.timing.aic import aic_times, engine_identity
from workers.timing.fixed import FixedTimes
from workers.timing.polynomial import PolynomialTimes
from workers.traffic.agentic import applied_compute_batch, dynamo_batch
from workers.traffic.load_shape import resolved_request_count
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.synthetic import Dialect, SyntheticTraffic, constant_arrivals, poisson_arrivals, synthetic_batch
from workers.traffic.trace_rows import read_rows

Config = Mapping[str, Any]

_BLOCK_SIZE = {"vllm": 64, "sglang": 1, "trtllm": 32}
_DEFAULT_BUDGET, _DEFAULT_SEQUENCES, _DEFAULT_PREFILL_SEQUENCES = 8192, 256, 1
_DEFAULT_SEED = 42
_MEMORY_FRACTION = {"vllm": 0.9, "sglang": 0.88, "trtllm": 0.9}
_UNMODELLED_ENGINE = ("tokenization", "fpm_profile", "database_mode", "transfer_policy", "systems_paths")
_UNMODELLED_CACHE = ("host_offload", "g3_offload", "kvcr", "state_cache", "prefix_match_unit")
_UNMODELLED_MEASURED = ("decode_context", "prefill_context")
_TIMING_KEYS = ("type", "prefill_ms", "decode_ms", "forward_model")
_PLANNER_KEYS = {
    "target": "optimization_target",
    "max_num_gpus": "max_gpu_budget",
    "min_workers": "min_endpoint",
    "prefill_min_workers": "prefill_min_endpoint",
    "decode_min_workers": "decode_min_endpoint",
}
_ROLE_KEYS: dict[str, RoleName] = {"aggregated": "agg", "prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """One case, ready to replay.

    session_names: name of each session of the batch, by session index. planner: of a case whose fleet is scaled.
    """

    name: str
    fleet: Fleet
    batch: RequestBatch
    sla: Sla | None
    session_names: tuple[str, ...]
    planner: PlannerSettings | None = None


def read_case(case: Config, traces_dir: Path | None = None) -> ReferenceCase:
    """The case whose `config` is a prediction configuration; trace paths are relative to `traces_dir`.

    A case may carry its trace rows itself, under `trace` or `trace_rows`.
    Raises: UnsupportedError for features the replay does not model; ValueError (TraceFaultError for traces) for
    configurations that the peer refuses too; OSError when a trace cannot be read.
    """
    try:
        return _read(case, traces_dir)
    except KeyError as error:
        raise ValueError(f"the case lacks {error.args[0]!r}") from error


def _read(case: Config, traces_dir: Path | None) -> ReferenceCase:
    config = case["config"]
    refuse_contradictions(config, has_router=case.get("stack") == "dynamo")
    _refuse_unmodelled(config)
    dialect: Dialect = "spica" if case.get("stack") == "dynamo" else "cli"
    fleet = _fleet(config)
    traffic = config["traffic"]
    first_pool = fleet.agg or fleet.prefill
    assert first_pool is not None
    if traffic["source"]["type"] == "trace":
        batch, names = _trace_batch(case, traces_dir, dialect)
    else:
        batch = _synthetic_batch(traffic, first_pool.block_size, dialect)
        names = tuple(f"session_{index}" for index in range(batch.order.size))
    sla = _sla(config)
    return ReferenceCase(str(case.get("id", "case")), fleet, batch, sla, names, _planner(config, sla))


def _sla(config: Config) -> Sla | None:
    """Goodput bounds; the peer takes an end-to-end bound alone or token bounds, not both."""
    bounds = config.get("evaluation", {}).get("sla")
    if not bounds:
        return None
    if bounds.get("e2e_ms") is not None and len([value for value in bounds.values() if value is not None]) > 1:
        raise ValueError("evaluation.sla: e2e_ms and ttft_ms or itl_ms are mutually exclusive")
    return Sla(**bounds)


def _refuse_unmodelled(config: Config) -> None:
    """Name the features that would silently change the numbers."""
    engine = config["engine"]
    unmodelled = [key for key in _UNMODELLED_ENGINE if engine.get(key)]
    for role, worker in engine["workers"].items():
        unmodelled += [f"workers.{role}.{name}" for name in _unmodelled_in(worker or {})]
        if _is_measured(worker or {}) and engine.get("speculation"):
            unmodelled.append("speculation with measured step times")
    if _is_scaled(config) and len(_startups(engine)) > 1:
        unmodelled.append("roles with different startup_seconds")
    if unmodelled:
        raise UnsupportedError(ReasonCode.BACKEND_CANNOT_RUN_SHAPE, f"not modelled: {', '.join(unmodelled)}")


def _is_scaled(config: Config) -> bool:
    """Whether a planner runs."""
    return bool(config.get("planner", {}).get("policy", "disabled") != "disabled")


def _startups(engine: Config) -> set[float]:
    """Start-up times of the roles, s."""
    return {float((worker or {}).get("startup_seconds") or 0.0) for worker in engine["workers"].values()}


def _planner(config: Config, sla: Sla | None) -> PlannerSettings | None:
    """Settings of the planner, if one runs; latency bounds are those of the evaluation."""
    if not _is_scaled(config):
        return None
    fields = {_PLANNER_KEYS.get(key, key): value for key, value in config["planner"].items() if key != "policy"}
    bounds = {"ttft_ms": sla.ttft_ms, "itl_ms": sla.itl_ms} if sla else {}
    try:
        return PlannerSettings.of(bounds | fields | {"startup_s": max(_startups(config["engine"]), default=0.0)})
    except TypeError as error:
        raise ValueError(f"planner: {error}") from error


def _unmodelled_in(worker: Config) -> list[str]:
    """Settings of one role that the replay does not know, dotted."""
    found = [f"kv_cache.{key}" for key in _UNMODELLED_CACHE if worker.get("kv_cache", {}).get(key)]
    found += [f"timing.{key}" for key in worker.get("timing", {}) if key not in _TIMING_KEYS]
    if _is_measured(worker):
        found += [f"parallelism.{key}" for key in _UNMODELLED_MEASURED if worker.get("parallelism", {}).get(key)]
    return found


def _is_measured(worker: Config) -> bool:
    """Whether a role's step times come from the performance data."""
    return bool(worker.get("timing", {}).get("type", "default") == "default")


def _fleet(config: Config) -> Fleet:
    """Pools, router and transfer of a configuration."""
    engine = config["engine"]
    roles = ("aggregated",) if engine["mode"] == "aggregated" else ("prefill", "decode")
    pools = {_ROLE_KEYS[role]: _pool(engine, role) for role in roles}
    router = config.get("router", {})
    kv_router = None
    if router.get("policy", "round_robin") == "kv_router":
        kv_router = KvRouter(
            overlap_score_credit=router.get("overlap_score_credit", 1.0),
            prefill_load_scale=router.get("prefill_load_scale", 1.0),
            temperature=router.get("temperature", 0.0),
        )
    return Fleet(
        agg=pools.get("agg"),
        prefill=pools.get("prefill"),
        decode=pools.get("decode"),
        router=kv_router,
        transfer=_transfer(engine),
    )


def _pool(engine: Config, role: str) -> Pool:
    """One role's engines."""
    worker = engine["workers"].get(role) or {}
    backend = engine["backend"]
    parallelism, scheduler = worker.get("parallelism", {}), worker.get("scheduler", {})
    cache = worker.get("kv_cache", {})
    block_size = cache.get("block_size") or _BLOCK_SIZE[backend]
    num_blocks = _num_blocks(engine, role, block_size)
    shape = _shape(worker)
    return Pool(
        role=_ROLE_KEYS[role],
        backend=backend,
        replicas=parallelism.get("replicas", 1),
        attention_dp=shape.attention_dp,
        # Pipeline stages are not counted: the peer's command line reports tensor x attention-DP GPUs per worker.
        gpus_per_replica=shape.tp * shape.attention_dp,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=scheduler.get("max_batched_tokens", _DEFAULT_BUDGET),
        max_num_seqs=scheduler.get(
            "max_sequences", _DEFAULT_PREFILL_SEQUENCES if role == "prefill" else _DEFAULT_SEQUENCES
        ),
        step_times=_step_times(engine, role, num_blocks * block_size),
        prefix_caching=cache.get("prefix_caching", True),
        chunked_prefill=role == "decode" or engine.get("enable_chunked_prefill") is not False,
        context_length=_context_length(engine, worker),
        acceptance=_acceptance(engine),
        acceptance_seed=(engine.get("speculation") or {}).get("seed", _DEFAULT_SEED),
        prefill_schedule_interval=scheduler.get("prefill_schedule_interval", 1),
        prefill_decode_interval=scheduler.get("prefill_decode_interval", 0),
    )


def _acceptance(engine: Config) -> tuple[float, ...]:
    """Conditional acceptance per draft token: given rates, or `nextn_accepted` spread over the first tokens."""
    speculation = engine.get("speculation")
    if speculation:
        return tuple(speculation["acceptance_rates"])
    nextn, accepted = engine.get("nextn", 0), engine.get("nextn_accepted", 0.0)
    whole = floor(accepted)
    rates = [1.0] * whole + [accepted - whole] * (whole < nextn)
    return tuple(rates + [0.0] * (nextn - len(rates)))


def _context_length(engine: Config, worker: Config) -> int | None:
    """Reject limit in tokens; only vLLM falls back to what the model declares."""
    configured = worker.get("context_length", engine.get("context_length", "max"))
    if isinstance(configured, int):
        return configured
    return declared_context_length(engine["model"]) if engine["backend"] == "vllm" else None


def declared_context_length(model: str) -> int:
    """Longest context the model's published configuration declares, tokens.

    Raises: UnsupportedError when the catalog does not know the model.
    """
    if model not in snapshot.MODELS:
        raise UnsupportedError(ReasonCode.NO_PERF_DATA, f"no declared context length for model {model!r}")
    return snapshot.MODELS[model].max_context_tokens


def _shape(worker: Config) -> ParallelShape:
    """How one replica is spread over GPUs."""
    parallelism = worker.get("parallelism", {})
    return ParallelShape(
        tp=parallelism.get("tensor", 1),
        pp=parallelism.get("pipeline", 1),
        attention_dp=parallelism.get("attention_data", 1),
        moe_tp=parallelism.get("moe_tensor", 1),
        moe_ep=parallelism.get("moe_expert", 1),
    )


def _step_times(engine: Config, role: str, pool_tokens: int) -> StepTimes:
    """The role's step times by `timing.type`."""
    timing = (engine["workers"].get(role) or {}).get("timing", {})
    kind = timing.get("type", "default")
    if kind == "fixed":
        return FixedTimes(float(timing["prefill_ms"]), float(timing["decode_ms"]))
    if kind == "polynomial":
        return PolynomialTimes(pool_tokens)
    if kind != "default":
        raise UnsupportedError(ReasonCode.NO_PERF_DATA, f"timing type {kind!r} is not available")
    worker = engine["workers"].get(role) or {}
    identity = engine_identity(
        engine["model"],
        worker.get("hardware") or engine["hardware"],
        engine["backend"],
        _shape(worker),
        engine.get("nextn"),
    )
    return aic_times(identity)


def _num_blocks(engine: Config, role: str, block_size: int) -> int:
    """KV blocks of one rank."""
    worker, backend = engine["workers"].get(role) or {}, engine["backend"]
    cache = worker.get("kv_cache", {})
    capacity = cache.get("capacity", {"type": "default"})
    if capacity.get("blocks") is not None:
        return int(capacity["blocks"])
    if capacity.get("bytes") is not None:
        return int(capacity["bytes"] // (block_size * cache["bytes_per_token"]))
    tokens = kv_tokens_per_rank(
        engine["model"],
        worker.get("hardware") or engine["hardware"],
        backend,
        _shape(worker),
        max_num_batched_tokens=worker.get("scheduler", {}).get("max_batched_tokens", _DEFAULT_BUDGET),
        memory_fraction=capacity.get("memory_fraction") or _MEMORY_FRACTION[backend],
    )
    return blocks_per_rank(tokens, block_size)


def _transfer(engine: Config) -> Transfer:
    """Prefill to decode hand-over; free without a bandwidth."""
    configured = engine.get("kv_transfer")
    if not configured or engine["mode"] == "aggregated" or not configured.get("bandwidth_gb_per_second"):
        return Transfer()
    bytes_per_token = configured.get("bytes_per_token", "auto")
    if bytes_per_token == "auto":
        shape = _shape(engine["workers"].get("prefill") or {})
        bytes_per_token = kv_transfer_bytes_per_token(engine["model"], shape)
    return Transfer(
        bytes_per_token=float(bytes_per_token),
        bandwidth_gb_per_s=float(configured["bandwidth_gb_per_second"]),
        timing=configured.get("timing_mode", "destination_missing"),
    )


def _synthetic_batch(traffic: Config, block_size: int, dialect: Dialect) -> RequestBatch:
    """Requests of a `synthetic` or `synthetic-session` source."""
    source, load = traffic["source"], traffic["load"]
    session = source.get("session", {})
    rate = load.get("requests_per_second") or load.get("sessions_per_second")
    shape = SyntheticTraffic(
        isl=source.get("input_tokens") or source.get("new_input_tokens_per_turn") or 1024,
        osl=source.get("output_tokens") or source.get("output_tokens_per_turn") or 128,
        sessions=_stop_count(traffic.get("stop", {}), load, rate),
        block_size=block_size,
        turns=session.get("turns", 4) if source["type"] == "synthetic-session" else 1,
        inter_turn_delay_ms=session.get("inter_turn_delay_ms", 0.0),
        shared_prefix_ratio=session.get("shared_prefix_ratio", 0.0),
        num_prefix_groups=session.get("prefix_groups", 0),
        cached_prefix_tokens=source.get("cached_prefix_tokens", 0),
        dialect=dialect,
    )
    if load["type"] == "concurrency":
        return synthetic_batch(shape, in_flight_cap=load.get("concurrency", 10))
    if load["type"] == "constant_rate":
        return synthetic_batch(shape, constant_arrivals(shape.sessions, 1000.0 / rate))
    if load["type"] == "poisson":
        seed = load.get("seed", _DEFAULT_SEED)
        return synthetic_batch(shape, poisson_arrivals(shape.sessions, rate, seed))
    raise ValueError(f"traffic.load.type {load['type']!r} does not drive synthetic traffic")


def _stop_count(stop: Config, load: Config, rate: float | None) -> int:
    """Requests or sessions to issue."""
    for key in ("requests", "sessions"):
        if stop.get(key) is not None:
            return int(stop[key])
        if stop.get(f"{key}_per_load_unit") is not None:
            return resolved_request_count(stop[f"{key}_per_load_unit"], rate or load.get("concurrency", 10))
    raise ValueError("synthetic traffic requires a stop condition")


def _trace_batch(case: Config, traces_dir: Path | None, dialect: Dialect) -> tuple[RequestBatch, tuple[str, ...]]:
    """Requests and session names of a trace source."""
    traffic = case["config"]["traffic"]
    source, load, stop = traffic["source"], traffic["load"], traffic.get("stop") or {}
    trace_format = source.get("format", "mooncake")
    limit_s = stop.get("max_virtual_time_seconds")
    drive = TraceDrive(
        trace_block_size=source.get("block_size") or 512,
        speedup=load.get("speedup") or 1.0,
        in_flight_cap=load.get("concurrency", 10) if load["type"] == "concurrency" else None,
        is_delta=trace_format == "mooncake-delta",
        stop_after_ms=None if limit_s is None else 1000.0 * limit_s,
        dialect=dialect,
    )
    contents = trace_contents(case, source["paths"], traces_dir)
    if trace_format == "dynamo":
        return dynamo_batch(contents, drive)
    if len(contents) != 1:
        raise ValueError(f"trace format {trace_format!r} requires exactly one path")
    if trace_format == "applied_compute_agentic":
        return applied_compute_batch(contents[0], drive)
    if trace_format not in ("mooncake", "mooncake-delta"):
        raise UnsupportedError(ReasonCode.BACKEND_CANNOT_RUN_SHAPE, f"not modelled: trace format {trace_format!r}")
    rows = read_rows(contents[0], drive.trace_block_size)
    return mooncake_batch(rows, drive), rows.session_names


def trace_contents(case: Config, paths: list[str], traces_dir: Path | None) -> list[bytes]:
    """The trace files of a case: its own rows, or the files under `traces_dir`, gzipped ones beside their name."""
    for key in ("trace", "trace_rows"):
        if isinstance(case.get(key), list):
            return [b"\n".join(row.encode() if isinstance(row, str) else orjson.dumps(row) for row in case[key])]
    contents = []
    for name in paths:
        path = (traces_dir or Path()) / name
        zipped = path.with_name(path.name + ".gz")
        contents.append(gzip.decompress(zipped.read_bytes()) if zipped.is_file() else path.read_bytes())
    return contents
