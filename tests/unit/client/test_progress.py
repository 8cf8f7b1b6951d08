"""What the command line shows while a study goes on."""

import io
from itertools import count
from typing import Any

import pytest

from app.client import progress
from app.client.progress import ProgressBar, line, summary, table
from app.schemas.study_view import StudyView
from tests.unit.client.test_api import STUDY, study_document


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the bar sees; a test sets it."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def study(status: str = "running", **counts: Any) -> StudyView:
    document = study_document(7, status)
    document["progress"] |= counts
    return StudyView.model_validate(document)


def test_line_tells_part_count_pace_and_time_left() -> None:
    text = line(study(done=120, fraction=0.4, per_second=35.2, eta_s=5.1))
    assert text == f"running   [{'#' * 12}{'.' * 18}]  40%  120 trials, 35/s, 5 s left"


def test_line_claims_no_part_while_it_is_unknown() -> None:
    assert line(study(done=16, fraction=None)).startswith(f"running   [{'.' * 30}]    ?  16 trials")


def test_line_of_an_ended_study_has_no_time_left() -> None:
    assert "left" not in line(study("succeeded", eta_s=3.0, fraction=1.0))


def test_terminal_shows_one_changing_line_and_ends_it(clock: list[float]) -> None:
    stream = Terminal()
    bar = ProgressBar(stream)
    for now, status in zip(count(), ["queued", "running", "succeeded"], strict=False):
        clock[0] = float(now)
        bar.show(study(status))
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r") == 3


def test_log_gets_a_line_at_each_status_and_now_and_then(clock: list[float]) -> None:
    stream = io.StringIO()
    bar = ProgressBar(stream)
    for now in (0, 1, 2, 6, 7):
        clock[0] = float(now)
        bar.show(study(done=now))
    bar.show(study("succeeded"))
    shown = stream.getvalue().splitlines()
    assert ["0 trials" in shown[0], "6 trials" in shown[1], "succeeded" in shown[2]] == [True] * 3
    assert len(shown) == 3


def test_summary_names_outcomes_and_problem() -> None:
    document = study_document(7, "failed")
    document["progress"] |= {"feasible": 0, "infeasible": 4, "unsupported": 0, "failed": 0, "timed_out": 1}
    document["problem"] = {"type": "t", "title": "Nothing fits", "detail": "more GPUs would help"}
    text = summary(StudyView.model_validate(document))
    assert str(STUDY) in text
    assert "4 infeasible, 1 timed_out" in text
    assert "Nothing fits: more GPUs would help" in text


def test_table_of_nothing_says_so() -> None:
    assert table([]) == "no candidates"
