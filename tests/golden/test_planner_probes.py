"""The planner probes of the peer: who is added and drained when, engine time, ticks and latencies."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.replay_calls import read_call
from tests.golden.files import case, cases
from tests.reference.elastic import replay_elastic as plain_elastic
from workers.planner.observation import Observation, Role
from workers.planner.planner import Planner
from workers.replay.elastic import replay_elastic
from workers.replay.elastic_outcome import ElasticOutcome
from workers.replay.metrics import Metric
from workers.scaling import new_planner

PROBES = {probe["id"]: probe for probe in cases("traffic-probes") if probe["id"].startswith("P0")}


def outcome_of(probe: dict[str, Any]) -> ElasticOutcome:
    """A replay of a probe, with the planner its call asks for."""
    ready = read_call(probe)
    assert ready.planner is not None
    planner = new_planner(ready.planner, ready.fleet)
    return replay_elastic(ready.fleet, ready.batch, planner)


def lifecycle_of(outcome: ElasticOutcome) -> list[tuple[float, int, str]]:
    """(instant, engine, what it became), of all engines that were not there from the start or did not stay."""
    moments: list[tuple[float, int, str]] = []
    for life in outcome.lives:
        if life.created_ms > 0 and life.created_ms != life.ready_ms:
            moments.append((life.created_ms, life.engine, "worker_starting"))
        if life.ready_ms:
            moments.append((life.ready_ms, life.engine, "worker_ready"))
        if life.drained_ms is not None:
            moments.append((life.drained_ms, life.engine, "worker_draining"))
        if life.removed_ms is not None:
            moments.append((life.removed_ms, life.engine, "worker_removed"))
    return sorted(moments)


def wanted_metrics(probe: dict[str, Any]) -> dict[str, Metric]:
    """The numbers a probe expects of the report."""
    return {name: value for name, value in probe["expected"].items() if not isinstance(value, list)}


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES.keys())
def test_planner_probe_replayed_equals_the_peer(probe: dict[str, Any]) -> None:
    outcome = outcome_of(probe)
    expected = probe["expected"]
    events = [[event.instant_ms / 1000.0, event.role, event.before, event.after] for event in outcome.events]
    assert events == expected["scaling"]
    recorded = [(instant, *each) for instant, _, engines in expected["lifecycle"] for each in engines]
    assert lifecycle_of(outcome) == sorted(recorded)
    report, wanted = outcome.report(), wanted_metrics(probe)
    assert wanted.keys() <= report.keys()
    assert {name: report[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)


class Watched:
    """A planner, and what it has seen."""

    def __init__(self, planner: Planner) -> None:
        self.interval_ms, self.startup_ms = planner.interval_ms, planner.startup_ms
        self._planner = planner
        self.seen: list[Observation] = []

    def decide(self, observation: Observation) -> Mapping[Role, int]:
        """As the planner."""
        self.seen.append(observation)
        return self._planner.decide(observation)


def test_first_tick_shows_the_last_pass_and_its_queue() -> None:
    probe = case("traffic-probes", "P02-startup-7s")
    ready = read_call(probe)
    assert ready.planner is not None
    planner = new_planner(ready.planner, ready.fleet)
    watched = Watched(planner)
    replay_elastic(ready.fleet, ready.batch, watched)
    (record,) = watched.seen[0].roles["agg"].records
    assert (record.num_decode_requests, record.decode_kv_tokens, record.queued_prefill_tokens) == (40, 10897, 22784)


def test_planner_probe_with_drains_replayed_plainly_is_the_same() -> None:
    probe = case("traffic-probes", "P05-down-drain")
    ready = read_call(probe)
    assert ready.planner is not None
    planner = new_planner(ready.planner, ready.fleet)
    plain = plain_elastic(ready.fleet, ready.batch, planner)
    assert plain.outcomes.decode_worker_s == pytest.approx(probe["expected"]["decode_worker_seconds"], rel=1e-9)
    assert [event[:4] for event in plain.events] == [(5e3, "agg", 4, 3), (1e4, "agg", 3, 2), (1.5e4, "agg", 2, 1)]
