"""A workload block to requests."""

from pathlib import Path

import numpy as np
import pytest

from app.schemas.workload import Workload
from tests.unit.traces.contents import stored
from workers.traffic.load_shape import load_shape
from workers.traffic.synthetic import constant_arrivals, poisson_arrivals
from workers.traffic.workload import workload_batch

SYNTHETIC = {"isl": 128, "osl": 4, "num_request_ratio": 2.0}
ROW = b'{"timestamp":%d,"input_length":100,"output_length":2,"hash_ids":[1,2]}\n'
ROWS = ROW % 80 + ROW % 40


def test_request_rate_arrives_at_a_constant_rate() -> None:
    workload = Workload(request_rate=7.0, **SYNTHETIC)
    batch = workload_batch(workload, load_shape(workload), 64, None)
    assert batch.arrival_ms.tolist() == constant_arrivals(14, 1000.0 / 7).tolist()


def test_request_rate_poisson_arrives_by_its_seed() -> None:
    workload = Workload(request_rate=7.0, arrival="poisson", arrival_seed=5, **SYNTHETIC)
    batch = workload_batch(workload, load_shape(workload), 64, None)
    assert batch.arrival_ms.tolist() == poisson_arrivals(14, 7.0, 5).tolist()


def test_concurrency_is_a_closed_loop_with_shared_knobs_passed_on() -> None:
    knobs = {"turns_per_session": 2, "inter_turn_delay_ms": 5.0, "shared_prefix_ratio": 0.5, "num_prefix_groups": 1}
    workload = Workload(concurrency=3, **knobs, **SYNTHETIC)
    batch = workload_batch(workload, load_shape(workload), 64, None)
    assert batch.in_flight_cap == 3
    assert batch.num_requests == 12
    assert batch.delay_ms[1] == 5.0
    assert batch.span_tokens is not None
    assert batch.span_tokens[:2].tolist() == [64, 64]


def test_kv_load_is_closed_at_the_derived_cap() -> None:
    workload = Workload(kv_load_ratio=0.5, **SYNTHETIC)
    batch = workload_batch(workload, load_shape(workload, 0.5, 20), 64, None)
    assert (batch.in_flight_cap, batch.num_requests) == (10, 20)


def test_trace_is_driven_by_its_clock_and_speedup(tmp_path: Path) -> None:
    workload = Workload(trace_path="t.jsonl", arrival_speedup_ratio=2.0)
    batch = workload_batch(workload, load_shape(workload), 64, stored(tmp_path, ROWS, block_size=64))
    assert batch.arrival_ms.tolist() == [0.0, 20.0]


def test_trace_capped_is_a_closed_loop(tmp_path: Path) -> None:
    workload = Workload(trace_path="t.jsonl", replay_concurrency=1)
    batch = workload_batch(workload, load_shape(workload), 64, stored(tmp_path, ROWS, block_size=64))
    assert batch.in_flight_cap == 1
    assert np.array_equal(batch.order, [0, 1])


def test_trace_block_size_is_that_of_the_trace(tmp_path: Path) -> None:
    workload = Workload(trace_path="t.jsonl")
    batch = workload_batch(workload, load_shape(workload), 64, stored(tmp_path, ROWS, block_size=64))
    assert batch.span_tokens is not None
    assert batch.span_tokens.tolist() == [64, 36, 64, 36]


def test_workload_asked_twice_shares_one_batch() -> None:
    workload = Workload(concurrency=3, **SYNTHETIC)
    first = workload_batch(workload, load_shape(workload), 64, None)
    assert workload_batch(workload, load_shape(workload), 64, None) is first


def test_trace_without_file_is_refused() -> None:
    workload = Workload(trace_path="t.jsonl")
    with pytest.raises(ValueError, match="stored trace"):
        workload_batch(workload, load_shape(workload), 64, None)
