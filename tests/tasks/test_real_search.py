"""Whole studies with the real search and the real replays: whoever does the work, the answer is the same."""

import json
import queue
import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import studies
from app.queue import celery
from app.schemas.study import SmartSearchConfig
from tests.thin import ANYONE, Desk, execute, results, study, trials
from workers import chunk, conductor, evaluate, ledger, plan
from workers.search import search
from workers.stability import stability

pytestmark = pytest.mark.services

EXAMPLE = Path(__file__).parents[2] / "openapi" / "examples" / "three-backends.json"
CONFIG = json.loads(EXAMPLE.read_text()) | {
    "workload": {"isl": 200, "osl": 8, "concurrency": 24, "num_request_ratio": 3},
    "goal": {"target": "pareto"},
}


@pytest.fixture
def real(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The desk with the real pure half behind it, and chunks small enough to be shared out."""
    for module, name, member in (
        (conductor, "make_plan", plan.plan),
        (conductor, "Search", search.Search),
        (conductor, "stability", stability),
        (chunk, "evaluate_many", evaluate.evaluate_many),
    ):
        monkeypatch.setattr(module, name, member)
    monkeypatch.setattr("workers.dispatch._SMALLEST_CHUNK_S", 1e-6)
    return desk


def submitted(document: dict[str, Any] = CONFIG) -> Any:
    config = SmartSearchConfig.model_validate(document)
    return studies.create_study(ANYONE, studies.Submission(config)).study.id


def run(desk: Desk, num_workers: int) -> tuple[Any, ...]:
    """Coverage and candidates of a study that so many threads worked on."""
    study_id, messages = submitted(), queue.Queue[tuple[str, list[Any]] | None]()
    desk._send = lambda name, arguments: messages.put((name, arguments)) or True  # type: ignore[method-assign]

    def work() -> None:
        while (message := messages.get()) is not None:
            celery.tasks[message[0]](*message[1])
            messages.task_done()

    workers = [threading.Thread(target=work) for _ in range(num_workers)]
    for worker in workers:
        worker.start()
    messages.put(("spica.advance_study", [str(study_id)]))
    messages.join()
    for _ in workers:
        messages.put(None)
    for worker in workers:
        worker.join()
    assert study(study_id).status == "succeeded"
    return study(study_id).coverage, results(study_id)


def test_any_number_of_workers_gives_the_same_candidates(real: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def through(desk: Desk) -> Callable[[str, list[Any]], bool]:
        return lambda name, arguments: desk._send(name, arguments)

    monkeypatch.setattr("app.queue._send", through(real))
    alone = run(real, 1)
    assert alone[0]["bounded_out"] > 0
    assert len(alone[1]) > 16
    for num_workers in (2, 4):
        assert run(real, num_workers) == alone


def test_a_resumed_study_gives_the_same_candidates(real: Desk) -> None:
    calm = real.run(submitted())
    broken, num_left = submitted(), 5

    def dies(_name: str, _arguments: list[Any]) -> bool:
        nonlocal num_left
        num_left -= 1
        return num_left >= 0

    real.messages.append(("spica.advance_study", [str(broken)]))
    real.work(dies)
    ledger._kept.clear()
    execute("UPDATE trials SET sent_at = NULL, chunk = NULL WHERE study_id = :id AND status = 'queued'", id=broken)
    resumed = real.run(broken)
    assert num_left < 0
    assert (resumed.status, resumed.coverage) == ("succeeded", calm.coverage)
    assert results(broken) == results(calm.id)


@pytest.mark.parametrize(
    "workload",
    [
        {"isl": 1000, "osl": 100, "concurrency": 500, "num_request_ratio": 40},
        {"isl": 1000, "osl": 1000, "concurrency": 20, "num_request_ratio": 40},
        {"isl": 1000, "osl": 100, "request_rate": 20, "num_request_ratio": 100, "arrival": "poisson"},
    ],
    ids=["closed", "long answers", "poisson"],
)
def test_an_estimate_is_of_the_order_of_the_replays(real: Desk, workload: dict[str, Any]) -> None:
    space = {**CONFIG["search_space"], "backend": ["vllm"], "parallel_configs": [{"tp": 4}, {"tp": 8}]}
    limits = {"agg_max_num_batched_tokens": [8192], "agg_max_num_seqs": [256]}
    document = {"search_space": {**space, **limits}, "workload": workload, "goal": {"target": "throughput"}}
    # The first study also looks up step times, which later ones know.
    ended = [real.run(submitted(document)) for _ in range(2)][1]
    took_s = statistics.median(trial.wall_s or 0.0 for trial in trials(ended.id))
    assert ended.plan is not None
    estimated_s = ended.plan["estimated_seconds"] / ended.plan["budget"]["expected_trials"]
    assert estimated_s / 5 < took_s < estimated_s * 5
