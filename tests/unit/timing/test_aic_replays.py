"""Whole replays with measured step times against the peer: DP, three backends, prefix sharing, MTP."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.reference.plain_replay import replay
from workers.cases import read_case
from workers.replay.metrics import report

CASES = json.loads((Path(__file__).parents[2] / "golden" / "aic_replays.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_plain_replay_with_measured_times_equals_the_peer(case: dict[str, Any]) -> None:
    read = read_case(case)
    metrics = report(replay(read.fleet, read.batch), read.batch, read.fleet)
    expected = {name: value for name, value in case["expected"].items() if name in metrics}
    assert len(expected) >= 20
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-12)
