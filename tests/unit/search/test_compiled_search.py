"""The search against brute force on cut-down spaces, where the compiled replay judges and equal work is shared."""

from collections.abc import Mapping

import pytest

from app.schemas.status import TrialStatus
from tests.unit.search import world
from tests.unit.search.world import brute_force, config_of, run, scored
from workers.replay.fleet import Fleet
from workers.replay.metrics import Metric, Sla
from workers.replay.reports import Reports
from workers.search import outline
from workers.search.history import Told
from workers.search.pareto import front_of
from workers.search.score import ranked
from workers.traffic.requests import RequestBatch

MOE = "Qwen/Qwen3-30B-A3B-FP8"
DISAGG: dict[str, object] = {
    "deployment_mode": ["agg", "disagg"],
    "agg_max_num_seqs": [256],
    "prefill_max_num_batched_tokens": [8192],
    "prefill_max_num_seqs": [1, 64],
    "decode_max_num_seqs": [256],
}

SPACES: dict[str, dict[str, dict[str, object]]] = {
    "small-closed": {"search_space": {"gpu_budget": 4}},
    "two-backends": {"search_space": {"backend": ["vllm", "sglang"], "agg_max_num_seqs": [256]}},
    "large-open": {
        "search_space": {"gpu_budget": 16, "agg_max_num_seqs": [256]},
        "workload": {"concurrency": None, "request_rate": 40, "num_request_ratio": 1},
    },
    "large-closed": {"search_space": {"gpu_budget": 16, "agg_max_num_seqs": [256, 1024]}},
    "moe": {"search_space": {"model_name": MOE, "agg_max_num_seqs": [256]}},
    "moe-both": {"search_space": {"model_name": MOE, **DISAGG, "gpu_budget": 3}},
    "32-gpus-both": {"search_space": {**DISAGG, "gpu_budget": 32, "min_gpu_budget": 32}},
}


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replay by the compiled kernel; twins and bounds from the first candidate on."""
    known: dict[Sla | None, Reports] = {}

    def measure(fleet: Fleet, batch: RequestBatch, sla: Sla | None) -> Mapping[str, Metric]:
        return known.setdefault(sla, Reports(sla)).of(fleet, batch).metrics

    monkeypatch.setattr(world, "measure", measure)
    monkeypatch.setattr(world, "_REPORTS", {})
    monkeypatch.setattr(outline, "EVALUATE_ALL", 0)


def feasible(history: list[Told]) -> list[Told]:
    return [told for told in history if told.status == TrialStatus.FEASIBLE]


@pytest.mark.parametrize("target", ["throughput_per_gpu", "e2e_latency", "pareto"])
@pytest.mark.parametrize("name", SPACES)
def test_auto_finds_what_brute_force_finds(name: str, target: str) -> None:
    blocks = {block: dict(fields) for block, fields in SPACES[name].items()}
    config = config_of(**blocks, goal={"target": target})
    history, coverage = run(config)
    everything = brute_force(config)
    ours, theirs = ([scored(told) for told in feasible(each)] for each in (history, everything))
    if config.goal.is_pareto:
        fronts = [{member.values for member in front_of(config.goal.objectives, each)} for each in (ours, theirs)]
        assert fronts[0] == fronts[1]
    else:
        assert ranked(ours)[0].canonical == ranked(theirs)[0].canonical
    assert coverage.exhaustive
    assert coverage.total == len(everything)
