"""The figures of docs/performance.md in one run: `python3 run.py bench [--only PART] [--peer PATH] [--minutes 40]`.

Runs each part as a process of its own, keeps its result in `benchmarks/results/PART.json`, writes the tables of
docs/performance.md and docs/scale.md from these files and ends with a table of goal, measured and ratio. A part ends at its
own limit or when the minutes are used up. Exits 1 when a part left no result; a missed goal is shown, not hidden.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.page import print_goals, write_tables
from benchmarks.parts import PARTS, Part
from benchmarks.peer import REPOSITORY, installed
from benchmarks.service import running_service

RESULTS = REPOSITORY / "benchmarks" / "results"
PAGES = tuple(REPOSITORY / "docs" / name for name in ("performance.md", "scale.md"))
_INTERRUPTED_S = 90.0
_CLOSING_S = 150.0
"""Kept for stopping processes and writing the tables."""


def main() -> int:
    """Run the chosen parts, then say how they did."""
    parser = argparse.ArgumentParser(prog="python3 run.py bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts whose name contains this text")
    parser.add_argument("--peer", type=Path, help="the peer's command; installed into .cache/peer without it")
    parser.add_argument("--tables", action="store_true", help="run nothing, write the tables from the kept results")
    parser.add_argument("--minutes", type=float, default=40.0, help="the whole run ends within this time")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    until = time.monotonic() + 60.0 * options.minutes - _CLOSING_S
    chosen = [] if options.tables else [part for part in PARTS if options.only in part.name]
    without = [part.name for part in chosen if not _run(part, options.peer, until)]
    for page in PAGES:
        write_tables(RESULTS, page)
    print_goals(RESULTS)
    if without:
        print(f"without a new result: {', '.join(without)}")
    return 1 if without else 0


def _run(part: Part, peer: Path | None, until: float) -> bool:
    """Run a part in the time that is left; whether there is a new result."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        places = {"out": str(out)}
        try:
            if part.needs("peer"):
                places["peer"] = str(peer or installed())
            if part.needs("url"):
                with running_service() as service:
                    _run_in(part, places | {"url": service.url}, until)
            else:
                _run_in(part, places, until)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"== {part.name}: {error}", flush=True)
        if not out.exists():
            return False
        (RESULTS / f"{part.name}.json").write_bytes(out.read_bytes())
        return True


def _run_in(part: Part, places: dict[str, str], until: float) -> None:
    """The part's process. Its exit code tells of goals, its result of success."""
    words, prints = part.words(**places), not part.needs("out")
    within_s = min(part.within_s, until - time.monotonic())
    if within_s <= 0.0:
        print(f"== {part.name}: no time left")
        return
    print(f"== {part.name}: python {' '.join(words)}", flush=True)
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *words], cwd=REPOSITORY, text=True, stdout=subprocess.PIPE if prints else None
    ) as child:
        printed = _printed(child, within_s)
    if prints and child.returncode == 0:
        Path(places["out"]).write_text(_document(printed))
    print(f"   exit code {child.returncode} after {time.monotonic() - started:.0f} s", flush=True)


def _printed(child: "subprocess.Popen[str]", within_s: float) -> str:
    """What a process printed to its pipe. One that is not done in time is interrupted, so that it ends its own children."""
    try:
        return child.communicate(timeout=within_s)[0] or ""
    except subprocess.TimeoutExpired:
        print(f"   not done within {within_s:.0f} s", flush=True)
    child.send_signal(signal.SIGINT)
    try:
        return child.communicate(timeout=_INTERRUPTED_S)[0] or ""
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()[0] or ""


def _document(printed: str) -> str:
    """The JSON document behind whatever was logged before it."""
    lines = printed.splitlines(keepends=True)
    return "".join(lines[next(at for at, line in enumerate(lines) if line.startswith("{")) :])


if __name__ == "__main__":
    sys.exit(main())
