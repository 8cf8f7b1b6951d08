"""The same case gives the same bytes, whoever else is replayed beside it, before it, or on how many threads."""

import contextlib
import random

from tests.golden import files
from workers.cases import read_case
from workers.errors import UnsupportedError
from workers.replay.fleet import Fleet
from workers.replay.loop import replay_many
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
