"""Tables of docs/performance.md and docs/scale.md, and the closing table of a run, from the kept results."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import site
from benchmarks.parts import PARTS, Goal, Part

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def print_goals(results: Path) -> None:
    """Goal, measured, and their ratio (1 and more is met), of every part that has a result."""
    print(f"\n{'what':70} {'goal':>17} {'measured':>16} {'ratio':>8}")
    for part, result in _kept(results):
        for goal in part.goals(result):
            sign = ">=" if goal.at_least else "<="
            met = "met" if goal.is_met else "MISSED"
            figures = f"{sign} {goal.goal:8,.5g} {goal.unit:5} {goal.measured:10,.4g} {goal.unit:5} {goal.ratio:8.3g}"
            print(f"{goal.what:70} {figures}  {met}")


def write_tables(results: Path, page: Path) -> None:
    """Replace what stands between `<!-- table: NAME -->` and `<!-- end -->` by tables of the results.

    A table whose part has no result stays as it is.
    """
    tables = {part.name: _goal_table(part, result) for part, result in _kept(results)}
    kept = {part.name: result for part, result in _kept(results)}
    if "replay" in kept:
        tables |= {"loads": _load_table(kept["replay"]), "sizes": _size_table(kept["replay"])}
    if "stages" in kept.get("cold", {}):
        tables["stages"] = _stage_table(kept["cold"])
    if "elastic" in kept:
        tables["elastic"] = _elastic_table(kept["elastic"])
    if "planner" in kept:
        tables["planner"] = _planner_table(kept["planner"])
    if "scale" in kept:
        tables["scale"] = _scale_table(kept["scale"])
    if all(name in kept for name in site.NEEDED):
        tables["site"] = _site_table(kept)

    def filled(found: re.Match[str]) -> str:
        table = tables.get(found[2])
        return found[0] if table is None else f"{found[1]}{table}{found[3]}"

    page.write_text(_TABLE.sub(filled, page.read_text()))


def _kept(results: Path) -> Iterator[tuple[Part, Any]]:
    for part in PARTS:
        path = results / f"{part.name}.json"
        if path.exists():
            yield part, json.loads(path.read_text())


def _goal_table(part: Part, result: Any) -> str:
    rows = [("what", "goal", "measured", ""), *(_goal_row(goal) for goal in part.goals(result))]
    return _command(part.name) + _markdown(rows)


def _goal_row(goal: Goal) -> tuple[str, ...]:
    sign = "≥" if goal.at_least else "≤"
    met = "" if goal.is_met else "missed"
    return goal.what, f"{sign} {goal.goal:,.5g} {goal.unit}", f"{goal.measured:,.4g} {goal.unit}", met


def _load_table(result: Any) -> str:
    head = ("load", "requests", "ours, ms", "µs a request", "peer, ms", "ratio", "goal")
    return _command("replay") + _markdown([head, *(_load_row(row) for row in result["rows"])])


def _load_row(row: dict[str, Any]) -> tuple[str, ...]:
    ours = (f"{row['ours_ms']:,.3f}", f"{1000 * row['ours_ms'] / row['requests']:.3f}")
    peer = (
        (f"{row['peer_ms']:,.0f}", f"{row['ratio']:,.0f}", f"{row['goal']:,}" if row["goal"] else "")
        if "ratio" in row
        else ("not run", "", "")
    )
    return row["load"], f"{row['requests']:,}", *ours, *peer


def _size_table(result: Any) -> str:
    head = ("requests", "ours, ms", "µs a request")
    rows = (
        (f"{r['requests']:,}", f"{r['ours_ms']:,.3f}", f"{1000 * r['ours_ms'] / r['requests']:.3f}")
        for r in result["sizes"]
    )
    return _command("replay") + _markdown([head, *rows])


_STAGES = {
    "to_begin_s": "accepted, until a worker begins",
    "to_first_trial_s": "plan and first question to the search",
    "trials_s": "first trial taken to last trial stored, with the search between rounds",
    "check_and_rank_s": "the search is asked for the last time, leaders are checked at other loads, places are written",
    "end_s": "checks and end are written",
    "answer_s": "request, and the news of the end reaching the client",
}


def _stage_table(result: Any) -> str:
    stages, whole_s = result["stages"], result["warm_study_s"]
    rows = [(text, f"{1e3 * stages[name]:.0f}", f"{stages[name] / whole_s:.0%}") for name, text in _STAGES.items()]
    rows.append(("replays of all trials, over two processes", f"{1e3 * stages['replays_s']:.0f}", ""))
    rows.append(("search and replays in one process, without a service", f"{1e3 * result['replayed_s']:.0f}", ""))
    return _command("cold") + _markdown([("where", "ms", "of the study"), *rows])


def _elastic_table(result: Any) -> str:
    head = ("planner's target", "requests", "ticks", "changes", "CPU ms", "µs a request", "static twin, CPU ms")
    rows = (
        (
            r["target"],
            f"{r['requests']:,}",
            f"{r['ticks']}",
            f"{r['changes']}",
            f"{r['elastic_ms']:,.1f}",
            f"{1000 * r['elastic_ms'] / r['requests']:.2f}",
            f"{r['static_ms']:,.1f} on {r['static_engines']} engines",
        )
        for r in result["rows"]
    )
    return _command("elastic") + _markdown([head, *rows])


def _planner_table(result: Any) -> str:
    head = ("policy", "candidates", "best", "what it is", "GPUs on average", "changes", "good requests", "µs a request")
    rows = (
        (
            row["policy"],
            f"{row['candidates']}",
            f"{best['score']:.1f}",
            f"tp {best['tp']} x {best['engines_at_first']}",
            f"{best['gpus_on_average']:.2f}",
            f"{best['changes']}",
            f"{best['good_share']:.1%}",
            f"{row['us_a_request']:.1f}",
        )
        for row in result["policies"]
        for best in row["best_of_width"][:1]
    )
    return _command("planner") + _markdown([head, *rows])


def _scale_table(result: Any) -> str:
    head = (
        "workers",
        "Postgres connections",
        "transactions/s, idle",
        "Redis clients",
        "commands/s, idle",
        "MB a worker",
    )
    rows = (
        (
            f"{r['workers']}",
            f"{r['connections']:.0f}",
            f"{r['idle_transactions_per_s']:.1f}",
            f"{r['redis_clients']:.0f}",
            f"{r['idle_redis_commands_per_s']:.1f}",
            f"{r['worker_mb']:.0f}",
        )
        for r in result["rows"]
    )
    return _command("scale") + _markdown([head, *rows])


def _site_table(kept: dict[str, Any]) -> str:
    head = ("what", "one costs", "the site asks for", "one part here gives", "used", "what moves it")
    rows = (
        (line.what, line.one, line.asked, line.can, "" if line.share is None else f"{line.share:.2%}", line.setting)
        for line in site.lines(kept)
    )
    return f"`python3 run.py bench` (parts {', '.join(site.NEEDED)})\n\n" + _markdown([head, *rows])


def _command(name: str) -> str:
    return f"`python3 run.py bench --only {name}`\n\n"


def _markdown(rows: list[tuple[str, ...]]) -> str:
    head, *rest = (f"| {' | '.join(row)} |\n" for row in rows)
    return head + "|" + " --- |" * len(rows[0]) + "\n" + "".join(rest)
