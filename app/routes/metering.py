"""Prometheus metrics of an API process. No label ever holds an id, a key or a path that a client made up."""

import time
from typing import Any

from prometheus_client import Gauge, Histogram
from sqlalchemy.orm import Session

from app.catalog.snapshot import PACKAGE
from app.config import SERVICE_VERSION
from app.queue import STUDY_QUEUE, TRIAL_QUEUE, num_waiting
from app.studies import count_by_status, totals

LATENCY = Histogram(
    "spica_request_seconds",
    "Time to answer, by route and status",
    ["method", "route", "status"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 60),
)
STUDIES = Gauge("spica_studies", "Studies by status", ["status"])
TRIALS = Gauge("spica_trials", "Trials of all stored studies by outcome", ["outcome"])
QUEUED = Gauge("spica_queue_messages", "Messages that wait with the broker; -1 while it is away", ["queue"])


REPLAY_SECONDS = Gauge("spica_replay_seconds", "Computing time that the trials of all stored studies took")
STUDY_VERSIONS = Gauge("spica_study_versions", "Sum of the versions of all stored studies: visible changes so far")
BUILD = Gauge("spica_build_info", "Always 1; what answers, by label", ["version", "perf_data"])
BUILD.labels(SERVICE_VERSION, " ".join(PACKAGE)).set(1)


def gauges(db: Session) -> None:
    """Bring the gauges up to date."""
    STUDIES.clear()
    for status, num in count_by_status(db).items():
        STUDIES.labels(status).set(num)
    sums = totals(db)
    for outcome, num in sums.trials.items():
        TRIALS.labels(outcome).set(num)
    REPLAY_SECONDS.set(sums.replay_s)
    STUDY_VERSIONS.set(sums.versions)
    for queue in (STUDY_QUEUE, TRIAL_QUEUE):
        waiting = num_waiting(queue)
        QUEUED.labels(queue).set(-1 if waiting is None else waiting)


class Metering:
    """ASGI middleware that times every request but the streams."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            if not route.endswith("/events"):
                LATENCY.labels(scope["method"], route, status).observe(time.perf_counter() - started)
