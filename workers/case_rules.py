"""Contradictions in a prediction configuration that the peer refuses before it replays anything."""

from collections.abc import Iterator, Mapping
from typing import Any

Config = Mapping[str, Any]

_DRIVES = {"trace": ("trace_timestamps", "concurrency"), "other": ("concurrency", "constant_rate", "poisson")}
_RATE = {"synthetic": "requests_per_second", "synthetic-session": "sessions_per_second"}


def refuse_contradictions(config: Config, has_router: bool) -> None:
    """Raises: ValueError with every contradiction found. `has_router`: the stack knows the sections `router`, `planner`."""
    found = [*_engine_faults(config["engine"]), *_traffic_faults(config["traffic"], config["engine"])]
    if not has_router:
        found += [f"unknown top-level section {name!r}" for name in ("router", "planner") if name in config]
    if found:
        raise ValueError("; ".join(found))


def _engine_faults(engine: Config) -> Iterator[str]:
    backend = engine.get("backend", "vllm")
    if engine["mode"] == "aggregated" and engine.get("kv_transfer"):
        yield "aggregated mode rejects kv_transfer"
    if backend == "sglang" and engine.get("enable_chunked_prefill") is False:
        yield "enable_chunked_prefill=false is not supported for backend=sglang"
    if backend != "vllm" and (engine.get("speculation") or {}).get("kind") == "ngram":
        yield "ngram speculation requires vllm"
    for role, worker in engine["workers"].items():
        block_size = (worker or {}).get("kv_cache", {}).get("block_size")
        if backend != "sglang" and block_size == 1:
            yield f"workers.{role}: vLLM and TensorRT-LLM require block_size >= 2"
        scheduler = (worker or {}).get("scheduler", {})
        if backend != "vllm" and scheduler.get("prefill_schedule_interval", 1) != 1:
            yield f"workers.{role}.scheduler.prefill_schedule_interval is supported only for backend=vllm"
        if backend != "sglang" and scheduler.get("prefill_decode_interval", 0) != 0:
            yield f"workers.{role}.scheduler.prefill_decode_interval is supported only for backend=sglang"


def _traffic_faults(traffic: Config, engine: Config) -> Iterator[str]:
    source, load = traffic["source"], traffic["load"]
    kind, drive = source.get("type", "synthetic"), load.get("type", "concurrency")
    if drive not in _DRIVES["trace" if kind == "trace" else "other"]:
        yield f"traffic.load.type {drive!r} does not drive {kind} traffic"
    elif drive in ("poisson", "constant_rate") and load.get(_RATE[kind]) is None:
        yield f"{drive} {kind} traffic requires {_RATE[kind]}"
    if kind == "synthetic-session" and source.get("session", {}).get("turns", 2) < 2:
        yield "traffic.source.session.turns must be at least 2"
    if kind != "trace" and (traffic.get("stop") or {}).get("max_virtual_time_seconds") is not None:
        yield "max_virtual_time_seconds is trace-only"
    if source.get("format") == "mooncake-delta" and engine["mode"] != "aggregated":
        yield "mooncake-delta requires aggregated engine mode"
