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

from app.schemas.study import SmartSearchConfig
from benchmarks.scratch import circumstances
from benchmarks.served import STUDIES, served
from benchmarks.service import family_mb, running_service
from benchmarks.studies import run
from workers.replay.reports import warm

_REPEATS = 5


def main() -> None:
    """Run the command."""
    argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__.splitlines()[0]).parse_args()
    config = next(iter(STUDIES.values()))
    found = _served(config)
    print(json.dumps({"circumstances": circumstances(), **found, "replayed_s": _replayed_s(config)}, indent=1))


def _served(config: dict[str, Any]) -> dict[str, Any]:
    with running_service() as service, httpx.Client(base_url=service.url, timeout=120) as client:
        at_start_mb = family_mb(service.worker_pid)
        _, first_s = served(client, config)
        warm_s = statistics.median(served(client, config)[1] for _ in range(_REPEATS))
        return {
            "ready_s": service.ready_s,
            "first_study_s": first_s,
            "warm_study_s": warm_s,
            "worker_at_start_mb": at_start_mb,
            "worker_mb": family_mb(service.worker_pid),
            "api_mb": family_mb(service.api_pid),
        }


def _replayed_s(config: dict[str, Any]) -> float:
    """Seconds of search and replays in this process, with known step times."""
    warm()
    study = SmartSearchConfig.model_validate(config)
    run(study)
    return min(run(study).seconds for _ in range(_REPEATS))


if __name__ == "__main__":
    main()
