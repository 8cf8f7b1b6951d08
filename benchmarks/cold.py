"""A fresh service: seconds until it is ready, its first study, the same study warm, memory, and what the time goes into.

    python -m benchmarks.cold

Needs DATABASE_URL and REDIS_URL; runs a service of its own on a scratch database. `replayed_s` is the same study searched
and replayed in one process without any service: the part of the time that is the work itself. Prints JSON.
"""

import argparse
import json
import statistics
from typing import Any

import httpx
import psycopg

from app.schemas.study import SmartSearchConfig
from benchmarks.scratch import circumstances
from benchmarks.served import STUDIES, served
from benchmarks.service import family_mb, running_service
from benchmarks.studies import run
from workers.replay.reports import warm

_REPEATS = 5

_STAGES = """
    SELECT started_at - created_at, first - started_at, last - first, ranked_at - last, finished_at - ranked_at,
           finished_at - created_at, replay_s
    FROM studies, (SELECT min(started_at) AS first, max(finished_at) AS last FROM trials WHERE study_id = %(id)s) AS t
    WHERE id = %(id)s
"""
_NAMES = ("to_begin_s", "to_first_trial_s", "trials_s", "check_and_rank_s", "end_s")


def main() -> None:
    """Run the command."""
    argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__.splitlines()[0]).parse_args()
    config = next(iter(STUDIES.values()))
    found = _served(config)
    print(json.dumps({"circumstances": circumstances(), **found, "replayed_s": _replayed_s(config)}, indent=1))


def _served(config: dict[str, Any]) -> dict[str, Any]:
    with running_service() as service, httpx.Client(base_url=service.url, timeout=120) as client:
        at_start_mb = family_mb(service.worker_pids[0])
        _, first_s = served(client, config)
        warm = [served(client, config) for _ in range(_REPEATS)]
        stages = [_stages(service.database_url, study["id"], seconds) for study, seconds in warm]
        return {
            "ready_s": service.ready_s,
            "first_study_s": first_s,
            "warm_study_s": statistics.median(seconds for _, seconds in warm),
            "stages": {name: statistics.median(each[name] for each in stages) for name in stages[0]},
            "worker_at_start_mb": at_start_mb,
            "worker_mb": family_mb(service.worker_pids[0]),
            "api_mb": family_mb(service.api_pid),
        }


def _stages(database_url: str, study_id: str, seconds: float) -> dict[str, float]:
    """Where the seconds of a study went, by the clock of the database; answer_s: what the client waited beside that.

    replays_s: computing time of all trials, by as many processes as there are.
    """
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        row = connection.execute(_STAGES, {"id": study_id}).fetchone()
    assert row is not None
    *spans, whole, replays_s = row
    found = {name: span.total_seconds() for name, span in zip(_NAMES, spans, strict=True)}
    return {**found, "answer_s": seconds - whole.total_seconds(), "replays_s": float(replays_s)}


def _replayed_s(config: dict[str, Any]) -> float:
    """Seconds of search and replays in this process, with known step times."""
    warm()
    study = SmartSearchConfig.model_validate(config)
    run(study)
    return min(run(study).seconds for _ in range(_REPEATS))


if __name__ == "__main__":
    main()
