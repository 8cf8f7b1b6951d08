"""Expected latencies and the capacity that follows from them, on step times that are lines."""

from dataclasses import replace

import pytest

from tests.unit.workers.planner.looks import FACTS, Lines, record
from workers.planner import seeds, sla
from workers.planner.capacity import MOST_BATCHES, agg_rps, batches, decode_rps, prefill_rps
from workers.planner.demand import Demand, Forecast
from workers.planner.latency import AggLatency, DecodeLatency, PrefillLatency
from workers.planner.observation import Traffic
from workers.planner.predictors.constant import ConstantPredictor
from workers.planner.settings import PlannerSettings

SLA = PlannerSettings(optimization_target="sla", ttft_ms=500.0, itl_ms=20.0, max_num_fpm_samples=200)
LARGE = replace(FACTS, max_kv_tokens=1_000_000, max_num_seqs=100)


def prefill_model() -> PrefillLatency:
    model = PrefillLatency(SLA, LARGE)
    seeds.seed_prefill(model, LARGE, Lines())
    return model


def decode_model(accepted_length: float = 1.0) -> DecodeLatency:
    model = DecodeLatency(SLA, replace(LARGE, accepted_length=accepted_length))
    seeds.seed_decode(model, LARGE, Lines())
    return model


def agg_model() -> AggLatency:
    """Passes of 4 ms, 0.05 ms a prompt token and 1 us a KV token."""
    model = AggLatency(SLA, LARGE)
    for tokens in range(0, 8000, 500):
        for kv_tokens in (0, 10_000, 50_000):
            model.seed(tokens, kv_tokens, 4.0 + 0.05 * tokens + 0.001 * kv_tokens)
    return model


def test_queue_drains_in_passes_of_the_budget_with_one_mean_prompt_behind_it() -> None:
    model = prefill_model()
    model.learn(record(num_prefill_requests=2, prefill_tokens=2000, wall_time_ms=105.0))
    # 9192 + 1000 tokens, half of them cached: one pass of 5096.
    assert model.ttft_ms(9192, 0.5) == pytest.approx(5.0 + 0.05 * 5096)
    assert model.ttft_ms(9192, 0.0) == pytest.approx(2 * 5.0 + 0.05 * 10192)


def test_hit_rate_leaves_at_least_a_twentieth_to_compute() -> None:
    model = prefill_model()
    assert model.ttft_ms(2000, 1.0) == pytest.approx(5.0 + 0.05 * 100)


def test_tokens_between_drafts_come_faster() -> None:
    busy = record(num_decode_requests=10, decode_kv_tokens=20_000)
    assert decode_model().itl_ms(busy) == pytest.approx(4.0 + 1.0 + 20.0)
    assert decode_model(2.5).itl_ms(busy) == pytest.approx(10.0)


def test_decode_engine_goes_only_if_the_others_hold_its_tokens() -> None:
    model, load = decode_model(), {"num_decode_requests": 10, "decode_kv_tokens": 4000}
    pair = [record(engine, **load) for engine in (0, 1)]
    assert sla.decode_step(model, SLA, LARGE, pair, 2) == -1
    assert sla.decode_step(model, SLA, replace(LARGE, max_kv_tokens=8000), pair, 2) == 0
    assert sla.decode_step(model, replace(SLA, itl_ms=15.0, load_scaling_down_sensitivity=90), LARGE, pair, 2) == 0


def test_prefill_engine_goes_only_if_the_queue_fits_what_the_prompt_leaves() -> None:
    model = prefill_model()
    model.learn(record(num_prefill_requests=1, prefill_tokens=4000, wall_time_ms=205.0))
    pair = [record(engine, queued_prefill_tokens=1000) for engine in (0, 1)]
    # Own time 205 ms; the doubled queue adds 100 ms against (500 - 205) * 0.8.
    assert sla.prefill_step(model, SLA, pair, 2, 0.0) == -1
    assert sla.prefill_step(model, replace(SLA, ttft_ms=320.0), pair, 2, 0.0) == 0
    assert sla.prefill_step(model, replace(SLA, ttft_ms=250.0), pair, 2, 0.0) == 1


