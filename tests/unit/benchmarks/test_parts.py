"""How `run.py bench` runs a part and shows its goals."""

import json
import math
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks import all as bench
from benchmarks.page import print_goals, write_tables
from benchmarks.parts import PARTS, Goal, Part


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    return tmp_path


def part(code: str, folder: Path, within_s: float = 60.0) -> Part:
    """A part that runs this code; its words are the result's place, if it names one."""
    script = folder / "part.py"
    script.write_text(f"import sys\n{code}")
    return Part("made", f"{script} {{out}}", lambda _: iter(()), within_s)


def test_missed_goal_still_leaves_a_result(results: Path) -> None:
    code = "open(sys.argv[1], 'w').write('{}')\nsys.exit(1)"
    assert bench._run(part(code, results), None, math.inf)
    assert json.loads((results / "made.json").read_text()) == {}


def test_crash_leaves_the_earlier_result_and_is_named(results: Path) -> None:
    (results / "made.json").write_text("[1]")
    assert not bench._run(part("raise SystemExit(1)", results), None, math.inf)
    assert (results / "made.json").read_text() == "[1]"


def test_part_over_its_limit_is_interrupted_and_cleans_up(results: Path) -> None:
    mark = results / "cleaned"
    code = f"""
import pathlib, time
try:
    time.sleep(600)
finally:
    pathlib.Path({str(mark)!r}).touch()
"""
    assert not bench._run(part(code, results, within_s=1.0), None, math.inf)
    assert mark.exists()


def test_part_whose_peer_cannot_be_had_does_not_end_the_run(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> Path:
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(bench, "installed", refused)
    asks = Part("made", "part.py {peer} {out}", lambda _: iter(()))
    assert not bench._run(asks, None, math.inf)
    assert "made: Command 'pip'" in capsys.readouterr().out


def test_part_without_time_left_is_not_begun(results: Path) -> None:
    code = "open(sys.argv[1], 'w').write('{}')"
    assert not bench._run(part(code, results), None, time.monotonic())
    assert not (results / "made.json").exists()


def test_ratio_of_one_and_more_is_a_goal_met() -> None:
    goals = [Goal("a", 4.0, 2.0, "s"), Goal("b", 4.0, 5.0, "s"), Goal("c", 100.0, 150.0, "x", at_least=True)]
    assert [(goal.ratio, goal.is_met) for goal in goals] == [(2.0, True), (0.8, False), (1.5, True)]


def test_all_parts_fit_into_the_forty_minutes() -> None:
    assert sum(each.within_s for each in PARTS) <= 40 * 60


def test_closing_table_has_goal_measured_and_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace_upload.json").write_text(json.dumps({"rows": 500, "rss_peak_mb": 500.0}))
    print_goals(tmp_path)
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[-7:] == ["<=", "250", "MB", "500", "MB", "0.5", "MISSED"]


def test_kept_tables_stand_when_a_part_has_no_result(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table: cold -->\nold\n<!-- end -->\n")
    write_tables(tmp_path, page)
    assert page.read_text() == "<!-- table: cold -->\nold\n<!-- end -->\n"
