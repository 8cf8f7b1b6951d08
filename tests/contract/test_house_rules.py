"""House rules that no linter can express."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "workers", "launch")
SOURCES = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
STATUS_WRITER = REPOSITORY / "app" / "db" / "lifecycle.py"
MODULE_LINES = 400
VAGUE_NAMES = {"utils", "util", "common", "manager", "base", "helpers", "misc"}
HEAVY_IN_API = {"numba", "llvmlite", "pandas", "scipy", "pyarrow", "aisimulate_core", "aiconfigurator_core"}


def status_writes(tree: ast.AST) -> Iterator[int]:
    """Line numbers where a status column seems to be written: attribute, update().values(status=...), or SQL text."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(is_foreign_status(target) for target in targets):
            yield node.lineno  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and is_update_with_status(node):
            yield node.lineno
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and sets_status(node.value):
            yield node.lineno


def is_foreign_status(target: ast.AST | None) -> bool:
    """True for `row.status` on the left of an assignment; an object may name a field of its own so (`self.status`)."""
    return (
        isinstance(target, ast.Attribute)
        and target.attr == "status"
        and not (isinstance(target.value, ast.Name) and target.value.id == "self")
    )


def is_update_with_status(call: ast.Call) -> bool:
    """True for `update(...)....values(status=...)`; an insert states the status a row is born with."""
    names = {node.func.id for node in ast.walk(call) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    values = isinstance(call.func, ast.Attribute) and call.func.attr == "values"
    return values and "update" in names and any(keyword.arg == "status" for keyword in call.keywords)


def sets_status(sql: str) -> bool:
    """True for UPDATE ... SET ... status = ..., with the assignment before any WHERE."""
    return bool(re.search(r"\bupdate\b.*?\bset\b(?:(?!\bwhere\b).)*\bstatus\s*=", sql, re.IGNORECASE | re.DOTALL))


def relative(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_status_column_is_written_only_by_lifecycle() -> None:
    found = {
        f"{relative(path)}:{line}"
        for path in SOURCES
        if path != STATUS_WRITER
        for line in status_writes(ast.parse(path.read_text()))
    }
    assert found == set()


@pytest.mark.parametrize(
    "code",
    [
        "row.status = 'running'",
        "db.execute(update(TrialRow).where(TrialRow.number == 1).values(status='failed'))",
        "db.execute(text('UPDATE trials SET attempt = 1, status = :s WHERE number = 1'))",
    ],
)
def test_status_write_is_recognized(code: str) -> None:
    assert list(status_writes(ast.parse(code)))


def test_status_read_is_no_write() -> None:
    code = "text('UPDATE trials SET attempt = 2 WHERE status = 1'); insert(StudyRow).values(status='queued')"
    assert list(status_writes(ast.parse(code))) == []


def test_benchmarks_import_reference_cases_and_stand_ins_but_no_tests() -> None:
    found = {
        f"{relative(path)}: {node.module}"
        for path in (REPOSITORY / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
    }
    allowed = {"tests.golden", "tests.pure_fake", "tests.thin", "tests.site"}
    assert {each for each in found if each.split(": ")[1] not in allowed} == set()


def test_package_init_files_are_empty() -> None:
    assert [relative(path) for path in SOURCES if path.name == "__init__.py" and path.read_text().strip()] == []


def test_module_length_stays_within_the_limit() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_module_names_say_what_they_hold() -> None:
    assert [relative(path) for path in SOURCES if path.stem in VAGUE_NAMES] == []


def test_api_process_imports_no_numeric_package() -> None:
    code = "import sys, app.main; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert HEAVY_IN_API.isdisjoint(loaded)


def test_launcher_imports_only_the_standard_library() -> None:
    names = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else node.names[0].name.split(".")[0]
        for path in [REPOSITORY / "run.py", *(REPOSITORY / "launch").glob("*.py")]
        if path.name not in ("probe.py", "audit.py")  # run inside .venv, as their first lines say
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert names - sys.stdlib_module_names == {"launch"}
