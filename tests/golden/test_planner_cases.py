"""The planner cases of the reference format: scale events, engine time and latencies equal the peer's."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparison import compare_metrics
from tests.golden.files import cases
from workers.__main__ import main

CASES = {case["id"]: case for case in cases("oracle-router-public") if "planner" in case["tags"]}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_planner_case_by_command_equals_the_peer(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case.json").write_text(json.dumps(case))
    assert main([str(tmp_path / "case.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("scaling_events") == case["scaling_events"]
    assert 0.0 <= found.pop("step_time_residual") < 1e-3
    assert case["expected"].keys() <= found.keys()
    assert [each for each in compare_metrics(found, case["expected"], False, ()) if each.is_out] == []


def test_planner_cases_are_all_here() -> None:
    assert len(CASES) == 3
