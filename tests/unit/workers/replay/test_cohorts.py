"""Closed loops of identical requests, replayed by counters, beside the plain replay that serves them one by one."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from tests.reference.plain_replay import replay as plain_replay
from tests.reference.random_cases import Backend, assert_agree, assert_same_report
from tests.reference.step_times import ConstantTimes, GrowingTimes
from tests.unit.workers.replay.test_kernel import closed_loop
from workers.errors import StuckError
from workers.replay import loop
from workers.replay.fleet import Fleet, Pool, StepTimes
from workers.replay.loop import replay, replay_many
from workers.replay.outcomes import Outcomes
from workers.replay.reductions import serves_in_order
from workers.traffic.requests import RequestBatch

BLOCKWISE: tuple[Backend, ...] = ("vllm", "trtllm")


def random_case(seed: int, backend: Backend) -> tuple[Fleet, RequestBatch]:
    """Identical requests in a closed loop; blocks are short in one of three cases."""
    rng = np.random.default_rng([seed, len(backend)])
    prompt, output = int(rng.integers(1, 90)), int(rng.choice([1, 2, rng.integers(3, 70)]))
    cap, num = int(rng.integers(1, 14)), int(rng.integers(1, 50))
    block_size = int(rng.choice([2, 4, 16]))
    blocks_each = -(-(prompt + output) // block_size)
    times: StepTimes = ConstantTimes(7.0, 2.0) if rng.random() < 0.3 else GrowingTimes()
    pool = Pool(
        role="agg",
        backend=backend,
        replicas=int(rng.integers(1, 4)),
        attention_dp=1,
        gpus_per_replica=1,
        num_blocks=blocks_each * int(rng.choice([2, 40, 40])) + 1,
        block_size=block_size,
        max_num_batched_tokens=int(rng.choice([16, 33, 64, 8192])),
        max_num_seqs=int(rng.choice([1, 2, 5, 256])),
        step_times=times,
        prefix_caching=bool(rng.random() < 0.5),
        chunked_prefill=bool(rng.random() < 0.7),
        context_length=int(prompt + rng.integers(1, 80)) if rng.random() < 0.2 else None,
    )
    return Fleet(agg=pool), closed_loop(num, cap, prompt, output)


def with_queues(fleet: Fleet, batch: RequestBatch) -> Outcomes:
    """The replay by queues and blocks, whatever the requests are like."""
    with patch.object(loop, "serves_in_order", lambda *_: False):
        return replay(fleet, batch)


@pytest.mark.parametrize("backend", BLOCKWISE)
def test_replay_identical_requests_agrees_with_plain_replay(backend: Backend) -> None:
    in_order = 0
    for seed in range(300):
        fleet, batch = random_case(seed, backend)
        assert fleet.agg is not None
        in_order += serves_in_order(fleet.agg, batch)
        try:
            plain = plain_replay(fleet, batch)
        except StuckError:
            with pytest.raises(StuckError):
                replay(fleet, batch)
            continue
        ours = replay(fleet, batch)
        assert_agree(ours, plain)
        assert_agree(ours, with_queues(fleet, batch))
    assert in_order > 150


def test_replay_identical_requests_short_of_blocks_preempts_as_with_queues() -> None:
    """A run that has to be given up half way, as its engine runs out of blocks."""
    fleet, _ = random_case(0, "vllm")
    assert fleet.agg is not None
    pool = replace(
        fleet.agg,
        num_blocks=30,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        replicas=1,
        context_length=None,
    )
    batch = closed_loop(40, 8, prompt=30, output=40)
    ours = replay(Fleet(agg=pool), batch)
    assert serves_in_order(pool, batch)
    assert (ours.admissions > 1).any()
    assert_agree(ours, plain_replay(Fleet(agg=pool), batch))


def test_replay_many_identical_requests_reports_as_with_queues() -> None:
    for seed in range(60):
        fleet, batch = random_case(seed, "vllm")
        assert fleet.agg is not None
        if not serves_in_order(fleet.agg, batch):
            continue
        (ours,) = replay_many([(fleet, batch)])
        with patch.object(loop, "serves_in_order", lambda *_: False):
            (expected,) = replay_many([(fleet, batch)])
        assert_same_report(ours, expected)
