"""The compiled replay with a planner in the loop beside the plain one."""

from dataclasses import astuple, replace

import numpy as np
import pytest

from tests.reference.elastic import PlainElastic
from tests.reference.elastic import replay_elastic as plain_elastic
from tests.reference.random_cases import Backend, Mode, assert_agree, random_case, seeds
from tests.reference.random_scaler import RandomScaler
from workers.errors import StuckError
from workers.planner.observation import Observation
from workers.replay.elastic import replay_elastic
from workers.replay.elastic_outcome import ElasticOutcome
from workers.replay.fleet import Fleet, KvRouter
from workers.traffic.requests import RequestBatch

BACKENDS: tuple[Backend, ...] = ("vllm", "trtllm", "sglang")


def both(fleet: Fleet, batch: RequestBatch, seed: int) -> tuple[PlainElastic, ElasticOutcome, RandomScaler] | None:
    """(plain, compiled, the scaler of the compiled one); None when the modelled engine is stuck, for both alike."""
    scaler = RandomScaler(seed)
    try:
        plain = plain_elastic(fleet, batch, RandomScaler(seed))
    except StuckError:
        with pytest.raises(StuckError):
            replay_elastic(fleet, batch, scaler)
        return None
    return plain, replay_elastic(fleet, batch, scaler), scaler


def assert_same_observations(ours: list[Observation], plain: list[Observation]) -> None:
    """Every number of every tick equal, durations and rates to 1e-9."""
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert a.now_ms == b.now_ms
        assert astuple(a.traffic) == pytest.approx(astuple(b.traffic), rel=1e-9)
        for role, view in b.roles.items():
            assert (a.roles[role].ready, a.roles[role].expected) == (view.ready, view.expected), (a.now_ms, role)
            assert len(a.roles[role].records) == len(view.records), (a.now_ms, role)
            for record, wanted in zip(a.roles[role].records, view.records, strict=True):
                assert astuple(record) == pytest.approx(astuple(wanted), rel=1e-9, abs=1e-9), (a.now_ms, role)


def assert_same_course(fleet: Fleet, batch: RequestBatch, seed: int) -> None:
    found = both(fleet, batch, seed)
    if found is None:
        return
    plain, ours, scaler = found
    assert_same_observations(scaler.seen, plain.observations)
    assert [astuple(event) for event in ours.events] == plain.events
    lives = [(role, *astuple(life)) for role, lives in plain.lives.items() for life in lives]
    for life, wanted in zip(ours.lives, lives, strict=True):
        assert astuple(life)[:2] == wanted[:2]
        known = [(a, b) for a, b in zip(astuple(life)[2:], wanted[2:], strict=True) if (a, b) != (None, None)]
        assert [a for a, _ in known] == pytest.approx([b for _, b in known], rel=1e-9), (life, wanted)
    assert_agree(ours.outcomes(batch), plain.outcomes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_elastic_random_aggregated_case_agrees_with_plain_replay(backend: Backend) -> None:
    for seed in seeds(0, 80):
        fleet, batch = random_case(seed, backend)
        assert_same_course(fleet, batch, seed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_elastic_random_disaggregated_case_agrees_with_plain_replay(backend: Backend) -> None:
    for seed in seeds(0, 60):
        fleet, batch = random_case(seed, backend, "disaggregated")
        assert_same_course(fleet, batch, seed)


@pytest.mark.parametrize(
    ("backend", "mode"),
    [(backend, "aggregated") for backend in BACKENDS] + [("vllm", "disaggregated"), ("trtllm", "disaggregated")],
)
def test_elastic_random_routed_case_agrees_with_plain_replay(backend: Backend, mode: Mode) -> None:
    for seed in seeds(100, 20):
        fleet, batch = random_case(seed, backend, mode)
        temperature = (0.0, 0.0, 0.5)[seed % 3]
        assert_same_course(replace(fleet, router=KvRouter(temperature=temperature, seed=seed)), batch, seed)


def test_elastic_random_case_cut_by_a_time_limit_agrees_with_plain_replay() -> None:
    for seed in range(200, 230):
        fleet, batch = random_case(seed, "vllm")
        batch = replace(batch, stop_after_ms=60.0)
        found = both(fleet, batch, seed)
        if found is not None:
            plain, ours, scaler = found
            assert_same_observations(scaler.seen, plain.observations)
            # What a pass computes that the limit cuts off is counted by one of the two only.
            computed = ours.outcomes(batch).committed_prefill_tokens
            assert_agree(ours.outcomes(batch), replace(plain.outcomes, committed_prefill_tokens=computed))


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_elastic_random_case_conserves_requests_tokens_and_engine_time(mode: Mode) -> None:
    for seed in range(300, 330):
        fleet, batch = random_case(seed, "vllm", mode)
        try:
            ours = replay_elastic(fleet, batch, scaler := RandomScaler(seed))
        except StuckError:
            continue
        outcomes = ours.outcomes(batch)
        prefill_engine = outcomes.prefill_worker // (fleet.prefill.attention_dp if fleet.prefill else 1)
        seen = [observation.traffic for observation in scaler.seen]
        assert sum(traffic.num_requests for traffic in seen) <= batch.num_requests
        for life in ours.lives:
            workers = prefill_engine if life.role == "prefill" else outcomes.worker
            mine = workers == life.engine
            assert (outcomes.arrival_ms[mine] <= (life.drained_ms or np.inf)).all() or life.role == "decode"
            if life.removed_ms is not None and life.role != "prefill":
                assert (outcomes.end_ms[mine] <= life.removed_ms).all()
            if life.ready_ms is None:
                assert not mine.any()
        report = ours.report()
        assert report["num_requests"] == batch.num_requests
        assert report["planner_total_ticks"] == ours.num_ticks == len(seen)
        for role in ours.gpu_seconds():
            timeline = ours.gpu_timeline(role)
            spans = np.diff(np.append(np.minimum(timeline.instant_ms, ours.end_ms), ours.end_ms))
            assert (timeline.gpus * spans).sum() / 1000.0 == pytest.approx(ours.gpu_seconds()[role])
