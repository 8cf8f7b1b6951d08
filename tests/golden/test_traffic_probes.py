"""The aggregated traffic and metric probes of the peer, replayed by the plain reference engine.

Arrivals, prefixes, sessions, traces, refusals and report definitions are what these probes pin; the engine under them
is deliberately the slow, readable one.
"""

from typing import Any

import pytest

from benchmarks.fidelity import check_case
from tests.golden.files import cases
from tests.reference.plain_replay import replay

PROBES = {
    probe["id"]: probe
    for probe in cases("traffic-probes")
    if probe["id"][0] in "TRMB" and not probe["id"].startswith(("B20", "B21", "B22", "B23"))
}


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES.keys())
def test_traffic_probe_replayed_equals_the_peer(probe: dict[str, Any]) -> None:
    verdict = check_case(probe, None, {}, replay)
    assert verdict.problem is None
    assert [found for found in verdict.deviations if found.is_out] == []
    assert verdict.deviations or "refused" in probe["expected"]


def test_traffic_probes_are_all_here() -> None:
    assert len(PROBES) == 97
