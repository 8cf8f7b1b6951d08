"""Replay a file of reference cases and say how far each is from the reference.

python -m benchmarks.fidelity CASES.json [--traces DIR] [--requests FILE] [--engine kernel|reference] --out RESULT.json

Reads the reference format and both probe formats. Exits 1 when a metric is out of tolerance or a case goes wrong.
"""

import argparse
import gzip
import importlib
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks.comparison import SKETCHED, Deviation, compare_metrics, compare_rows, reference_rows, request_rows
from benchmarks.replay_calls import read_call
from workers.cases import ReferenceCase, read_case
from workers.errors import EvaluationError, UnsupportedError
from workers.replay.elastic import replay_elastic
from workers.replay.fleet import Fleet, KvRouter
from workers.replay.metrics import report
from workers.replay.outcomes import Outcomes
from workers.scaling import new_planner
from workers.traffic.requests import RequestBatch

Replay = Callable[[Fleet, RequestBatch], Outcomes]
_ROUTER_SEEDS = 20
_GROUPING = ("vllm", "sglang", "trtllm", "agg", "disagg", "router", "planner", "fixed-timing", "aic")
"""Tags that make the name of a case's group; a case without any belongs to the group of its id's letters."""
_ENGINES = {"kernel": "workers.replay.loop", "reference": "tests.reference.plain_replay"}


@dataclass
class Verdict:
    """What became of one case. `problem`: why it has no metrics; `deviations`: compared values."""

    case_id: str
    metrics: dict[str, Any] | None = None
    cpu_ms: float | None = None
    deviations: list[Deviation] = field(default_factory=list)
    problem: str | None = None
    is_unmodelled: bool = False

    @property
    def worst(self) -> Deviation | None:
        """The deviation furthest beyond (or closest to) its tolerance."""
        return max(self.deviations, key=lambda d: d.relative / d.tolerance if d.tolerance else d.relative, default=None)

    @property
    def has_failed(self) -> bool:
        """Out of tolerance, or no result where the reference has one."""
        return any(d.is_out for d in self.deviations) or (self.problem is not None and not self.is_unmodelled)


def load_json(path: Path) -> Any:
    """A JSON file, gzipped or not."""
    content = path.read_bytes()
    return orjson.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def case_list(document: Any) -> list[dict[str, Any]]:
    """The cases of a file that is a list or holds one under `cases`."""
    return document if isinstance(document, list) else document["cases"]


def check_case(case: Mapping[str, Any], traces: Path | None, rows: Mapping[str, Any], replay: Replay) -> Verdict:
    """Replay one case and compare it with what the reference expects: metrics, requests, or an error."""
    verdict = Verdict(case["id"])
    expected = case["expected"]
    is_refusal = "refused" in expected or "error_contains" in expected or ("error" in case and not expected)
    try:
        ready = read_call(case) if "call" in case else read_case(case, traces)
        if "num_gpu_blocks_per_rank" in expected:
            _compare_capacity(ready, expected, verdict)
            return verdict
        _run(ready, case, rows, replay, verdict)
    except UnsupportedError as error:
        verdict.problem, verdict.is_unmodelled = f"not modelled: {error}", True
    except (EvaluationError, ValueError) as error:
        wanted = expected.get("message_contains", "")
        if not is_refusal or wanted not in str(error):
            verdict.problem = f"{type(error).__name__}: {error}"
        return verdict
    except Exception as error:  # a crash on one case must not hide the others
        verdict.problem = f"{type(error).__name__}: {error}"
        return verdict
    if is_refusal and not verdict.is_unmodelled:
        verdict.problem = "the reference refuses this case"
    return verdict


def _run(
    ready: ReferenceCase, case: Mapping[str, Any], rows: Mapping[str, Any], replay: Replay, verdict: Verdict
) -> None:
    """Replay, report and compare, into `verdict`; reading the case is not timed."""
    started = time.process_time()
    if ready.planner is not None:
        elastic = replay_elastic(ready.fleet, ready.batch, new_planner(ready.planner, ready.fleet))
        outcomes, verdict.metrics = elastic.outcomes(ready.batch), elastic.report(ready.sla)
    else:
        outcomes = replay(ready.fleet, ready.batch)
        verdict.metrics = report(outcomes, ready.batch, ready.fleet, ready.sla)
    verdict.cpu_ms = (time.process_time() - started) * 1000.0
    is_aic = _uses_op_level_timing(case)
    unstable = tuple(case.get("unstable", ()))
    if ready.fleet.router is not None and ready.planner is None:
        verdict.deviations += _within_spread(ready, ready.fleet.router, case["expected"], unstable, replay)
        return
    verdict.deviations += compare_metrics(verdict.metrics, case["expected"], is_aic, unstable)
    expected_rows = reference_rows(case, rows)
    if expected_rows is not None and not unstable:
        verdict.deviations += compare_rows(request_rows(ready, outcomes), expected_rows, is_aic)


