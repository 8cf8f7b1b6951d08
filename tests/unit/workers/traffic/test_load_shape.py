"""Load shapes of the user's traffic spec: loop, cap, request count."""

import pytest

from app.schemas.workload import Workload
from workers.traffic.load_shape import kv_load_concurrency, load_shape, resolved_request_count

SYNTHETIC = {"isl": 100, "osl": 10, "num_request_ratio": 10.0}


def test_trace_without_cap_is_open_loop() -> None:
    shape = load_shape(Workload(trace_path="t.jsonl"))
    assert (shape.name, shape.in_flight_cap, shape.request_count, shape.is_closed_loop) == ("trace", None, None, False)


def test_trace_with_replay_concurrency_is_closed_loop() -> None:
    shape = load_shape(Workload(trace_path="t.jsonl", replay_concurrency=7))
    assert (shape.name, shape.in_flight_cap, shape.is_closed_loop) == ("trace_capped", 7, True)


def test_request_rate_is_open_loop_at_its_interval() -> None:
    shape = load_shape(Workload(request_rate=8.0, **SYNTHETIC))
    assert (shape.name, shape.in_flight_cap, shape.interval_ms, shape.request_count) == (
        "request_rate",
        None,
        125.0,
        80,
    )


@pytest.mark.parametrize(("concurrency", "requests"), [(256, 2560), (512, 5120)])
def test_concurrency_scales_the_request_count(concurrency: int, requests: int) -> None:
    shape = load_shape(Workload(concurrency=concurrency, **SYNTHETIC))
    assert (shape.in_flight_cap, shape.request_count, shape.interval_ms) == (concurrency, requests, None)


@pytest.mark.parametrize(
    ("ratio", "capacity", "cap"), [(0.0, 100, 1), (1.0, 100, 100), (0.5, 101, 50), (1.5, 100, 150), (0.9, 0, 1)]
)
def test_kv_load_derives_the_cap_from_capacity(ratio: float, capacity: int, cap: int) -> None:
    workload = Workload(kv_load_ratio=ratio, **SYNTHETIC)
    shape = load_shape(workload, kv_load_ratio=ratio, capacity_concurrency=capacity)
    assert (shape.name, shape.in_flight_cap, shape.request_count) == ("kv_load", cap, 10 * cap)


def test_kv_load_without_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity_concurrency"):
        load_shape(Workload(kv_load_ratio=0.5, **SYNTHETIC), kv_load_ratio=0.5)


@pytest.mark.parametrize("ratio", [-0.1, float("nan"), float("inf")])
def test_kv_load_ratio_negative_or_not_finite_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="finite and non-negative"):
        kv_load_concurrency(ratio, 10)


def test_kv_load_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity_concurrency"):
        kv_load_concurrency(0.5, -1)


@pytest.mark.parametrize(
    ("ratio", "load", "count"), [(2.5, 3, 8), (0.5, 5, 2), (0.1, 3, 1), (None, 64, 1), (1.5, 1, 2), (0.5, 7, 4)]
)
def test_request_count_rounds_half_to_even_and_is_at_least_one(ratio: float | None, load: float, count: int) -> None:
    assert resolved_request_count(ratio, load) == count
