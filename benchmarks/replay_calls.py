"""Reader of `spica`-dialect probes: the keyword arguments of a replay call to a replayable case."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from workers.cases import ReferenceCase, trace_contents
from workers.planner.settings import PlannerSettings
from workers.replay.fleet import Fleet, KvRouter, Pool, RoleName, Transfer
from workers.timing.fixed import FixedTimes
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.synthetic import SyntheticTraffic, constant_arrivals, synthetic_batch
from workers.traffic.trace_rows import read_rows

Call = Mapping[str, Any]


def read_call(probe: Call) -> ReferenceCase:
    """The case of a `run_synthetic_trace_replay` or `run_trace_replay` probe.

    Raises: ValueError for calls that the modelled system refuses.
    """
    call = probe["config"]
    fleet = _fleet(call)
    pool = fleet.agg or fleet.prefill
    assert pool is not None
    if probe["call"] == "run_trace_replay":
        batch, names = _trace(probe)
    else:
        batch = _synthetic(call, pool.block_size)
        names = tuple(f"session_{index}" for index in range(batch.order.size))
    return ReferenceCase(probe["id"], fleet, batch, None, names, _planner(call))


def _planner(call: Call) -> PlannerSettings | None:
    """Settings of a call that has a planner; fields without meaning for a replay are left out."""
    given = call.get("planner_config")
    if given is None:
        return None
    engine = call.get("extra_engine_args") or call["decode_engine_args"]
    known = {each.name for each in fields(PlannerSettings)}
    settings = {name: value for name, value in given.items() if name in known}
    return PlannerSettings.of(settings | {"startup_s": engine.get("startup_time", 0.0)})


def _fleet(call: Call) -> Fleet:
    """Pools, router and transfer of a call."""
    router = call.get("router_config")
    kv_router = KvRouter(**router) if router is not None else None
    if "extra_engine_args" in call:
        return Fleet(agg=_pool(call["extra_engine_args"], "agg", call.get("num_workers", 1)), router=kv_router)
    prefill_args, decode_args = call["prefill_engine_args"], call["decode_engine_args"]
    source, target = prefill_args["engine"], decode_args["engine"]
    if source["backend"] != target["backend"]:
        raise ValueError("disaggregated roles need a matching backend")
    if source["block_size"] != target["block_size"]:
        raise ValueError("disaggregated roles need the same block_size")
    return Fleet(
        prefill=_pool(prefill_args, "prefill", call["num_prefill_workers"]),
        decode=_pool(decode_args, "decode", call["num_decode_workers"]),
        router=kv_router,
        transfer=Transfer(
            bytes_per_token=source.get("kv_transfer_bytes_per_token", 0.0),
            bandwidth_gb_per_s=source.get("kv_transfer_bandwidth", 0.0),
            timing=source.get("kv_transfer_timing_mode", "full_prompt"),
        ),
    )


def _pool(args: Call, role: RoleName, replicas: int) -> Pool:
    """One role's engines; the decode pool of this dialect never caches prefixes."""
    engine, dp = args["engine"], args.get("dp_size", 1)
    times = engine["timing_model"]
    return Pool(
        role=role,
        backend=engine["backend"],
        replicas=replicas,
        attention_dp=dp,
        gpus_per_replica=args.get("tensor_parallel_size", 1) * dp,
        num_blocks=engine["num_gpu_blocks"],
        block_size=engine["block_size"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        max_num_seqs=engine["max_num_seqs"],
        step_times=FixedTimes(times["prefill_ms"], times["decode_ms"]),
        prefix_caching=role != "decode",
        context_length=engine.get("max_model_len"),
    )


def _synthetic(call: Call, block_size: int) -> RequestBatch:
    """Requests of a synthetic call; exactly one load."""
    loads = [name for name in ("replay_concurrency", "arrival_interval_ms", "request_rate") if name in call]
    if len(loads) != 1:
        raise ValueError(f"exactly one of concurrency, interval and rate drives the load, got {loads}")
    traffic = SyntheticTraffic(
        isl=call["input_tokens"],
        osl=call["output_tokens"],
        sessions=call["request_count"],
        block_size=block_size,
        turns=call.get("turns_per_session", 1),
        inter_turn_delay_ms=call.get("inter_turn_delay_ms", 0.0),
        shared_prefix_ratio=call.get("shared_prefix_ratio", 0.0),
        num_prefix_groups=call.get("num_prefix_groups", 0),
    )
    if "replay_concurrency" in call:
        return synthetic_batch(traffic, in_flight_cap=call["replay_concurrency"])
    interval_ms = call["arrival_interval_ms"] if "arrival_interval_ms" in call else 1000.0 / call["request_rate"]
    return synthetic_batch(traffic, constant_arrivals(traffic.sessions, interval_ms))


def _trace(probe: Call) -> tuple[RequestBatch, tuple[str, ...]]:
    """Requests and session names of a trace call."""
    call = probe["config"]
    drive = TraceDrive(
        trace_block_size=call.get("trace_block_size", 512),
        speedup=call.get("arrival_speedup_ratio", 1.0),
        in_flight_cap=call.get("replay_concurrency"),
    )
    rows = read_rows(trace_contents(probe, [], None)[0], drive.trace_block_size)
    return mooncake_batch(rows, drive), rows.session_names
