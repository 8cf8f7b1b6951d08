"""The peer's odd corners: random small cases with tight pools and limits, and replays in which a planner scales."""

from typing import Any

import pytest

from benchmarks.fidelity import check_case
from benchmarks.replay_calls import read_call
from tests.golden.files import cases
from workers.replay.elastic import replay_elastic
from workers.replay.loop import replay
from workers.scaling import new_planner


@pytest.mark.parametrize("name", ["oracle-corners", "planner-calls"])
def test_every_corner_case_is_within_tolerance(name: str) -> None:
    verdicts = [check_case(case, None, {}, replay) for case in cases(name)]

    assert [(verdict.case_id, verdict.problem, verdict.worst) for verdict in verdicts if verdict.has_failed] == []


@pytest.mark.parametrize("call", [pytest.param(call, id=call["id"]) for call in cases("planner-calls")])
def test_planner_scales_when_the_peers_does(call: dict[str, Any]) -> None:
    ready = read_call(call)
    assert ready.planner is not None

    events = replay_elastic(ready.fleet, ready.batch, new_planner(ready.planner, ready.fleet)).events

    seen = [[event.instant_ms / 1000.0, event.role, event.before, event.after] for event in events]
    assert seen == call["expected"]["scaling"]
