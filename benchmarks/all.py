"""The figures of docs/performance.md in one run: `python3 run.py bench [--only PART] [--peer PATH]`.

Runs each part as a process of its own, keeps its result in `benchmarks/results/PART.json`, writes the tables of
docs/performance.md from these files and ends with a table of goal and measured. Exits 1 when a part failed; a goal that is
missed is shown, not hidden.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.page import print_goals, write_tables
from benchmarks.parts import PARTS, Part
from benchmarks.peer import REPOSITORY, installed
from benchmarks.service import running_service

RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = REPOSITORY / "docs" / "performance.md"


def main() -> int:
    """Run the chosen parts, then say how they did."""
    parser = argparse.ArgumentParser(prog="python3 run.py bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts whose name contains this text")
    parser.add_argument("--peer", type=Path, help="the peer's command; installed into .cache/peer without it")
    parser.add_argument("--tables", action="store_true", help="run nothing, write the tables from the kept results")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    chosen = [] if options.tables else [part for part in PARTS if options.only in part.name]
    failed = [part.name for part in chosen if not _run(part, options.peer)]
    write_tables(RESULTS, PAGE)
    print_goals(RESULTS)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _run(part: Part, peer: Path | None) -> bool:
    """Run a part; whether it left a result."""
    places = {"out": str(RESULTS / f"{part.name}.json")}
    if part.needs("peer"):
        places["peer"] = str(peer or installed())
    if not part.needs("url"):
        return _run_in(part, places)
    with running_service() as service:
        return _run_in(part, places | {"url": service.url})


def _run_in(part: Part, places: dict[str, str]) -> bool:
    words, prints = part.words(**places), not part.needs("out")
    print(f"== {part.name}: python {' '.join(words)}", flush=True)
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=REPOSITORY, timeout=part.within_s, text=True,
            stdout=subprocess.PIPE if prints else None, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"   not done within {part.within_s:.0f} s")
        return False
    if prints and done.returncode == 0:
        Path(places["out"]).write_text(_document(done.stdout))
    print(f"   exit code {done.returncode} after {time.monotonic() - started:.0f} s", flush=True)
    return done.returncode == 0


def _document(printed: str) -> str:
    """The JSON document behind whatever was logged before it."""
    lines = printed.splitlines(keepends=True)
    return "".join(lines[next(at for at, line in enumerate(lines) if line.startswith("{")) :])


if __name__ == "__main__":
    sys.exit(main())
