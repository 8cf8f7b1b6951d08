"""`python -m workers CASE.json`."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.golden.files import case
from tests.reference.plain_replay import replay
from workers import __main__ as command
from workers.replay.fleet import Fleet
from workers.replay.metrics import report
from workers.replay.reports import Report, Reports
from workers.replay.timeline import timeline
from workers.traffic.requests import RequestBatch

PROBE = "T01-constant-rate"
RESIDUAL = 0.25


class PlainReports(Reports):
    """Reports by the plain replay, with a residual of their own."""

    def of(self, fleet: Fleet, batch: RequestBatch) -> Report:
        outcomes = replay(fleet, batch)
        return Report(report(outcomes, batch, fleet, self._sla), timeline(outcomes, batch, fleet), RESIDUAL)


@pytest.fixture(autouse=True)
def plain_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is under test, not the compiled engine."""
    monkeypatch.setattr(command, "Reports", PlainReports)


def write(folder: Path, document: Any) -> str:
    path = folder / "case.json"
    path.write_bytes(orjson.dumps(document))
    return str(path)


def test_command_prints_the_report_of_its_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([write(tmp_path, case("traffic-probes", PROBE))]) == 0
    values = orjson.loads(capsys.readouterr().out)
    assert values["duration_ms"] == pytest.approx(681.4285714285714)
    assert values["mean_output_token_throughput_per_user"] == 100.0
    assert values["step_time_residual"] == RESIDUAL


def test_command_picks_one_of_several_by_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case("traffic-probes", PROBE), case("traffic-probes", "T20-trace-normalized")]
    assert command.main([write(tmp_path, {"cases": cases}), "--id", "T20-trace-normalized"]) == 0
    assert orjson.loads(capsys.readouterr().out)["duration_ms"] == 4110.0


def test_command_several_cases_without_id_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([write(tmp_path, [case("traffic-probes", PROBE)] * 2)]) == 1
    assert "2 cases fit" in capsys.readouterr().err


def test_command_reads_traces_beside_the_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {key: value for key, value in case("traffic-probes", "T20-trace-normalized").items() if key != "trace"}
    (tmp_path / "trace.jsonl").write_bytes(b'{"timestamp":0,"input_length":64,"output_length":2,"hash_ids":[1]}')
    assert command.main([write(tmp_path, found)]) == 0
    assert orjson.loads(capsys.readouterr().out)["duration_ms"] == 110.0


@pytest.mark.parametrize("case_id", ["T4b-err-no-output-length", "P01-load-up"])
def test_command_case_that_cannot_be_replayed_is_one_sentence(
    case_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([write(tmp_path, case("traffic-probes", case_id))]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_command_file_absent_or_broken_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert command.main([str(broken)]) == command.main([str(tmp_path / "absent.json")]) == 1
    assert capsys.readouterr().err.count("\n") == 2
