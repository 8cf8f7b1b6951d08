"""The compiled replay beside the plain one, and its report beside the definition of the metrics."""

import dataclasses
import math

import numpy as np
import pytest

from tests.golden import files
from tests.reference.plain_replay import replay as plain_replay
from tests.reference.random_cases import Backend, assert_agree, random_case, seeds
from workers.cases import read_case
from workers.errors import StoppedError, StuckError
from workers.replay import metrics
from workers.replay.fleet import Fleet, Pool
from workers.replay.loop import replay, replay_many
from workers.replay.outcomes import COMPLETED, Outcomes
from workers.replay.reductions import folded
from workers.timing.fixed import FixedTimes
from workers.traffic.requests import RequestBatch

BLOCKWISE: tuple[Backend, ...] = ("vllm", "trtllm")
BACKENDS: tuple[Backend, ...] = (*BLOCKWISE, "sglang")
ONCE_DIFFERENT = (141, 170, 1361)
"""Seeds of TensorRT-LLM requests that ask for more tokens than the pool holds and are served one by one."""


def outcome_of(run: object, fleet: Fleet, batch: RequestBatch) -> Outcomes | None:
    """What `run` says, None when the engine is stuck."""
    try:
        return run(fleet, batch)  # type: ignore[operator, no-any-return]
    except StuckError:
        return None


def closed_loop(num: int, cap: int, prompt: int = 100, output: int = 20) -> RequestBatch:
    """`num` identical unshared requests, `cap` at a time."""
    return RequestBatch(
        arrival_ms=np.zeros(num),
        delay_ms=np.zeros(num),
        input_tokens=np.full(num, prompt),
        output_tokens=np.full(num, output),
        session=np.arange(num),
        order=np.arange(num),
        in_flight_cap=cap,
    )


def fleet_of(**changes: object) -> Fleet:
    """A small vLLM fleet with fixed times."""
    settings: dict[str, object] = {
        "role": "agg", "backend": "vllm", "replicas": 1, "attention_dp": 1, "gpus_per_replica": 1, "num_blocks": 200,
        "block_size": 16, "max_num_batched_tokens": 256, "max_num_seqs": 8, "step_times": FixedTimes(10.0, 1.0),
    }  # fmt: skip
    return Fleet(agg=Pool(**(settings | changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BLOCKWISE)
def test_replay_random_case_agrees_with_plain_replay(backend: Backend) -> None:
    for seed in [*seeds(0, 120), *ONCE_DIFFERENT]:
        fleet, batch = random_case(seed, backend)
        plain, ours = outcome_of(plain_replay, fleet, batch), outcome_of(replay, fleet, batch)
        assert (plain is None) == (ours is None), seed
        if plain is not None and ours is not None:
            assert_agree(ours, plain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_replay_with_decode_passes_that_take_no_time_agrees_with_plain_replay(backend: Backend) -> None:
    """Such a pass ends at once, and what it releases comes after the pass that follows has begun."""
    for seed in seeds(900, 30):
        fleet, batch = random_case(seed, backend, features=("attention_dp", "no_chunking", "interval"))
        assert fleet.agg is not None
        fleet = Fleet(agg=dataclasses.replace(fleet.agg, step_times=FixedTimes(10.0, 0.0)))
        plain, ours = outcome_of(plain_replay, fleet, batch), outcome_of(replay, fleet, batch)
        assert (plain is None) == (ours is None), seed
        if plain is not None and ours is not None:
            assert_agree(ours, plain)


@pytest.mark.parametrize("seed", range(200, 230))
def test_replay_random_case_conserves_tokens_and_order(seed: int) -> None:
    fleet, batch = random_case(seed, "vllm")
    ours = outcome_of(replay, fleet, batch)
    if ours is None:
        return
    done = (ours.status == COMPLETED) & (ours.generated_tokens > 0)
    assert (ours.generated_tokens[done] <= batch.output_tokens[done]).all()
    assert (ours.arrival_ms[done] <= ours.first_admit_ms[done]).all()
    assert (ours.first_admit_ms[done] < ours.first_token_ms[done]).all()
    assert (ours.first_token_ms[done] <= ours.last_token_ms[done]).all()
    assert ours.gap_count.sum() == (ours.generated_tokens[done] - 1).sum()


@pytest.mark.parametrize("backend", BLOCKWISE)
def test_replay_many_random_cases_reports_what_metrics_define(backend: Backend) -> None:
    for seed in range(40):
        fleet, batch = random_case(seed, backend)
        outcomes = outcome_of(replay, fleet, batch)
        if outcomes is None:
            continue
        sla = metrics.Sla(ttft_ms=60.0, itl_ms=9.0)
        expected = metrics.report(outcomes, batch, fleet, sla)
        (fast,) = replay_many([(fleet, batch)], sla)
        assert fast.keys() == expected.keys()
        for key, value in expected.items():
            ours = fast[key]
            same = (
                ours is value
                if value is None or ours is None
                else math.isclose(ours, value, rel_tol=1e-9, abs_tol=1e-9)
            )
            assert same, (seed, key, ours, value)


@pytest.mark.parametrize(("replicas", "attention_dp", "num", "cap"), [(2, 1, 40, 8), (2, 2, 48, 16), (4, 1, 40, 40)])
def test_replay_many_folded_replicas_report_like_all_of_them(
    replicas: int, attention_dp: int, num: int, cap: int
) -> None:
    fleet = fleet_of(replicas=replicas, attention_dp=attention_dp, num_blocks=40)
    batch = closed_loop(num, cap)
    assert fleet.agg is not None
    assert folded(fleet.agg, batch)[2] == replicas * attention_dp
    expected = metrics.report(replay(fleet, batch), batch, fleet)
    (fast,) = replay_many([(fleet, batch)])
    for key, value in expected.items():
        assert fast[key] == pytest.approx(value, rel=1e-9, abs=1e-9), key


def test_folded_cap_that_does_not_divide_is_left_alone() -> None:
    pool = fleet_of(replicas=2).agg
    assert pool is not None
    assert folded(pool, closed_loop(40, 7))[2] == 1


def test_replay_same_jobs_in_any_order_give_same_reports() -> None:
    jobs = [random_case(seed, "vllm") for seed in range(12)]
    jobs = [job for job in jobs if outcome_of(replay, *job) is not None]
    assert replay_many(jobs) == replay_many(jobs[::-1])[::-1]


def test_replay_asked_to_stop_stops() -> None:
    with pytest.raises(StoppedError):
        replay(fleet_of(), closed_loop(20_000, 8, output=40), should_stop=lambda: True)


def test_replay_reference_trial_matches_the_peer() -> None:
    case = files.cases("reference-trial")[0]
    ready = read_case(case)
    (report,) = replay_many([(ready.fleet, ready.batch)])
    for key in ("duration_ms", "mean_ttft_ms", "p99_tpot_ms", "mean_itl_ms", "max_e2e_latency_ms", "gpu_hours"):
        assert report[key] == pytest.approx(case["expected"][key], rel=1e-9), key
