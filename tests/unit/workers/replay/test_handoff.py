"""The compiled replay of disaggregated and routed fleets against the plain one and the peer's golden cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.golden import files
from tests.reference.plain_replay import replay as plain_replay
from tests.reference.random_cases import Backend, Mode, assert_agree, random_case, seeds
from tests.unit.workers.replay.golden_rows import expected_metrics, relative_tolerance
from tests.unit.workers.replay.test_plain_replay_golden import CASES
from tests.unit.workers.replay.test_plain_replay_routing import PROBES
from tests.unit.workers.replay.test_plain_replay_routing import batch_of as probe_batch
from workers.cases import read_case
from workers.errors import StuckError, UnsupportedError
from workers.replay import state
from workers.replay.disaggregated import replay_both
from workers.replay.fleet import Fleet, KvRouter, Pool
from workers.replay.loop import replay, replay_many
from workers.replay.metrics import report
from workers.replay.outcomes import Outcomes
from workers.timing.fixed import FixedTimes
from workers.traffic.requests import RequestBatch

BACKENDS: tuple[Backend, ...] = ("vllm", "trtllm", "sglang")
MODES: tuple[Mode, ...] = ("aggregated", "disaggregated")
ROUTERS = (
    KvRouter(),
    KvRouter(seed=5, prefill_load_scale=4.0),
    KvRouter(seed=3, temperature=0.7),
    KvRouter(overlap_score_credit=0.0),
)
DISAGGREGATED = [
    pytest.param(case, id=case["id"])
    for _, case in CASES
    if case["config"]["engine"]["mode"] == "disaggregated" and "error_contains" not in case["expected"]
]


def _outcomes(replayed: Any, fleet: Fleet, batch: RequestBatch) -> Outcomes | None:
    try:
        seen: Outcomes = replayed(fleet, batch)
    except StuckError:
        return None
    return seen


def _assert_both_agree(fleet: Fleet, batch: RequestBatch) -> None:
    ours, plain = _outcomes(replay, fleet, batch), _outcomes(plain_replay, fleet, batch)
    assert (ours is None) == (plain is None)
    if ours is not None and plain is not None:
        assert_agree(ours, plain)


@pytest.mark.parametrize("case", DISAGGREGATED)
def test_compiled_hand_over_of_a_golden_case_gives_the_peers_numbers(case: dict[str, Any]) -> None:
    reference = read_case(case, files.TRACES)

    (metrics,) = replay_many([(reference.fleet, reference.batch)], reference.sla)

    for name, value in expected_metrics(case).items():
        assert (metrics[name] or 0.0) == pytest.approx(value, rel=relative_tolerance(name)), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_hand_over_of_random_cases_agrees_with_the_plain_one(backend: Backend) -> None:
    for seed in seeds(0, 100):
        _assert_both_agree(*random_case(seed, backend, "disaggregated"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_routing_of_random_cases_agrees_with_the_plain_one(backend: Backend, mode: Mode) -> None:
    for seed in seeds(0, 60):
        fleet, batch = random_case(seed, backend, mode)
        _assert_both_agree(replace(fleet, router=ROUTERS[seed % len(ROUTERS)]), batch)


@pytest.mark.parametrize(
    ("second", "third_at", "credit", "joins"),
    [
        pytest.param((48, 1), 105.0, 1.1, True, id="not_before_the_pass_that_evicts_ends"),
        pytest.param((16, 100), 150.0, 0.2, False, id="as_soon_as_each_of_many_like_passes_ends"),
    ],
)
@pytest.mark.parametrize("replayed", [replay, plain_replay])
@pytest.mark.parametrize("backend", BACKENDS)
def test_router_hears_of_evictions(
    backend: Backend, replayed: Any, second: tuple[int, int], third_at: float, credit: float, joins: bool
) -> None:
    """The second request (prompt, output) evicts blocks of the first prompt, which the third repeats."""
    pool = Pool("agg", backend, 2, 1, 1, 8, 16, 8192, 256, FixedTimes(10.0, 1.0))
    number, prompts = np.arange(3), np.array([96, second[0], 96])
    batch = RequestBatch(
        arrival_ms=np.array([0.0, 100.0, third_at]), delay_ms=np.zeros(3), input_tokens=prompts,
        output_tokens=np.array([1, second[1], 1]), session=number, order=number, in_flight_cap=None,
        span_offset=np.arange(4), span_id=np.array([1, 2, 1]), span_tokens=prompts, output_span=10 + number,
    )  # fmt: skip
    routers = [KvRouter(seed=seed, overlap_score_credit=credit) for seed in range(8)]

    seen = [replayed(Fleet(agg=pool, router=router), batch).worker.tolist() for router in routers]

    together = [workers for workers in seen if workers[0] == workers[1]]
    assert together
    assert all((workers[2] == workers[0]) == joins for workers in together)


@pytest.mark.parametrize("backend", BACKENDS)
def test_report_of_a_disaggregated_fleet_is_that_of_its_outcomes(backend: Backend) -> None:
    for seed in range(700, 720):
        fleet, batch = random_case(seed, backend, "disaggregated")
        if (seen := _outcomes(replay, fleet, batch)) is None:
            continue
        (metrics,) = replay_many([(fleet, batch)])
        for name, value in report(seen, batch, fleet).items():
            if not name.startswith(("median", "p75", "p90", "p95", "p99")):
                assert metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("backend", ["vllm", "trtllm"])
def test_every_block_is_given_back_once_after_a_hand_over(backend: Backend) -> None:
    for seed in seeds(800, 30):
        fleet, batch = random_case(seed, backend, "disaggregated")
        try:
            sides = replay_both(fleet, batch, lambda: None)
        except StuckError:
            continue
        for side in sides:
            ranks = side.st["ranks"]
            unused = ranks[:, state.FREE_BLOCKS] + ranks[:, state.INACTIVE_BLOCKS]
            assert (unused == side.pool.num_blocks).all()
            assert (ranks[:, state.HELD_BLOCKS] == 0).all()
            assert (ranks[:, [state.NUM_WAITING, state.NUM_RUNNING]] == 0).all()


@pytest.mark.parametrize("name", PROBES)
def test_compiled_router_sends_requests_where_the_peer_does(name: str) -> None:
    probe = files.case("traffic-probes", name)
    pool = Pool("agg", "vllm", 2, 1, 1, 100_000, 64, 8192, 256, FixedTimes(100.0, 10.0))

    seen = replay(Fleet(agg=pool, router=KvRouter(**probe["config"]["router_config"])), probe_batch(probe))

    for request, relation, other in probe["relations"]:
        assert (seen.worker[request] == seen.worker[other]) == (relation == "same_worker"), (request, other)
    assert seen.end_of_replay_ms == probe["expected"]["duration_ms"]


def test_equal_costs_are_decided_by_the_seed_alone() -> None:
    pool = Pool("agg", "vllm", 8, 1, 1, 1000, 64, 8192, 256, FixedTimes(100.0, 10.0))
    count = 24
    arrival, tokens = np.arange(count) * 10_000.0, np.full(count, 100)
    number = np.arange(count)
    batch = RequestBatch(arrival, 0 * arrival, tokens, 0 * number + 4, number, number, None, None, None, None, None)

    first, again, other = (replay(Fleet(agg=pool, router=KvRouter(seed=seed)), batch).worker for seed in (1, 1, 2))

    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert len(set(first.tolist())) > 1


def test_pools_of_different_backends_are_refused() -> None:
    pool = Pool("prefill", "vllm", 1, 1, 1, 100, 64, 8192, 256, FixedTimes(100.0, 10.0))
    fleet, (_, batch) = (
        Fleet(prefill=pool, decode=replace(pool, role="decode", backend="sglang")),
        random_case(0, "vllm"),
    )

    with pytest.raises(UnsupportedError, match="same backend"):
        replay(fleet, batch)
