"""A figure on the performance page stands under the command that printed it."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
_FIGURE = re.compile(r"\d[\d.,]* ?(ms|s|µs|us|MB|GB|x|%|/s)\b")
_COMMAND = re.compile(r"`(python3? [^`]*|make [^`]*)`")


def test_every_figure_stands_in_a_section_with_its_command() -> None:
    sections = PAGE.read_text().split("\n## ")
    bare = [s.splitlines()[0] for s in sections if _FIGURE.search(s) and not _COMMAND.search(s)]
    assert bare == []


def test_every_table_of_results_names_its_command() -> None:
    tables = re.findall(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert [name for name, text in tables if text and not text.startswith("`python3 run.py bench")] == []