def test_prefill_engine_serves_the_largest_batch_within_the_bound() -> None:
    # 400 tokens a prompt: 20 fit a pass of 8192, in 405 ms.
    ahead = Forecast(1.0, 1000.0, 100.0, 0.6)
    assert prefill_rps(prefill_model(), SLA, LARGE, ahead) == pytest.approx(20 / 0.405)
    # Within 100 ms it is 4 of them, in 85 ms.
    assert prefill_rps(prefill_model(), replace(SLA, ttft_ms=100.0), LARGE, ahead) == pytest.approx(4 / 0.085)


def test_prefill_of_a_prompt_longer_than_a_pass_is_one_at_a_time() -> None:
    ahead = Forecast(1.0, 10_000.0, 100.0, 0.0)
    assert prefill_rps(prefill_model(), SLA, LARGE, ahead) == pytest.approx(1 / (2 * 0.005 + 0.5))


def test_decode_engine_serves_the_largest_batch_within_the_bound() -> None:
    # Context 1050: a batch of b takes 4 + 1.15 b, so 13 of them keep 20 ms.
    ahead = Forecast(1.0, 1000.0, 100.0, 0.0)
    expected = 13 / (100 * (4.0 + 1.15 * 13) / 1000)
    assert decode_rps(decode_model(), SLA, LARGE, ahead) == pytest.approx(expected)
    two_ranks = replace(LARGE, attention_dp=2)
    assert decode_rps(decode_model(), SLA, two_ranks, ahead) == pytest.approx(2 * expected)


def test_decode_engine_that_cannot_keep_the_bound_still_has_a_rate() -> None:
    ahead = Forecast(1.0, 1000.0, 100.0, 0.0)
    most = 100 / (100 * (4.0 + 1.15 * 100) / 1000)
    assert decode_rps(decode_model(), replace(SLA, itl_ms=1.0), LARGE, ahead) == pytest.approx(most)


def test_agg_engine_computes_as_many_prompts_as_it_completes() -> None:
    # A batch of b holds 10 b prompt tokens and 1050 b KV tokens: 4 + 1.55 b ms, at most 10 of them in 20 ms.
    ahead = Forecast(1.0, 1000.0, 100.0, 0.0)
    assert agg_rps(agg_model(), SLA, LARGE, ahead) == pytest.approx(10 / (100 * 19.5 / 1000))
    # A prompt of 1000 tokens takes 4 + 50 + more: no batch keeps 50 ms, so the best of those that miss it.
    tight = agg_rps(agg_model(), replace(SLA, ttft_ms=50.0, itl_ms=1e9), LARGE, ahead)
    assert tight == pytest.approx(100 / (100 * (4.0 + 1.55 * 100) / 1000))


def test_nothing_is_said_of_requests_without_output() -> None:
    assert decode_rps(decode_model(), SLA, LARGE, Forecast(1.0, 1000.0, 0.0, 0.0)) is None


def test_batches_beyond_the_most_are_spread_evenly() -> None:
    assert batches(3) == [1, 2, 3]
    spread = batches(1024)
    assert (len(spread), spread[0], spread[-1]) == (MOST_BATCHES, 1, 1024)


def test_demand_repeats_lengths_while_nothing_completes() -> None:
    demand = Demand(ConstantPredictor, 10.0)
    demand.observe(Traffic(num_requests=20, num_completed=2, isl_tokens=300, osl_tokens=40))
    demand.observe(Traffic())
    ahead = demand.forecast(0.25)
    assert (ahead.requests_per_s, ahead.isl, ahead.osl, ahead.hit_rate) == (0.0, 150.0, 20.0, 0.25)
