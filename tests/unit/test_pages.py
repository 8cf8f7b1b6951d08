"""The pages of docs/ say what the code says, and lead somewhere."""

import re
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

import pytest

from app.client.__main__ import INTERRUPTED, LATE, OK, REFUSED, UNREACHABLE, USAGE, WORSE, parser
from app.export_reference import reference_text
from app.routes.problems import _KINDS
from app.schemas.status import (
    STUDY_MOVES,
    STUDY_TERMINAL,
    TRIAL_MOVES,
    TRIAL_TERMINAL,
    ReasonCode,
    StudyStatus,
    TrialStatus,
)

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
STATES = (DOCS / "states.md").read_text()


def rows(text: str) -> list[list[str]]:
    """Cells of every table row, headings and rules left out."""
    found = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [cells for cells in found if cells[0].startswith("`") or cells[0].isdigit()]


def section(title: str) -> str:
    """A second-level section of the page on states."""
    return STATES.split(f"## {title}\n")[1].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "members", "terminal", "ends"),
    [
        ("A study", StudyStatus, STUDY_TERMINAL, "yes"),
        ("A trial", TrialStatus, TRIAL_TERMINAL, "no"),
    ],
)
def test_every_status_is_explained_with_its_finality(
    title: str, members: type[StrEnum], terminal: Collection[StrEnum], ends: str
) -> None:
    table = {cells[0].strip("`"): cells[-1] for cells in rows(section(title)) if "urn:" not in cells[0]}
    assert list(table) == [member.value for member in members]
    assert {name for name, last in table.items() if last == ends} == {member.value for member in terminal}


def test_every_reason_code_is_explained_with_what_helps() -> None:
    table = rows(section("Why a trial is not feasible"))
    assert [cells[0].strip("`") for cells in table] == [code.value for code in ReasonCode]
    assert all(len(cells) == 3 and all(cells) for cells in table)


def test_diagrams_name_every_status_that_moves() -> None:
    study, trial = (re.findall(r"```text\n(.*?)```", section(title), re.DOTALL)[0] for title in ("A study", "A trial"))
    assert {status for status in StudyStatus if status in study} == set(StudyStatus)
    assert {status for status in TrialStatus if status in trial} == set(TrialStatus)
    assert {*STUDY_MOVES} == set(StudyStatus) - STUDY_TERMINAL
    assert {*TRIAL_MOVES} == set(TrialStatus) - TRIAL_TERMINAL


def test_problem_types_of_failed_studies_are_those_that_the_workers_write() -> None:
    written = set()
    for source in (REPOSITORY / "workers").rglob("*.py"):
        text = source.read_text()
        written |= set(re.findall(r'"urn:spica:problem:([a-z-]+)"', text)) | set(
            re.findall(r'\bproblem\("([a-z-]+)"', text)
        )
    explained = set(re.findall(r"urn:spica:problem:([a-z-]+)", STATES))
    assert written - {kind.slug for kind in _KINDS.values()} == explained


def test_reference_is_what_the_application_says() -> None:
    assert (DOCS / "reference.md").read_text() == reference_text(), "run `make openapi`"


def test_exit_codes_of_the_tutorial_are_those_of_the_command() -> None:
    codes = [OK, WORSE, USAGE, UNREACHABLE, REFUSED, LATE, INTERRUPTED]
    assert [int(cells[0]) for cells in rows((DOCS / "tutorial.md").read_text()) if cells[0].isdigit()] == codes
    said = parser().format_help()
    assert all(re.search(rf"\b{code} ", said) for code in codes)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_links_within_the_reference_lead_to_a_heading() -> None:
    text = (DOCS / "reference.md").read_text()
    headings = {re.sub(r"[^\w -]", "", line.lstrip("# ")).lower() for line in text.splitlines() if line[:1] == "#"}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


def test_glossary_is_sorted_and_says_each_word_once() -> None:
    words = [
        line.split(" | ")[0].strip("| ") for line in (DOCS / "glossary.md").read_text().splitlines() if line[:1] == "|"
    ]
    words = [word.lower() for word in words if word not in ("word", "---") and not word.startswith("---")]
    assert words == sorted(set(words))
