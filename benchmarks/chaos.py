"""Random kills and outages over many concurrent studies; every result must equal that of a calm run.

    python -m benchmarks.chaos --seed 1 --misfortunes 20 --studies 10

Starts Postgres, Redis, an API process and a worker of its own, around a stand-in for the replay. Prints JSON; exit code
1 if anything was lost, doubled or different.
"""

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.scratch import circumstances
from tests.site import Site, running_site, suffer

_SHAPE: dict[str, Any] = {"trials": 200, "trial_ms": 50, "round": 50, "sweep": {"parallel_evals": 2}}


def differences(site: Site, study_id: str, calm_id: str) -> list[str]:
    """What is wrong with a study, compared with a calm one."""
    study = site.study(study_id)
    found = []
    if study["status"] != "succeeded":
        found.append(f"{study_id} ended {study['status']}")
    progress = study["progress"]
    if (progress["trials_total"], progress["done"], progress["failed"]) != (_SHAPE["trials"], _SHAPE["trials"], 0):
        found.append(f"{study_id} counts {progress}")
    if site.results(study_id) != site.results(calm_id):
        found.append(f"{study_id} has other candidates")
    return found


def run(seed: int, num_misfortunes: int, num_studies: int) -> dict[str, Any]:
    """One long run."""
    with running_site() as site:
        calm = site.submit(**_SHAPE)
        site.wait_for_success(calm)
        started = time.monotonic()
        tried = [site.submit(**_SHAPE) for _ in range(num_studies)]
        struck = suffer(site, seed, num_misfortunes, pause_s=5, outage_s=3)
        while not all(site.study(each)["finished_at"] for each in tried):
            time.sleep(0.5)
        seconds = time.monotonic() - started
        wrong = [each for study_id in tried for each in differences(site, study_id, calm)]
    return {"seconds": seconds, "struck": struck, "studies": num_studies, "wrong": wrong}


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--misfortunes", type=int, default=20)
    parser.add_argument("--studies", type=int, default=10)
    arguments = parser.parse_args()
    figures = run(arguments.seed, arguments.misfortunes, arguments.studies)
    print(json.dumps({"arguments": vars(arguments), **figures, **circumstances()}, indent=1))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
