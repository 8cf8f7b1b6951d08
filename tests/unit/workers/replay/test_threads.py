"""The same case gives the same bytes, whoever else is replayed beside it, before it, or on how many threads."""

import contextlib
import random
from dataclasses import fields, replace

import numpy as np
import pytest

from tests.golden import files
from tests.reference.random_cases import Backend, random_case, seeds
from tests.reference.step_times import GrowingTimes
from workers.cases import read_case
from workers.errors import StuckError, UnsupportedError
from workers.replay import apart
from workers.replay.fleet import Fleet
from workers.replay.grouping import never_meet
from workers.replay.loop import replay, replay_many
from workers.replay.outcomes import Outcomes
from workers.replay.step_lookup import HASH_MASK
from workers.traffic.requests import RequestBatch


def jobs() -> list[tuple[Fleet, RequestBatch]]:
    """Cases of the peer with measured step times, which replays add to their tables, as far as they can be replayed."""
    chosen = [case for case in files.cases("oracle-public") if "error_contains" not in case["expected"]]
    found = []
    for case in chosen[::8]:
        with contextlib.suppress(UnsupportedError):
            ready = read_case(case, files.TRACES)
            found.append((ready.fleet, ready.batch))
    return found


def test_reports_on_two_threads_in_any_order_are_those_on_one() -> None:
    cases = jobs()
    expected = replay_many(cases)
    order = list(range(len(cases)))
    random.Random(1).shuffle(order)

    shuffled = replay_many([cases[place] for place in order], threads=2)

    assert len(cases) > 8
    assert [shuffled[order.index(place)] for place in range(len(cases))] == expected


def test_replicas_that_never_meet_on_three_threads_give_the_bytes_of_one() -> None:
    compared = 0
    backends: tuple[Backend, ...] = ("vllm", "trtllm", "sglang")
    for seed in seeds(0, 150):
        fleet, batch = random_case(seed, backends[seed % 3])
        if not never_meet(batch, None):
            continue
        assert fleet.agg is not None
        # Chances that need random numbers, which every engine draws for itself.
        chances = (0.7,) * len(fleet.agg.acceptance)
        fleet = Fleet(agg=replace(fleet.agg, replicas=2 + seed % 5, acceptance=chances))
        try:
            expected = replay(fleet, batch)
        except StuckError:
            continue
        compared += 1
        assert_equal_bytes(replay(fleet, batch, threads=3), expected)
        assert replay_many([(fleet, batch)], threads=3) == replay_many([(fleet, batch)])
    assert compared > 30


def test_threads_that_learn_step_times_side_by_side_give_the_bytes_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    num = 2000
    batch = RequestBatch(
        arrival_ms=np.sort(rng.uniform(0.0, 4000.0, num)),
        delay_ms=np.zeros(num),
        input_tokens=rng.integers(1, 3000, num),
        output_tokens=rng.integers(1, 60, num),
        session=np.arange(num),
        order=np.arange(num),
        in_flight_cap=None,
    )

    def fleet() -> Fleet:
        pool, _ = random_case(0, "vllm", features=())
        assert pool.agg is not None
        times = GrowingTimes()  # unknown to any table so far
        return Fleet(
            agg=replace(
                pool.agg,
                replicas=6,
                num_blocks=4000,
                block_size=16,
                max_num_seqs=64,
                max_num_batched_tokens=8192,
                step_times=times,
            )
        )

    expected, sizes, advance = replay(fleet(), batch), set[int](), apart._View.advance

    def look_and_advance(view: apart._View) -> int:
        # A table that grew while another view asked must have reached this one too.
        assert len(view.st["memo"]) == view.st["timing"][HASH_MASK] + 1
        sizes.add(len(view.st["memo"]))
        return advance(view)

    monkeypatch.setattr(apart._View, "advance", look_and_advance)
    assert_equal_bytes(replay(fleet(), batch, threads=3), expected)
    assert len(sizes) > 1


def assert_equal_bytes(ours: Outcomes, expected: Outcomes) -> None:
    """Every field the same, bit for bit."""
    for field in fields(Outcomes):
        np.testing.assert_array_equal(getattr(ours, field.name), getattr(expected, field.name), err_msg=field.name)
