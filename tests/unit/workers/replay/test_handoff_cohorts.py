"""Closed loops of identical requests on prefill and decode pools, replayed by counters, beside the replays with queues."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from tests.reference.plain_replay import replay as plain_replay
from tests.reference.random_cases import assert_agree, assert_same_report
from tests.unit.workers.replay import test_cohorts
from tests.unit.workers.replay.test_kernel import closed_loop
from workers.errors import StuckError
from workers.replay import disaggregated, handoff_cohorts, passes
from workers.replay.disaggregated import drive_both, order_handoffs, pools_of, replay_part, sides_of
from workers.replay.fleet import Fleet, Transfer
from workers.replay.loop import replay, replay_many
from workers.replay.metrics import report
from workers.replay.reductions import hands_over_in_order
from workers.traffic.requests import RequestBatch


def random_case(seed: int) -> tuple[Fleet, RequestBatch]:
    """The pool of a random aggregated case for the prompts, another for the tokens; blocks are short in half of the cases."""
    rng = np.random.default_rng([seed, 77])
    fleet, batch = test_cohorts.random_case(seed, "vllm")
    other, _ = test_cohorts.random_case(seed + 10_000, "vllm")
    assert fleet.agg is not None
    assert other.agg is not None
    tokens = int(batch.input_tokens[0]) + int(batch.output_tokens[0])
    decode = replace(
        fleet.agg,
        role="decode",
        replicas=int(rng.integers(1, 4)),
        max_num_seqs=int(rng.choice([1, 2, 5, 256])),
        num_blocks=-(-tokens // fleet.agg.block_size) * int(rng.choice([2, 4, 40, 40])) + 1,
        step_times=other.agg.step_times,
    )
    transfer = Transfer(
        bytes_per_token=float(rng.choice([0.0, 1e6, 3e7])),
        bandwidth_gb_per_s=10.0,
        timing=("full_prompt", "destination_missing")[int(rng.integers(0, 2))],  # type: ignore[arg-type]
    )
    return Fleet(prefill=replace(fleet.agg, role="prefill"), decode=decode, transfer=transfer), batch


def finishes_by_counters(fleet: Fleet, batch: RequestBatch) -> bool:
    """Whether the counters alone bring a replay to its end."""
    sides = sides_of(fleet, pools_of(fleet), batch, None, in_order=True)
    order_handoffs(sides[0].st, sides[1].st)
    return drive_both(sides, True, lambda: None, handoff_cohorts.run) == passes.FINISHED


def test_hand_over_of_identical_requests_agrees_with_plain_replay() -> None:
    by_counters = 0
    for seed in range(300):
        fleet, batch = random_case(seed)
        assert fleet.prefill is not None
        assert fleet.decode is not None
        if not hands_over_in_order(fleet.prefill, fleet.decode, batch):
            continue
        try:
            ours = replay(fleet, batch)
        except StuckError:
            continue
        by_counters += finishes_by_counters(fleet, batch)
        assert_agree(ours, plain_replay(fleet, batch))
        with patch.object(disaggregated, "hands_over_in_order", lambda *_: False):
            assert_agree(ours, replay(fleet, batch))
    assert by_counters > 100


def test_hand_over_of_identical_requests_reports_as_with_queues() -> None:
    for seed in range(40):
        fleet, batch = random_case(seed)
        try:
            (ours,) = replay_many([(fleet, batch)])
        except StuckError:
            continue
        with patch.object(disaggregated, "hands_over_in_order", lambda *_: False):
            (expected,) = replay_many([(fleet, batch)])
        assert_same_report(ours, expected)


def test_equal_parts_of_a_fleet_report_as_the_whole_fleet() -> None:
    folded = 0
    for seed in range(400):
        fleet, batch = random_case(seed)
        assert fleet.prefill is not None
        assert fleet.decode is not None
        rng = np.random.default_rng(seed)
        parts = int(rng.integers(2, 5))
        prefill = replace(fleet.prefill, replicas=parts * int(rng.integers(1, 3)))
        fleet = replace(fleet, prefill=prefill, decode=replace(fleet.decode, replicas=parts))
        batch = repeated(batch, parts)
        try:
            (ours,) = replay_many([(fleet, batch)])
        except StuckError:
            continue
        folded += replay_part(fleet, batch, lambda: None)[2] > 1
        for key, value in report(replay(fleet, batch), batch, fleet).items():
            assert ours[key] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)), (seed, key)
    assert folded > 25


def repeated(batch: RequestBatch, times: int) -> RequestBatch:
    """A closed loop of as many times the requests, with as many times the cap."""
    num = times * batch.num_requests
    assert batch.in_flight_cap is not None
    return closed_loop(
        num, times * batch.in_flight_cap, prompt=int(batch.input_tokens[0]), output=int(batch.output_tokens[0])
    )


def test_engine_short_of_blocks_is_replayed_with_queues() -> None:
    fleet, _ = random_case(0)
    assert fleet.prefill is not None
    pool = replace(
        fleet.prefill,
        num_blocks=1000,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        replicas=1,
        chunked_prefill=True,
        context_length=None,
    )
    roomy, short = pool, replace(pool, role="decode", num_blocks=30)
    fleet, batch = replace(fleet, prefill=roomy, decode=short), closed_loop(40, 8, prompt=30, output=40)

    assert hands_over_in_order(roomy, short, batch)
    assert not finishes_by_counters(fleet, batch)
    assert_agree(replay(fleet, batch), plain_replay(fleet, batch))
