"""What the planner makes of ticks: cadence, roles, bounds, and both loops together."""

import math
from dataclasses import replace

import pytest

from app.schemas.presets import LOAD_PREDICTORS
from tests.unit.workers.planner.looks import FACTS, Lines, agg_planner, evenly, look, record, view
from workers.planner.observation import Traffic
from workers.planner.planner import Planner
from workers.planner.settings import PlannerSettings

BUSY = {"decode_kv_tokens": 10897, "queued_prefill_tokens": 22784}
THROUGHPUT = {
    "optimization_target": "sla",
    "enable_throughput_scaling": True,
    "enable_load_scaling": False,
    "predictor": LOAD_PREDICTORS["constant_last"],
    "max_gpu_budget": 64,
}


def test_planner_adds_one_engine_a_tick_up_to_the_budget() -> None:
    planner = agg_planner(max_gpu_budget=2)
    assert planner.interval_ms == 5000.0
    assert planner.decide(look(5, agg=view(*evenly(1, **BUSY)))) == {"agg": 2}
    assert planner.decide(look(10, agg=view(*evenly(2, **BUSY)))) == {}


def test_planner_counts_the_engines_own_width() -> None:
    planner = agg_planner(replace(FACTS, gpus=2), max_gpu_budget=5)
    assert planner.decide(look(5, agg=view(*evenly(2, **BUSY)))) == {}


def test_planner_waits_while_an_engine_starts() -> None:
    planner = agg_planner(startup_s=7.0)
    assert planner.startup_ms == 7000.0
    assert planner.decide(look(10, agg=view(*evenly(1, **BUSY), expected=2))) == {}
    assert planner.decide(look(15, agg=view(*evenly(2, **BUSY)))) == {"agg": 3}


def test_planner_waits_while_a_ready_engine_has_not_reported() -> None:
    assert agg_planner().decide(look(5, agg=view(*evenly(1, **BUSY), ready=2))) == {}
    assert agg_planner().decide(look(5, agg=view(ready=2))) == {}


def test_planner_scales_down_no_further_than_the_fewest_engines() -> None:
    planner = agg_planner(min_endpoint=2)
    assert planner.decide(look(5, agg=view(*evenly(3)))) == {"agg": 2}
    assert planner.decide(look(10, agg=view(*evenly(2)))) == {}


def test_planner_lifts_a_fleet_below_the_fewest_engines() -> None:
    assert agg_planner(min_endpoint=3).decide(look(5, agg=view(*evenly(1, decode_kv_tokens=9000)))) == {"agg": 3}


def test_planner_of_two_roles_exchanges_an_engine_at_the_ceiling() -> None:
    facts = {"prefill": replace(FACTS, context_length=2048), "decode": replace(FACTS, max_kv_tokens=6400)}
    planner = Planner(PlannerSettings(), facts, dict.fromkeys(facts, Lines()))  # type: ignore[arg-type]
    queue, idle = evenly(5, queued_prefill_tokens=4096), evenly(3, decode_kv_tokens=100)
    assert planner.decide(look(25, prefill=view(*queue), decode=view(*idle))) == {"prefill": 6, "decode": 2}


def test_planner_of_two_roles_waits_for_both() -> None:
    facts = {"prefill": replace(FACTS, context_length=2048), "decode": FACTS}
    planner = Planner(PlannerSettings(), facts, dict.fromkeys(facts, Lines()))  # type: ignore[arg-type]
    queue = view(*evenly(2, queued_prefill_tokens=4096))
    assert planner.decide(look(5, prefill=queue, decode=view(*evenly(1), expected=2))) == {}
    assert planner.decide(look(10, prefill=queue, decode=view(ready=2))) == {"prefill": 3}


def test_planner_under_another_target_than_sla_scales_by_load_alone() -> None:
    settings = PlannerSettings(enable_throughput_scaling=True, enable_load_scaling=False)
    assert (settings.scales_by_throughput, settings.scales_by_load, settings.interval_s) == (False, True, 5)


@pytest.mark.parametrize(
    ("throughput", "load", "interval_s"), [((True, 180), (True, 5), 5), ((True, 180), (False, 7), 180)]
)
def test_planner_ticks_at_the_common_divisor_of_its_loops(
    throughput: tuple[bool, int], load: tuple[bool, int], interval_s: int
) -> None:
    settings = PlannerSettings(
        optimization_target="sla",
        enable_throughput_scaling=throughput[0],
        throughput_adjustment_interval_seconds=throughput[1],
        enable_load_scaling=load[0],
        load_adjustment_interval_seconds=load[1],
    )
    assert settings.interval_s == interval_s


