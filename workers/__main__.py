"""`python -m workers CASE.json`: replay one case of the reference format and print its report.

The file holds one case, a list of cases or `{"cases": [...]}`; `--id` picks one of several. No database, no broker.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import orjson

from workers.cases import ReferenceCase, read_case
from workers.errors import EvaluationError
from workers.replay.elastic import replay_elastic
from workers.replay.reports import Reports
from workers.scaled_reports import scaling_document
from workers.scaling import new_planner


def main(arguments: list[str] | None = None) -> int:
    """Print the report as JSON; 1 when the case cannot be replayed."""
    parser = argparse.ArgumentParser(prog="python -m workers", description=__doc__)
    parser.add_argument("case", type=Path)
    parser.add_argument("--id", help="case to replay when the file holds several")
    parser.add_argument("--traces", type=Path, help="folder of trace files; default: beside the case file")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="for replicas that never meet; default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        case = _pick(orjson.loads(options.case.read_bytes()), options.id)
        ready = read_case(case, options.traces or options.case.parent)
        values = _report(ready, max(1, options.threads))
    except (EvaluationError, ValueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    sys.stdout.write(orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())
    return 0


def _report(ready: ReferenceCase, threads: int) -> dict[str, Any]:
    """The report and the residual of its step times; with a planner, its scale events too."""
    if ready.planner is None:
        found = Reports(ready.sla, threads=threads).of(ready.fleet, ready.batch)
        return {**found.metrics, "step_time_residual": found.step_time_residual}
    outcome = replay_elastic(ready.fleet, ready.batch, new_planner(ready.planner, ready.fleet))
    residual, events = outcome.step_time_residual(), scaling_document(outcome)["events"]
    return {**outcome.report(ready.sla), "step_time_residual": residual, "scaling_events": events}


def _pick(document: Any, case_id: str | None) -> Any:
    """The one case meant. Raises: ValueError when none or several fit."""
    if isinstance(document, dict) and "cases" not in document:
        return document
    cases = document["cases"] if isinstance(document, dict) else document
    wanted = [case for case in cases if case_id is None or case["id"] == case_id]
    if len(wanted) != 1:
        raise ValueError(f"{len(wanted)} cases fit; choose one with --id")
    return wanted[0]


if __name__ == "__main__":
    sys.exit(main())
