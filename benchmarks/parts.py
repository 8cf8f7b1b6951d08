"""The parts of `run.py bench`: how each is run, and what its result says about the goals."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Result = Any


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure beside its goal. at_least: whether more is better."""

    what: str
    goal: float
    measured: float
    unit: str
    at_least: bool = False

    @property
    def ratio(self) -> float:
        """How well the goal is reached: 1 and more is met."""
        if self.at_least:
            return self.measured / self.goal
        return self.goal / self.measured if self.measured > 0 else math.inf

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached."""
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal


@dataclass(frozen=True, slots=True)
class Part:
    """A command that leaves a JSON result; `{out}`, `{peer}` and `{url}` stand for where to, the peer and a service."""

    name: str
    command: str
    goals: Callable[[Result], Iterator[Goal]]
    within_s: float = 900.0

    def words(self, **places: str) -> list[str]:
        """The command as arguments of this Python."""
        return [word.format(**places) for word in self.command.split()]

    def needs(self, place: str) -> bool:
        """Whether the command names a place."""
        return f"{{{place}}}" in self.command


def _replay(result: Result) -> Iterator[Goal]:
    for row in result["rows"]:
        if "ratio" in row and row["goal"] is not None:
            yield Goal(f"{row['load']}, beside the peer", row["goal"], row["ratio"], "x", at_least=True)
    yield Goal("kernel ready in a new process", 3.0, result["start"]["warm_s"], "s")
    yield Goal("memory of that process", 450.0, result["start"]["rss_mb"], "MB")


def _search(result: Result) -> Iterator[Goal]:
    for row in result["spaces"]:
        if "agrees" in row:
            yield Goal(f"{row['space']}: answer of brute force", 1.0, float(row["agrees"]), "of 1", at_least=True)


def _recommend(result: Result) -> Iterator[Goal]:
    for row in result["searches"]:
        name = row["search"]
        yield Goal(f"{name}: whole search beside the peer's", 100.0, row["speedup"], "x", at_least=True)
        if row["ours"] is not None:
            yield Goal(f"{name}: best beside the peer's best", 1.0, row["ours"] / row["theirs"], "x", at_least=True)


def _cold(result: Result) -> Iterator[Goal]:
    yield Goal("service start to ready", 4.0, result["ready_s"], "s")
    yield Goal("first study, longer than a warm one by", 5.0, result["first_study_s"] - result["warm_study_s"], "s")
    yield Goal("warm study of 405 combinations, POST to succeeded", 1.5, result["warm_study_s"], "s")
    yield Goal("memory of a worker process at start", 450.0, max(result["worker_at_start_mb"]), "MB")


def _persist(result: Result) -> Iterator[Goal]:
    yield Goal("trials persisted", 1000.0, result["trials_per_s"], "/s", at_least=True)


def _upload(result: Result) -> Iterator[Goal]:
    yield Goal(f"API memory, upload of {result['rows']:,} rows", 250.0, result["rss_peak_mb"], "MB")


def _api(result: Result) -> Iterator[Goal]:
    stored, running = result["stored"], result["running"]
    floor = f"99th percentile (a server that does nothing: {result['bare']['304']['p99_ms']:.1f} ms)"
    yield Goal(f"full page of candidates, {floor}", 25.0, stored["full_page"]["200"]["p99_ms"], "ms")
    yield Goal(f"unchanged page (304), {floor}", 8.0, stored["unchanged"]["304"]["p99_ms"], "ms")
    yield Goal("study watched by everybody, slowed by", 15.0, 100.0 * running["slowed_by"], "%")


def _no_goals(_result: Result) -> Iterator[Goal]:
    return iter(())


PARTS = [
    Part("cold", "-m benchmarks.cold", _cold, 180.0),
    Part("persist", "-m benchmarks.persist --trials 10000", _persist, 90.0),
    Part("api", "-m benchmarks.api --seconds 5 --pairs 1 --trials 200", _api, 180.0),
    Part("trace_upload", "-m benchmarks.trace_upload --rows 500000", _upload, 90.0),
    Part("scale", "-m benchmarks.scale --out {out}", _no_goals, 300.0),
    Part("search", "-m benchmarks.search --out {out}", _search, 240.0),
    Part("elastic", "-m benchmarks.elastic --runs 3 --out {out}", _no_goals, 90.0),
    Part("replay", "-m benchmarks.replay --peer {peer} --runs 1 --out {out}", _replay, 420.0),
    Part(
        "recommend",
        "-m benchmarks.recommend tests/golden/recommend-public.json.gz {url} --peer {peer} --repeats 1 --within 100 "
        "--out {out}",
        _recommend,
        360.0,
    ),
    Part("planner", "-m benchmarks.planner --out {out}", _no_goals, 420.0),
]
