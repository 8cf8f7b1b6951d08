"""The flat report (traffic spec, section 7)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workers.replay.observed import AGG, DISAGG, Seen, observe
from workers.replay.metrics import PERCENTILES, Sla, distribution, nearest_rank, report

# Six arrivals 30 ms apart on two engines, 100 ms prefill and 10 ms decode (section 7.7, by hand).
BY_HAND = [
    Seen(0.0, (100, 310, 320, 330), 256),
    Seen(30.0, (130, 340, 350, 360), 256),
    Seen(60.0, (210, 320, 330, 340), 256),
]


def test_report_counts_tokens_and_rates_of_completed_requests() -> None:
    values = report(*observe(Seen(10.0, (110, 120)), Seen(20.0, (220, 230, 250), 300), Seen(30.0)), AGG)
    assert (values["num_requests"], values["completed_requests"]) == (3, 2)
    assert (values["total_input_tokens"], values["total_output_tokens"], values["processed_tokens"]) == (400, 5, 405)
    assert values["duration_ms"] == 250.0
    assert values["request_throughput_rps"] == 8.0
    assert values["output_throughput_tok_s"] == 20.0
    assert values["input_throughput_tok_s"] == 1600.0
    assert values["total_throughput_tok_s"] == 1620.0


def test_report_latencies_follow_their_definitions() -> None:
    values = report(*observe(Seen(10.0, (110, 120, 150)), Seen(20.0, (220, 250))), AGG)
    assert (values["min_ttft_ms"], values["max_ttft_ms"], values["mean_ttft_ms"]) == (100.0, 200.0, 150.0)
    assert values["mean_ttst_ms"] == (10 + 30) / 2
    assert values["mean_tpot_ms"] == (20 + 30) / 2
    assert values["mean_itl_ms"] == pytest.approx((10 + 30 + 30) / 3)
    assert values["mean_e2e_latency_ms"] == (140 + 230) / 2
    assert values["mean_output_token_throughput_per_user"] == pytest.approx((100 + 1000 / 30 * 2) / 3)


def test_report_gap_of_zero_counts_as_itl_but_not_as_a_rate() -> None:
    values = report(*observe(Seen(0.0, (100, 100, 110))), AGG)
    assert (values["num_itl_samples"], values["mean_itl_ms"]) == (2, 5.0)
    assert values["max_output_token_throughput_per_user"] == values["min_output_token_throughput_per_user"] == 100.0


def test_report_repeated_gaps_weigh_by_their_count() -> None:
    outcomes, batch = observe(
        Seen(0.0, (100, 110, 150)), gap_ms=np.array([40.0, 10.0, 7.0]), gap_count=np.array([1, 3, 0])
    )
    values = report(outcomes, batch, AGG)
    assert values["num_itl_samples"] == 4
    assert values["mean_itl_ms"] == 17.5
    assert (values["min_itl_ms"], values["median_itl_ms"], values["p90_itl_ms"]) == (10.0, 10.0, 40.0)
    assert values["std_itl_ms"] == pytest.approx(math.sqrt((3 * 7.5**2 + 22.5**2) / 4))


def test_report_one_token_outputs_have_no_gap_statistics() -> None:
    values = report(*observe(Seen(0.0, (100,)), Seen(5.0, (200,))), AGG)
    assert values["mean_ttft_ms"] == values["mean_e2e_latency_ms"] == 147.5
    assert (values["num_tpot_samples"], values["num_itl_samples"]) == (0, 0)
    for stem in ("ttst_ms", "tpot_ms", "itl_ms", "output_token_throughput_per_user"):
        assert all(values[f"{statistic}_{stem}"] is None for statistic in ("mean", "median", "p99", "std"))


def test_report_request_without_output_counts_but_has_no_latency() -> None:
    values = report(*observe(Seen(0.0, (), end=100.0), Seen(0.0, (100, 110))), AGG)
    assert (values["completed_requests"], values["num_ttft_samples"], values["num_e2e_latency_samples"]) == (2, 1, 1)
    assert values["total_input_tokens"] == 200


def test_report_nothing_completed_has_no_rates() -> None:
    values = report(*observe(Seen(0.0), Seen(1.0)), AGG, Sla(ttft_ms=100))
    assert (values["num_requests"], values["completed_requests"]) == (2, 0)
    for name in ("duration_ms", "output_throughput_tok_s", "prefix_cache_reused_ratio", "mean_ttft_ms"):
        assert values[name] is None
    assert values["goodput_completed_requests"] == 0
    assert values["goodput_output_throughput_tok_s"] is None


def test_report_virtual_time_limit_counts_arrivals_and_measures_completions() -> None:
    outcomes, batch = observe(
        Seen(0.0, (100, 190)), Seen(500.0, (600,), is_unfinished=True), Seen(math.nan, is_unfinished=True)
    )
    values = report(outcomes, batch, AGG)
    assert (values["num_requests"], values["completed_requests"]) == (2, 1)
    assert (values["duration_ms"], values["num_ttft_samples"]) == (190.0, 1)


def test_report_reuse_takes_first_and_largest_admission() -> None:
    values = report(*observe(Seen(0.0, (10,), 100, reuse=(16, 64)), Seen(0.0, (10,), 300, reuse=(48, 48))), AGG)
    assert values["first_admission_prefix_cache_reused_ratio"] == 64 / 400
    assert values["prefix_cache_reused_ratio"] == 112 / 400


def test_report_aggregated_engines_count_as_decode() -> None:
    values = report(*observe(*BY_HAND), AGG)
    assert (values["prefill_gpus_per_worker"], values["decode_gpus_per_worker"]) == (0, 4)
    assert values["decode_worker_seconds"] == 0.72
    assert values["gpu_hours"] == pytest.approx(0.72 * 4 / 3600)


def test_report_disaggregated_roles_are_priced_apart() -> None:
    outcomes, batch = observe(*BY_HAND, prefill_worker_s=3.0, decode_worker_s=5.0)
    values = report(outcomes, batch, DISAGG)
    assert (values["prefill_gpus_per_worker"], values["decode_gpus_per_worker"]) == (2, 8)
    assert values["gpu_hours"] == pytest.approx((3 * 2 + 5 * 8) / 3600)


def test_report_has_goodput_only_under_an_sla() -> None:
    observed = observe(*BY_HAND)
    assert not [name for name in report(*observed, AGG) if name.startswith("goodput")]
    assert report(*observed, AGG, Sla())["goodput_completed_requests"] == 3


@pytest.mark.parametrize(
    ("sla", "good"),
    [
        (Sla(ttft_ms=100.0), 2),
        (Sla(ttft_ms=99.999), 0),
        (Sla(ttft_ms=150.0), 3),
        (Sla(itl_ms=43.4), 1),
        (Sla(itl_ms=77.0), 3),
        (Sla(itl_ms=76.0), 1),
        (Sla(e2e_ms=280.0), 1),
        (Sla(e2e_ms=330.0), 3),
        (Sla(ttft_ms=100.0, itl_ms=50.0), 0),
        (Sla(ttft_ms=150.0, e2e_ms=300.0), 1),
    ],
)
def test_goodput_bounds_are_inclusive_and_itl_is_the_mean_gap(sla: Sla, good: int) -> None:
    values = report(*observe(*BY_HAND), AGG, sla)
    assert values["goodput_completed_requests"] == good
    assert values["goodput_request_throughput_rps"] == pytest.approx(good / 0.36)
    assert values["goodput_output_throughput_tok_s"] == pytest.approx(good * 4 / 0.36)


def test_goodput_single_token_passes_any_itl_bound() -> None:
    assert report(*observe(Seen(0.0, (100,))), AGG, Sla(itl_ms=0.1))["goodput_completed_requests"] == 1


@pytest.mark.parametrize(("sla", "good"), [(Sla(ttft_ms=1e9), 0), (Sla(itl_ms=1e9), 0), (Sla(e2e_ms=100.0), 1)])
def test_goodput_without_output_passes_an_e2e_bound_only(sla: Sla, good: int) -> None:
    assert report(*observe(Seen(0.0, (), end=100.0)), AGG, sla)["goodput_completed_requests"] == good


def test_goodput_ignores_rejected_requests() -> None:
    assert report(*observe(Seen(0.0, (10,)), Seen(0.0)), AGG, Sla(e2e_ms=1e9))["goodput_completed_requests"] == 1


@pytest.mark.parametrize(("quantile", "rank"), [(0.5, 3), (0.75, 5), (0.9, 5), (0.95, 6), (0.99, 6)])
def test_nearest_rank_of_seven_samples_rounds_half_up(quantile: float, rank: int) -> None:
    assert nearest_rank(7, quantile) == rank


def test_distribution_without_samples_is_undefined() -> None:
    assert set(distribution("x_ms", np.zeros(0)).values()) == {None}


SAMPLES = st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 5)), min_size=1, max_size=30)


@given(SAMPLES)
def test_distribution_of_counted_samples_equals_that_of_repeated_ones(samples: list[tuple[float, int]]) -> None:
    counted = distribution(
        "x", np.array([value for value, _ in samples]), np.array([count for _, count in samples], dtype=np.int64)
    )
    repeated = np.sort(np.repeat([value for value, _ in samples], [count for _, count in samples]))
    for name, quantile in PERCENTILES.items():
        assert counted[f"{name}_x"] == repeated[nearest_rank(repeated.size, quantile)]
    assert counted["min_x"] == repeated[0]
    assert counted["max_x"] == repeated[-1]
    assert counted["mean_x"] == pytest.approx(repeated.mean())
    assert counted["std_x"] == pytest.approx(repeated.std(), abs=1e-6)
