"""The plain replay against the peer simulator: every golden case with fixed or polynomial step times."""

from typing import Any

import numpy as np
import pytest

from tests.golden import files
from tests.reference.plain_replay import replay
from tests.unit.workers.replay.golden_rows import (
    expected_metrics,
    expected_rows,
    observed_moments,
    observed_row,
    probe_moments,
    relative_tolerance,
)
from workers.cases import read_case
from workers.errors import StuckError, UnsupportedError
from workers.replay.metrics import report

_MOST_OUTPUT_TOKENS = 60_000
_FILES = ("engine-probes", "traffic-probes", "oracle-public")


def _is_replayable(case: dict[str, Any]) -> bool:
    """Runs here in seconds and needs neither performance data nor the companion stack."""
    if "engine" not in case.get("config", {}) or case["expected"].get("refused"):
        return False
    workers = case["config"]["engine"]["workers"].values()
    if any(worker.get("timing", {}).get("type", "default") == "default" for worker in workers):
        return False
    try:
        return int(read_case(case, files.TRACES).batch.output_tokens.sum()) <= _MOST_OUTPUT_TOKENS
    except (UnsupportedError, ValueError):
        return False


CASES = [(name, case) for name in _FILES for case in files.cases(name) if _is_replayable(case)]


def _params(stuck: bool) -> list[Any]:
    chosen = [(name, case) for name, case in CASES if ("error_contains" in case["expected"]) == stuck]
    return [pytest.param(name, case, id=f"{name}:{case['id']}") for name, case in chosen]


@pytest.mark.parametrize(("file", "case"), _params(stuck=False))
def test_plain_replay_of_a_golden_case_gives_the_peers_numbers(file: str, case: dict[str, Any]) -> None:
    reference = read_case(case, files.TRACES)

    outcomes = replay(reference.fleet, reference.batch)

    metrics = report(outcomes, reference.batch, reference.fleet, reference.sla)
    for name, value in expected_metrics(case).items():
        assert (metrics[name] or 0.0) == pytest.approx(value, rel=relative_tolerance(name)), name
    for request, row in expected_rows(file, case, reference).items():
        seen = observed_row(outcomes, reference, request)
        for name in row.keys() & seen.keys():
            assert seen[name] == (None if row[name] is None else pytest.approx(row[name], rel=1e-9)), (request, name)
    if "per_request" in case["expected"] and reference.fleet.agg:
        seen_moments = np.array(observed_moments(outcomes, reference))
        np.testing.assert_allclose(seen_moments, np.array(probe_moments(case["expected"]["per_request"])), rtol=1e-9)


@pytest.mark.parametrize(("file", "case"), _params(stuck=True))
def test_plain_replay_of_an_engine_that_cannot_go_on_raises_stuck(file: str, case: dict[str, Any]) -> None:
    reference = read_case(case, files.TRACES)

    with pytest.raises(StuckError):
        replay(reference.fleet, reference.batch)