def _within_spread(
    ready: ReferenceCase, router: KvRouter, expected: Mapping[str, Any], unstable: tuple[str, ...], replay: Replay
) -> list[Deviation]:
    """Deviations of a routed case, 0 for metrics inside our own spread: the reference draws between equal costs unseeded."""
    fleets = [replace(ready.fleet, router=replace(router, seed=seed)) for seed in range(_ROUTER_SEEDS)]
    reports = [report(replay(fleet, ready.batch), ready.batch, fleet, ready.sla) for fleet in fleets]
    by_seed = [compare_metrics(ours, expected, is_aic=False, unstable=unstable) for ours in reports]
    found = []
    for deviations in zip(*by_seed, strict=True):
        values = [deviation.ours for deviation in deviations if deviation.ours is not None]
        nearest = min(deviations, key=lambda deviation: deviation.relative)
        inside = values and min(values) <= (nearest.reference or 0.0) <= max(values)
        found.append(replace(nearest, relative=0.0) if inside else nearest)
    return found


def _compare_capacity(ready: ReferenceCase, expected: Mapping[str, Any], verdict: Verdict) -> None:
    """A capacity probe: blocks of one rank."""
    pool = ready.fleet.agg
    assert pool is not None
    sizes = {"num_gpu_blocks_per_rank": pool.num_blocks, "block_size": pool.block_size}
    verdict.metrics = dict(sizes)
    verdict.deviations += compare_metrics(sizes, {name: expected[name] for name in sizes}, is_aic=False)


def _uses_op_level_timing(case: Mapping[str, Any]) -> bool:
    """Whether any role takes its step times from the performance data."""
    workers = case["config"].get("engine", {}).get("workers", {})
    return any((worker or {}).get("timing", {}).get("type", "default") == "default" for worker in workers.values())


def print_verdict(verdict: Verdict) -> None:
    """One line: the worst deviation of a case, or why it has none."""
    mark = "FAIL" if verdict.has_failed else "----" if verdict.is_unmodelled else "ok"
    found = verdict.problem or "refused, as by the reference"
    if verdict.problem is None and (worst := verdict.worst) is not None:
        found = f"{worst.relative:9.2e} {worst.name} {worst.ours} / {worst.reference}"
    print(f"{mark:4} {verdict.case_id:34} {found}", flush=True)


def group_of(case: Mapping[str, Any]) -> str:
    """Backend, mode and timing of a tagged case; the leading letters of a probe's id."""
    known = [tag for tag in _GROUPING if tag in case.get("tags", ())]
    return ", ".join(known) or "probes " + "".join(itertools.takewhile(str.isalpha, case["id"]))


def print_groups(cases: list[dict[str, Any]], verdicts: list[Verdict]) -> None:
    """A table of case groups: how many are compared, and the worst deviations, percentiles from a sketch apart."""
    print(
        "\n| cases | compared | not modelled | worst deviation | of | of sketched percentiles |\n" + "| --- " * 6 + "|"
    )
    groups = sorted(zip(map(group_of, cases), verdicts, strict=True), key=lambda each: each[0])
    for name, members in itertools.groupby(groups, key=lambda each: each[0]):
        group = [verdict for _, verdict in members]
        left_out = sum(verdict.is_unmodelled for verdict in group)
        found = [deviation for verdict in group for deviation in verdict.deviations]
        plain = max((each for each in found if each.name not in SKETCHED), key=lambda each: each.relative, default=None)
        sketched = max((each.relative for each in found if each.name in SKETCHED), default=0.0)
        exact = f"{plain.relative:.1e} | `{plain.name}`" if plain is not None and plain.relative else "none |"
        print(
            f"| {name} | {len(group) - left_out} | {left_out} | {exact} | {f'{sketched:.1e}' if sketched else 'none'} |"
        )


def print_summary(verdicts: list[Verdict]) -> None:
    """Worst deviation of each metric, then the totals."""
    by_metric: dict[str, tuple[float, str]] = {}
    for verdict in verdicts:
        for found in verdict.deviations:
            known = by_metric.get(found.name, (-1.0, ""))
            by_metric[found.name] = max(known, (found.relative, verdict.case_id))
    print("\nworst deviation per metric")
    for name, (relative, case_id) in sorted(by_metric.items()):
        print(f"  {name:46} {relative:9.2e} {case_id if relative else ''}")
    failed = sum(verdict.has_failed for verdict in verdicts)
    unmodelled = sum(verdict.is_unmodelled for verdict in verdicts)
    print(
        f"\n{len(verdicts)} cases: {len(verdicts) - failed - unmodelled} ok, {failed} failed, {unmodelled} not modelled"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 when every modelled case is within tolerance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--traces", type=Path, help="folder of trace files")
    parser.add_argument("--requests", type=Path, help="reference rows by case id")
    parser.add_argument("--engine", choices=sorted(_ENGINES), default="kernel")
    parser.add_argument("--only", default="", help="cases whose id contains this text")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    replay: Replay = importlib.import_module(_ENGINES[options.engine]).replay
    rows = load_json(options.requests) if options.requests else {}
    cases = [
        case
        for case in case_list(load_json(options.cases))
        if options.only in case["id"] and case.get("runner") != "search-function"
    ]
    verdicts = []
    for case in cases:
        verdicts.append(check_case(case, options.traces, rows, replay))
        print_verdict(verdicts[-1])
    print_groups(cases, verdicts)
    print_summary(verdicts)
    results = [{"id": v.case_id, "metrics": v.metrics, "cpu_ms": v.cpu_ms} for v in verdicts]
    options.out.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    return int(any(verdict.has_failed for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
