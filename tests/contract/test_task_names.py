"""What app.queue sends by name is what workers.tasks registers, with parameters that fit."""

import inspect
from uuid import uuid4

import pytest

from app import queue
from workers import tasks

PREFIX = "spica."
SENT = {queue.ADVANCE_STUDY, queue.RUN_TRIALS, queue.RESCUE, queue.PRUNE}


def test_registered_tasks_are_those_that_are_sent() -> None:
    assert tasks.celery is queue.celery
    assert {name for name in queue.celery.tasks if name.startswith(PREFIX)} == SENT


def test_scheduled_tasks_are_registered() -> None:
    assert {entry["task"] for entry in queue.celery.conf.beat_schedule.values()} <= SENT


def test_messages_fit_the_parameters_of_their_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, list[object]]] = []
    monkeypatch.setattr(queue.celery, "send_task", lambda name, args, **_: sent.append((name, args)))
    assert queue.wake_study(uuid4())
    assert queue.wake_trials(uuid4(), 1, 2)
    assert [name for name, _ in sent] == [queue.ADVANCE_STUDY, queue.RUN_TRIALS]
    for name, args in sent:
        inspect.signature(queue.celery.tasks[name].run).bind(*args)
