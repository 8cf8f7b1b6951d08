"""The Celery entry: `celery -A workers.main worker`.

The replay kernel is loaded in the main process before it forks, compiled first by processes of their own where it is not on
disk; each pool process then starts warm, drops the database connections that it inherited, and computes with one thread.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy is imported, which reads them once

from typing import Any  # noqa: E402

from celery.signals import (  # noqa: E402
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutting_down,
)

from app.config import SERVICE_VERSION, settings  # noqa: E402
from app.db.engine import engine, forget_connections  # noqa: E402
from app.log import configure_logging  # noqa: E402
from app.queue import celery as app  # noqa: E402
from app.queue import forget_broker  # noqa: E402
from app.telemetry import start_tracing, stop_tracing  # noqa: E402
from workers import lease, tasks  # noqa: E402
from workers.replay.reports import warm  # noqa: E402
from workers.rescue import rescuer  # noqa: E402
from workers.timing.aic import persist_rest  # noqa: E402
from workers.watchdog import watchdog  # noqa: E402

__all__ = ["app", "tasks"]
_rescuer, _watchdog = rescuer(), watchdog()


@worker_init.connect  # type: ignore[untyped-decorator]
def _warm_up(**_: Any) -> None:
    configure_logging()
    warm()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _start_pool_process(**_: Any) -> None:
    forget_connections()
    forget_broker()
    start_tracing("spica-worker", SERVICE_VERSION)
    os.nice(settings().worker_nice)


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _end_pool_process(**_: Any) -> None:
    persist_rest()
    stop_tracing()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _start_threads(**_: Any) -> None:
    _rescuer.start()
    _watchdog.start()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _leave(**_: Any) -> None:
    lease.leave()
    _rescuer.stop()
    _watchdog.stop()
    engine().dispose()
