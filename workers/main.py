"""The Celery entry: `celery -A workers.main worker`.

The replay kernel is compiled once, in the main process, before it forks; each pool process then starts warm, drops the
database connections that it inherited, and computes with one thread.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy is imported, which reads them once

from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from celery.signals import worker_init, worker_process_init, worker_ready, worker_shutting_down  # noqa: E402

from app.db.engine import engine, forget_connections  # noqa: E402
from app.log import configure_logging  # noqa: E402
from app.queue import celery as app  # noqa: E402
from workers import lease, tasks  # noqa: E402
from workers.replay.fleet import Fleet, Pool  # noqa: E402
from workers.replay.loop import replay  # noqa: E402
from workers.rescue import Rescuer  # noqa: E402
from workers.timing.fixed import FixedTimes  # noqa: E402
from workers.traffic.requests import RequestBatch  # noqa: E402

__all__ = ["app", "tasks"]
_rescuer = Rescuer()


def warm_up() -> None:
    """Replay two requests on the smallest fleet: loads the compiled kernel, or compiles it if there is none yet."""
    pool = Pool("agg", "vllm", 1, 1, 1, 64, 16, 2048, 8, FixedTimes(1.0, 1.0))
    zeros, ones = np.zeros(2), np.ones(2, dtype=np.int64)
    sessions = np.arange(2, dtype=np.int64)
    replay(Fleet(agg=pool), RequestBatch(zeros, zeros, 64 * ones, 2 * ones, sessions, sessions, in_flight_cap=1))


@worker_init.connect  # type: ignore[untyped-decorator]
def _warm_up(**_: Any) -> None:
    configure_logging()
    warm_up()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _start_pool_process(**_: Any) -> None:
    forget_connections()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _start_rescuer(**_: Any) -> None:
    _rescuer.start()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _leave(**_: Any) -> None:
    lease.leave()
    _rescuer.stop()
    engine().dispose()
