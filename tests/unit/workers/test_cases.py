"""Reading the reference format."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.golden.files import TRACES, case, cases
from workers.cases import read_case
from workers.errors import UnsupportedError
from workers.replay.fleet import KvRouter, Transfer
from workers.replay.metrics import Sla
from workers.timing.fixed import FixedTimes
from workers.timing.polynomial import PolynomialTimes


def config(backend: str = "vllm", **engine: Any) -> dict[str, Any]:
    worker = {
        "timing": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0},
        "kv_cache": {"capacity": {"type": "fixed", "blocks": 100}},
    }
    return {
        "traffic": {
            "source": {"type": "synthetic", "input_tokens": 100, "output_tokens": 5},
            "load": {"type": "concurrency", "concurrency": 2},
            "stop": {"requests": 4},
        },
        "engine": {
            "mode": "aggregated",
            "model": "Qwen/Qwen3-32B-FP8",
            "hardware": "h200_sxm",
            "backend": backend,
            "workers": {"aggregated": worker},
            **engine,
        },
    }


def disaggregated(**engine: Any) -> dict[str, Any]:
    found = config(mode="disaggregated", **engine)
    worker = found["engine"]["workers"].pop("aggregated")
    found["engine"]["workers"] = {"prefill": worker, "decode": copy.deepcopy(worker)}
    return found


@pytest.mark.parametrize(
    ("backend", "block_size", "context"), [("vllm", 64, 40_960), ("sglang", 1, None), ("trtllm", 32, None)]
)
def test_pool_defaults_follow_the_backend(backend: str, block_size: int, context: int | None) -> None:
    pool = read_case({"config": config(backend)}).fleet.agg
    assert pool is not None
    assert (pool.block_size, pool.context_length, pool.num_blocks) == (block_size, context, 100)
    assert (pool.max_num_batched_tokens, pool.max_num_seqs, pool.replicas, pool.attention_dp) == (8192, 256, 1, 1)
    assert (pool.prefix_caching, pool.chunked_prefill, pool.acceptance) == (True, True, ())
    assert (pool.prefill_schedule_interval, pool.prefill_decode_interval) == (1, 0)
    assert pool.step_times == FixedTimes(10.0, 1.0)


def test_prefill_pool_takes_one_sequence_by_default() -> None:
    fleet = read_case({"config": disaggregated()}).fleet
    assert fleet.agg is None
    assert fleet.prefill is not None
    assert fleet.decode is not None
    assert (fleet.prefill.max_num_seqs, fleet.decode.max_num_seqs) == (1, 256)
    assert fleet.transfer == Transfer()


def test_chunked_prefill_off_spares_the_decode_role() -> None:
    fleet = read_case({"config": disaggregated(enable_chunked_prefill=False)}).fleet
    assert fleet.prefill is not None
    assert fleet.decode is not None
    assert (fleet.prefill.chunked_prefill, fleet.decode.chunked_prefill) == (False, True)


def test_transfer_defaults_to_missing_blocks() -> None:
    found = disaggregated(kv_transfer={"bandwidth_gb_per_second": 25.0, "bytes_per_token": 131072})
    assert read_case({"config": found}).fleet.transfer == Transfer(131072.0, 25.0, "destination_missing")


def test_transfer_without_bandwidth_is_free() -> None:
    assert read_case({"config": disaggregated(kv_transfer={"bytes_per_token": 5})}).fleet.transfer == Transfer()


def test_polynomial_timing_knows_the_pool() -> None:
    found = config()
    found["engine"]["workers"]["aggregated"]["timing"] = {"type": "polynomial"}
    pool = read_case({"config": found}).fleet.agg
    assert pool is not None
    assert pool.step_times == PolynomialTimes(6400)


def test_capacity_in_bytes_becomes_blocks() -> None:
    found = config()
    cache = {"bytes_per_token": 1000, "capacity": {"type": "fixed", "bytes": 1_000_000}}
    found["engine"]["workers"]["aggregated"]["kv_cache"] = cache
    pool = read_case({"config": found}).fleet.agg
    assert pool is not None
    assert pool.num_blocks == 15


@pytest.mark.parametrize(
    ("engine", "acceptance"),
    [
        ({"nextn": 2, "nextn_accepted": 0.8}, (0.8, 0.0)),
        ({"nextn": 2, "nextn_accepted": 2.0}, (1.0, 1.0)),
        ({"nextn": 3, "nextn_accepted": 1.25}, (1.0, 0.25, 0.0)),
        ({"speculation": {"kind": "ngram", "acceptance_rates": [0.7, 0.5]}}, (0.7, 0.5)),
    ],
)
def test_acceptance_is_conditional_per_draft(engine: dict[str, Any], acceptance: tuple[float, ...]) -> None:
    pool = read_case({"config": config(**engine)}).fleet.agg
    assert pool is not None
    assert pool.acceptance == pytest.approx(acceptance)


def test_context_length_of_the_worker_beats_the_engine() -> None:
    found = config("sglang", context_length=500)
    assert read_case({"config": found}).fleet.agg.context_length == 500  # type: ignore[union-attr]
    found["engine"]["workers"]["aggregated"]["context_length"] = 300
    assert read_case({"config": found}).fleet.agg.context_length == 300  # type: ignore[union-attr]


def test_router_weights_are_read() -> None:
    found = config() | {"router": {"policy": "kv_router", "prefill_load_scale": 4.0}}
    assert read_case({"config": found, "stack": "dynamo"}).fleet.router == KvRouter(prefill_load_scale=4.0)
    round_robin = config() | {"router": {"policy": "round_robin"}}
    assert read_case({"config": round_robin, "stack": "dynamo"}).fleet.router is None
    with pytest.raises(ValueError, match="unknown top-level section"):
        read_case({"config": round_robin})


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("engine", "kv_transfer", {"bandwidth_gb_per_second": 1.0}, "rejects kv_transfer"),
        ("traffic", "load", {"type": "kv_capacity_fraction", "fraction": 0.5}, "does not drive"),
        ("traffic", "load", {"type": "poisson", "sessions_per_second": 1.0}, "requires requests_per_second"),
    ],
)
def test_contradiction_in_a_case_is_refused(section: str, key: str, value: object, words: str) -> None:
    found = config()
    found[section] = found[section] | {key: value}
    with pytest.raises(ValueError, match=words):
        read_case({"config": found})


def test_sla_is_read_and_its_kinds_exclude_each_other() -> None:
    found = config() | {"evaluation": {"sla": {"ttft_ms": 5.0, "itl_ms": 2.0}}}
    assert read_case({"config": found}).sla == Sla(ttft_ms=5.0, itl_ms=2.0)
    found["evaluation"]["sla"]["e2e_ms"] = 1.0
    with pytest.raises(ValueError, match="mutually exclusive"):
        read_case({"config": found})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenization": {"workers": 2, "base_ms": 1.0}}, "tokenization"),
        ({"database_mode": "SOL"}, "database_mode"),
    ],
)
def test_engine_feature_not_modelled_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        read_case({"config": config(**change)})


@pytest.mark.parametrize(
    ("block", "value", "named"),
    [
        ("kv_cache", {"host_offload": {"num_host_blocks": 4}}, "host_offload"),
        ("timing", {"type": "default", "kvcache_quant_mode": "fp8"}, "kvcache_quant_mode"),
    ],
)
def test_worker_feature_not_modelled_is_refused_by_name(block: str, value: dict[str, Any], named: str) -> None:
    found = config()
    found["engine"]["workers"]["aggregated"][block] |= value
    with pytest.raises(UnsupportedError, match=f"workers.aggregated.{block}.{named}"):
        read_case({"config": found})


def test_decode_context_is_refused_only_with_measured_step_times() -> None:
    found = config()
    worker = found["engine"]["workers"]["aggregated"]
    worker["parallelism"] = {"decode_context": 2}
    assert read_case({"config": found}).fleet.agg is not None
    worker["timing"] = {"type": "default"}
    with pytest.raises(UnsupportedError, match="decode_context"):
        read_case({"config": found})


def test_planner_fields_take_their_own_names() -> None:
    found = case("oracle-router-public", "router-pub-011-planner-startup")
    planner = read_case(found).planner
    assert planner is not None
    assert (planner.optimization_target, planner.max_gpu_budget, planner.min_endpoint) == ("load", 4, 1)
    assert (planner.startup_s, planner.load_adjustment_interval_seconds) == (8.0, 5)


def test_planner_switched_off_is_none() -> None:
    assert read_case({"config": config() | {"planner": {"policy": "disabled"}}, "stack": "dynamo"}).planner is None


def test_planner_field_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no_such_field"):
        read_case({"config": config() | {"planner": {"policy": "enabled", "no_such_field": 1}}, "stack": "dynamo"})


def test_dynamo_stack_reads_traffic_in_the_spica_dialect() -> None:
    """Case router-pub-001: three turns of 256 fresh tokens each, not cumulative ones."""
    found = case("oracle-router-public", "router-pub-001-rr")
    assert set(read_case(found).batch.input_tokens.tolist()) == {256}
    plain = {key: value for key, value in found.items() if key != "stack"}
    plain["config"] = {key: value for key, value in found["config"].items() if key != "router"}
    assert read_case(plain).batch.input_tokens[:3].tolist() == [256, 528, 800]


def test_trace_is_read_from_the_folder_gzipped_or_not(tmp_path: Path) -> None:
    found = case("oracle-public", "pub-048-delta")
    zipped = read_case(found, TRACES).batch
    (tmp_path / "fixture-mooncake-delta.jsonl").write_bytes(
        b'{"session_id":"d","timestamp":0,"input_length":7,"output_length":1,"hash_ids":[1]}'
    )
    assert zipped.input_tokens.tolist() == [16, 28]
    assert read_case(found, tmp_path).batch.input_tokens.tolist() == [7]


def test_trace_absent_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_case(case("oracle-public", "pub-048-delta"), tmp_path)


def test_trace_several_paths_are_refused_except_for_dynamo() -> None:
    found = copy.deepcopy(case("oracle-public", "pub-048-delta"))
    found["config"]["traffic"]["source"]["paths"] *= 2
    with pytest.raises(ValueError, match="exactly one path"):
        read_case(found, TRACES)


def test_virtual_time_limit_is_in_milliseconds() -> None:
    assert read_case(case("oracle-public", "pub-053-virtual-stop"), TRACES).batch.stop_after_ms == 20_000.0


def test_synthetic_without_stop_is_refused() -> None:
    found = config()
    del found["traffic"]["stop"]
    with pytest.raises(ValueError, match="stop condition"):
        read_case({"config": found})


def test_case_read_twice_is_the_same() -> None:
    found = case("engine-probes", "V15")
    one, two = read_case(found), read_case(found)
    assert one.fleet == two.fleet
    for field in dataclasses.fields(one.batch):
        mine, theirs = getattr(one.batch, field.name), getattr(two.batch, field.name)
        assert mine is theirs is None or (mine == theirs).all() or str(mine) == str(theirs)


def test_every_public_prediction_is_read_or_named_as_not_modelled() -> None:
    """With fixed or polynomial timing only: measured step times need the performance data of each shape."""
    refused = {}
    for found in cases("oracle-public"):
        workers = found["config"]["engine"]["workers"].values()
        if all(worker.get("timing", {}).get("type", "default") != "default" for worker in workers):
            try:
                assert read_case(found, TRACES).batch.num_requests > 0
            except (UnsupportedError, ValueError) as error:
                refused[found["id"]] = str(error)
    assert sorted(refused) == [
        "pub-051-agentic",
        "pub-052-agentic-dynamo",
        "pub-062-tokenization",
        "pub-067-g2-offload",
    ]
