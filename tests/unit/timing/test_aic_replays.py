"""Whole replays with measured step times against the peer: DP, three backends, prefix sharing, MTP."""

from typing import Any

import pytest

from tests.golden.files import case
from tests.reference.plain_replay import replay
from workers.cases import read_case
from workers.replay.metrics import report

CASES = [case("engine-probes", name) for name in ("A04", "A05", "A06", "A07", "A08", "A09")]


@pytest.mark.parametrize("probe", CASES, ids=[probe["id"] for probe in CASES])
def test_plain_replay_with_measured_times_equals_the_peer(probe: dict[str, Any]) -> None:
    read = read_case(probe)
    metrics = report(replay(read.fleet, read.batch), read.batch, read.fleet)
    expected = {name: value for name, value in probe["expected"].items() if name in metrics}
    assert len(expected) >= 20
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-12)
