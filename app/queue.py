"""The Celery instance, task names, and the only senders of messages.

A message carries ids and is only a wake-up call: losing or repeating one is harmless, since the rows say what there is
to do. Sending therefore never fails a caller: a broker that is away costs one short attempt and a log line.
"""

from functools import lru_cache
from typing import Any
from uuid import UUID

import structlog
from celery import Celery
from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.pools import ProducerPool
from redis import Redis
from redis.exceptions import RedisError

from app.config import VERSIONS_CHANNEL, settings
from app.telemetry import carried

log = structlog.get_logger()

ADVANCE_STUDY = "spica.advance_study"
RUN_TRIALS = "spica.run_trials"
RESCUE = "spica.rescue"
PRUNE = "spica.prune"
STUDY_QUEUE = "a.studies"
TRIAL_QUEUE = "b.trials"
VISIBILITY_TIMEOUT_S = 600
_SOCKET_TIMEOUT_S = 2.0
_MOST_SENDERS = 10
_LONGEST_RETRY_PAUSE_S = 3.0


class _PersistentConnection(Connection):
    """A connection that a worker tries again every few seconds. By default the pauses grow to half a minute, which is how
    long work would stand still after a broker that was away for some minutes came back."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect, with short pauses between attempts."""
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": _LONGEST_RETRY_PAUSE_S}
        return super().ensure_connection(*args, **{**pauses, **kwargs})  # type: ignore[no-untyped-call]


class _Broker(AMQP):  # type: ignore[misc]
    Connection = _PersistentConnection


def _queue(name: str) -> Queue:
    return Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]


def _celery() -> Celery:
    """The Celery application. Late acknowledgement and rejection keep the message of a killed process; the visibility
    timeout is only the slow way back, since the rescuer re-sends from the rows within seconds.

    The queues' names sort, studies before trials, so that a conductor step never waits behind a queue of replays.
    """
    app = Celery("spica", broker=settings().redis_url, amqp=_Broker)
    app.conf.update(
        # Each queue has an exchange of its own: by default all would share one, and get each other's messages.
        task_queues=[_queue(STUDY_QUEUE), _queue(TRIAL_QUEUE)],
        task_default_queue=TRIAL_QUEUE,
        task_routes={name: {"queue": STUDY_QUEUE} for name in (ADVANCE_STUDY, RESCUE, PRUNE)},
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_soft_shutdown_timeout=10,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # Redis refuses writes while its disk is full or another one takes over: as if it were away.
        broker_channel_error_retry=True,
        beat_schedule={
            "rescue": {"task": RESCUE, "schedule": 5.0, "options": {"expires": 5.0}},
            "prune": {"task": PRUNE, "schedule": 3600.0, "options": {"expires": 3600.0}},
        },
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "queue_order_strategy": "sorted",
            "socket_connect_timeout": _SOCKET_TIMEOUT_S,
            "socket_keepalive": True,
        },
    )
    return app


celery = _celery()


@lru_cache(maxsize=1)
def redis_client() -> Redis:
    """A plain Redis client of this process, for announcements and queue lengths; gives up after two seconds."""
    return Redis.from_url(
        settings().redis_url, socket_timeout=_SOCKET_TIMEOUT_S, socket_connect_timeout=_SOCKET_TIMEOUT_S
    )


@lru_cache(maxsize=1)
def _senders() -> ProducerPool:
    """Producers that give up on a silent broker. Consumers must not: they wait on their sockets for messages."""
    connection = celery.connection_for_write()
    connection.transport_options = {**connection.transport_options, "socket_timeout": _SOCKET_TIMEOUT_S}
    return ProducerPool(connection.Pool(_MOST_SENDERS), limit=_MOST_SENDERS)  # type: ignore[no-untyped-call]


def forget_broker() -> None:
    """Drop inherited connections in a forked process: their sockets belong to the parent."""
    _senders.cache_clear()
    redis_client.cache_clear()


def _send(name: str, arguments: list[Any]) -> bool:
    try:
        with _senders().acquire(block=True, timeout=_SOCKET_TIMEOUT_S) as producer:  # type: ignore[no-untyped-call]
            celery.send_task(
                name, arguments, producer=producer, retry=False, ignore_result=True, headers=carried() or None
            )
    except Exception as error:
        # kombu, redis-py and the socket module each have their own errors; all mean: not sent, the rescuer will.
        log.warning("message_not_sent", task=name, error=type(error).__name__)
        return False
    return True


def wake_study(study_id: UUID) -> bool:
    """Ask some worker to look at a study; whether the broker took the message."""
    return _send(ADVANCE_STUDY, [str(study_id)])


def wake_trials(study_id: UUID, first: int, last: int) -> bool:
    """Ask some worker to evaluate the queued trials numbered first..last; whether the broker took the message."""
    return _send(RUN_TRIALS, [str(study_id), first, last])


def announce(study_id: UUID, version: int) -> None:
    """Tell the API processes that a study has a new version; they notice within a second without it, too."""
    try:
        redis_client().publish(VERSIONS_CHANNEL, f"{study_id} {version}")
    except RedisError as error:
        log.info("version_not_announced", study_id=str(study_id), error=type(error).__name__)


def num_waiting(queue: str) -> int | None:
    """Messages that wait in a queue, not yet with any worker; None when the broker is away."""
    try:
        return int(redis_client().llen(queue))
    except RedisError:
        return None


def is_broker_reachable() -> bool:
    """Whether Redis answers."""
    try:
        return bool(redis_client().ping())
    except RedisError:
        return False
