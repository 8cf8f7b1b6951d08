"""Trials per second through claim, verdict and conductor, with nothing to evaluate.

    python -m benchmarks.persist --trials 20000 --processes 2

Needs DATABASE_URL; works on a scratch database. Processes take messages from a queue in memory, as pool processes take
them from the broker, and run the very functions that the tasks run; only the replay is replaced, by verdicts with
reports of realistic size. Prints JSON.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from multiprocessing.queues import JoinableQueue
from typing import Any
from uuid import UUID

from benchmarks.scratch import circumstances, core_time, scratch_database

_METRICS = {f"p{number}_of_some_latency_ms": 1000.0 / (number + 1) for number in range(90)}
_TIMELINE = {name: [float(n) / 7 for n in range(200)] for name in ("edge_ms", "in_flight", "queued", "kv_tokens")}


def _verdicts(_config: Any, deployments: Sequence[Any], _trace: Any, _should_stop: Callable[[], bool]) -> Iterator[Any]:
    from app.schemas.status import TrialStatus
    from workers.verdict import Verdict

    for each in deployments:
        score = float(hash(each.context_length) % 100_003)
        report: dict[str, object] = {"metrics": _METRICS, "timeline": _TIMELINE}
        yield Verdict(TrialStatus.FEASIBLE, None, score, (score,), {"concurrency": 64}, dict(_METRICS), report, 1e-4)


def _install(messages: "JoinableQueue[tuple[str, list[Any]]]") -> None:
    """Put the stand-ins where the thin half takes pure half and broker from."""
    from tests.pure_fake import install

    def send(name: str, arguments: list[Any]) -> bool:
        messages.put((name, arguments))
        return True

    def announce(_study_id: UUID, _version: int) -> None:
        """Nobody listens."""

    install()
    stand_ins: dict[str, dict[str, Any]] = {"workers.chunk": {"evaluate_many": _verdicts}, "app.queue": {"_send": send}}
    stand_ins |= {name: {"announce": announce} for name in ("workers.persist", "workers.conductor")}
    for module, members in stand_ins.items():
        for name, member in members.items():
            setattr(import_module(module), name, member)


def _work(messages: "JoinableQueue[tuple[str, list[Any]]]") -> None:
    """One pool process."""
    _install(messages)
    from workers import tasks

    while True:
        name, arguments = messages.get()
        getattr(tasks, name.rpartition(".")[2])(*arguments)
        messages.task_done()


def _submit(num_trials: int) -> UUID:
    from app import studies
    from app.auth import SCOPES, Caller
    from app.schemas.study import SmartSearchConfig
    from tests.thin import document

    config = SmartSearchConfig.model_validate(document(trials=num_trials))
    return studies.create_study(Caller("default", frozenset(SCOPES)), studies.Submission(config)).study.id


def _run(num_trials: int, num_processes: int) -> dict[str, Any]:
    messages: JoinableQueue[tuple[str, list[Any]]] = multiprocessing.get_context("spawn").JoinableQueue()
    spawn = multiprocessing.get_context("spawn")
    pool = [spawn.Process(target=_work, args=(messages,), daemon=True) for _ in range(num_processes)]
    for each in pool:
        each.start()
    warm_up = _submit(64)
    messages.put(("spica.advance_study", [str(warm_up)]))
    messages.join()
    study_id = _submit(num_trials)
    used_s = sum(core_time(each.pid or 0).ran_s for each in pool)
    started = time.perf_counter()
    messages.put(("spica.advance_study", [str(study_id)]))
    messages.join()
    wall_s = time.perf_counter() - started
    used_s = sum(core_time(each.pid or 0).ran_s for each in pool) - used_s
    for each in pool:
        each.kill()
    return {"trials_per_s": num_trials / wall_s, "cpu_ms_per_trial": 1000 * used_s / num_trials, **_end(study_id)}


def _end(study_id: UUID) -> dict[str, Any]:
    from app.db.engine import engine, transaction
    from app.studies import study_to_read

    with transaction() as db:
        row = study_to_read(db, study_id)
        ended = {"status": row.status, "feasible": row.num_feasible, "rounds": row.round}
    engine().dispose()
    return ended


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.persist", description=__doc__)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    with scratch_database() as url:
        os.environ["DATABASE_URL"] = url
        figures = _run(arguments.trials, arguments.processes)
    print(json.dumps({"arguments": vars(arguments), **figures, **circumstances()}, indent=1))


if __name__ == "__main__":
    main()
