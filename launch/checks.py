"""The static checks behind `run.py check`, `make check` and CI: one list, run to the end, then one verdict."""

import subprocess

from launch.folders import REPOSITORY
from launch.install import PYTHON
from launch.process import run_in_foreground

BIN = PYTHON.parent
OPENAPI = REPOSITORY / "openapi" / "openapi.json"
ADVISORIES = REPOSITORY / "advisories.json"
AUDIT = [str(PYTHON), "-m", "launch.audit"]
COMMANDS: dict[str, list[str]] = {
    "ruff check": [str(BIN / "ruff"), "check", "."],
    "ruff format": [str(BIN / "ruff"), "format", "--check", "."],
    "mypy": [str(BIN / "mypy")],
    "import walls": [str(BIN / "lint-imports"), "--no-logo"],
}


def run_checks(env: dict[str, str]) -> int:
    """Run every check, also after a failure; 0 when all passed."""
    failed = []
    for name, argv in COMMANDS.items():
        print(f"== {name}", flush=True)
        if run_in_foreground(argv, env=env, cwd=REPOSITORY) != 0:
            failed.append(name)
    print("== advisories", flush=True)
    if not ADVISORIES.exists():
        # Advisories come from outside; without a network there is nothing to compare with, and nothing to hide.
        print("not audited: no advisories.json; `run.py audit --from DUMP` makes it", flush=True)
    elif run_in_foreground(AUDIT, env=env, cwd=REPOSITORY) != 0:
        failed.append("advisories")
    print("== OpenAPI document", flush=True)
    if not openapi_is_current(env):
        failed.append("OpenAPI document")
    print(f"== {'failed: ' + ', '.join(failed) if failed else 'all checks passed'}", flush=True)
    return 1 if failed else 0


def openapi_is_current(env: dict[str, str]) -> bool:
    """True when the committed document is what the application says now; else a note how to renew it."""
    made = subprocess.run(
        [str(PYTHON), "-m", "app.export_openapi"], env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, check=False
    )
    if made.returncode == 0 and OPENAPI.exists() and made.stdout == OPENAPI.read_bytes():
        return True
    print("openapi/openapi.json is not what the application says; `make openapi` writes it", flush=True)
    return False