def test_planner_provides_engines_for_the_forecast() -> None:
    planner = agg_planner(**THROUGHPUT)
    traffic = Traffic(num_requests=1800, num_completed=10, isl_tokens=2560, osl_tokens=500)
    # 10 requests/s of 256 + 50 tokens; an engine holds 45 of them, a pass of which takes some 35 ms: 25 requests/s.
    assert planner.decide(look(180, traffic, agg=view(*evenly(1)))) == {}
    assert planner.decide(look(360, replace(traffic, num_requests=9000), agg=view(*evenly(1)))) == {"agg": 2}
    assert planner.decide(look(540, replace(traffic, num_requests=0), agg=view(*evenly(2)))) == {"agg": 1}


def test_planner_changes_at_most_so_many_engines_at_once() -> None:
    flood = Traffic(num_requests=10**6, num_completed=1, isl_tokens=256, osl_tokens=50)
    planner = agg_planner(**THROUGHPUT, max_throughput_scaling_replicas=3)
    assert planner.decide(look(180, flood, agg=view(*evenly(2)))) == {"agg": 5}


def test_planner_without_a_completion_yet_leaves_the_fleet_alone() -> None:
    assert agg_planner(**THROUGHPUT).decide(look(180, Traffic(num_requests=9), agg=view(*evenly(2)))) == {}


def test_planner_of_both_loops_takes_the_forecast_as_lower_bound() -> None:
    flood = Traffic(num_requests=10**6, num_completed=1, isl_tokens=256, osl_tokens=50)
    hybrid = THROUGHPUT | {"enable_load_scaling": True, "ttft_ms": 10**6, "itl_ms": 10**6}
    planner = agg_planner(**hybrid, max_throughput_scaling_replicas=3)
    assert planner.decide(look(5, agg=view(*evenly(2)))) == {"agg": 1}
    assert planner.decide(look(180, flood, agg=view(*evenly(2)))) == {"agg": 5}
    assert planner.decide(look(185, agg=view(*evenly(5)))) == {}


def test_planner_of_two_roles_moves_neither_without_both_rates() -> None:
    settings = PlannerSettings(**THROUGHPUT)
    facts = {"prefill": FACTS, "decode": FACTS}
    planner = Planner(settings, facts, dict.fromkeys(facts, Lines()))  # type: ignore[arg-type]
    no_output = Traffic(num_requests=10**6, num_completed=10, isl_tokens=2560, osl_tokens=0)
    assert planner.decide(look(180, no_output, prefill=view(*evenly(1)), decode=view(*evenly(1)))) == {}


def test_planner_under_sla_grows_when_every_rank_will_miss_the_bound() -> None:
    settings = {"optimization_target": "sla", "ttft_ms": 200.0, "itl_ms": 50.0}
    one_idle = [record(0, queued_prefill_tokens=10**5), record(1)]
    assert agg_planner(**settings).decide(look(5, agg=view(*evenly(2, queued_prefill_tokens=10**5)))) == {"agg": 3}
    assert agg_planner(**settings).decide(look(5, agg=view(*one_idle))) == {}


def test_planner_under_sla_shrinks_only_if_those_left_keep_their_bounds() -> None:
    light, heavy = evenly(2, decode_kv_tokens=1000), evenly(2, decode_kv_tokens=6500)
    settings = {"optimization_target": "sla", "ttft_ms": 2000.0, "itl_ms": 50.0}
    assert agg_planner(**settings).decide(look(5, agg=view(*light))) == {"agg": 1}
    assert agg_planner(**settings).decide(look(5, agg=view(*heavy))) == {}, "twice 6500 tokens are more than 12800"


def test_planner_settings_from_a_candidate_take_predictor_fields_apart() -> None:
    settings = PlannerSettings.of({"load_predictor": "kalman", "kalman_r": 5.0, "max_gpu_budget": 16, "ttft_ms": None})
    assert (settings.predictor.load_predictor, settings.predictor.kalman_r) == ("kalman", 5.0)
    assert (settings.max_gpu_budget, settings.ttft_ms) == (16, 500.0)
    assert math.isclose(settings.sensitivity, 0.8)
    with pytest.raises(TypeError, match="no_such_field"):
        PlannerSettings.of({"no_such_field": 1})
