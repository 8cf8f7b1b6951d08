"""A figure on a page about performance stands under the command that printed it."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / "performance.md",
    DOCS / "scale.md",
    DOCS / "chaos.md",
    *(DOCS / "model" / name for name in ("planner.md", "measured.md", "fidelity.md")),
]
_FIGURE = re.compile(r"\d[\d.,]* ?(ms|s|µs|us|kB|MB|GB|x|%|/s)\b")
_COMMAND = re.compile(r"`(python3? [^`]*|make [^`]*)`")
_TABLE = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_figure_stands_in_a_section_with_its_command(page: Path) -> None:
    sections = page.read_text().split("\n## ")
    bare = [s.splitlines()[0] for s in sections if _FIGURE.search(s) and not _COMMAND.search(s)]
    assert bare == []


@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.stem)
def test_every_table_of_results_names_its_command(page: Path) -> None:
    tables = _TABLE.findall(page.read_text())
    assert tables
    assert [name for name, text in tables if text and not text.startswith("`python3 run.py bench")] == []
