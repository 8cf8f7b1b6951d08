"""The command that replays a file of cases."""

import copy
import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.fidelity import main
from tests.golden.files import case

PROBE = "T01-constant-rate"


def run(folder: Path, cases: Any, *options: str) -> tuple[int, list[dict[str, Any]]]:
    (folder / "cases.json").write_bytes(orjson.dumps(cases))
    out = folder / "result.json"
    code = main([str(folder / "cases.json"), "--engine", "reference", "--out", str(out), *options])
    return code, orjson.loads(out.read_bytes())


def test_command_within_tolerance_exits_0_and_writes_metrics(tmp_path: Path) -> None:
    code, results = run(tmp_path, [case("traffic-probes", PROBE)])
    assert code == 0
    assert [sorted(result) for result in results] == [["cpu_ms", "id", "metrics"]]
    assert results[0]["id"] == PROBE
    assert results[0]["metrics"]["num_requests"] == 5
    assert results[0]["cpu_ms"] > 0


def test_command_out_of_tolerance_exits_1_and_names_the_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = copy.deepcopy(case("traffic-probes", PROBE))
    wrong["expected"]["mean_ttft_ms"] *= 1 + 1e-6
    assert run(tmp_path, {"cases": [wrong]})[0] == 1
    assert f"FAIL {PROBE}" in capsys.readouterr().out


def test_command_row_out_of_tolerance_exits_1(tmp_path: Path) -> None:
    wrong = copy.deepcopy(case("traffic-probes", PROBE))
    wrong["requests"]["rows"][1][5] += 0.001
    assert run(tmp_path, [wrong])[0] == 1


def test_command_rows_file_is_compared(tmp_path: Path) -> None:
    rows = {PROBE: {"fields": ["session_id", "arrival_time_ms"], "rows": [["session_0", 1.0]] * 5}}
    path = tmp_path / "rows.json.gz"
    path.write_bytes(gzip.compress(orjson.dumps(rows)))
    assert run(tmp_path, [case("traffic-probes", PROBE)], "--requests", str(path))[0] == 1


def test_command_refused_as_expected_exits_0(tmp_path: Path) -> None:
    code, results = run(tmp_path, [case("traffic-probes", "T4b-err-no-output-length")])
    assert (code, results[0]["metrics"]) == (0, None)


def test_command_refusal_missing_here_exits_1(tmp_path: Path) -> None:
    wrong = {**case("traffic-probes", PROBE), "expected": {"refused": True, "message_contains": "x"}}
    assert run(tmp_path, [wrong])[0] == 1


def test_command_unexpected_refusal_exits_1(tmp_path: Path) -> None:
    wrong = copy.deepcopy(case("traffic-probes", PROBE))
    del wrong["config"]["traffic"]["stop"]
    assert run(tmp_path, [wrong])[0] == 1


def test_command_feature_not_modelled_is_named_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, [case("oracle-public", "pub-062-tokenization")])[0] == 0
    assert "---- pub-062-tokenization" in capsys.readouterr().out


def test_command_only_picks_cases_by_text(tmp_path: Path) -> None:
    cases = [case("traffic-probes", PROBE), case("traffic-probes", "T20-trace-normalized")]
    assert [result["id"] for result in run(tmp_path, cases, "--only", "T20")[1]] == ["T20-trace-normalized"]


def test_command_groups_cases_by_tags_or_by_the_letters_of_their_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tagged = {**case("traffic-probes", PROBE), "tags": ["fixed-timing", "vllm", "agg", "tiny"]}
    run(tmp_path, [tagged, case("traffic-probes", PROBE)])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert [line.split(" | ")[:3] for line in table] == [
        ["| probes T", "1", "0"],
        ["| vllm, agg, fixed-timing", "1", "0"],
    ]
