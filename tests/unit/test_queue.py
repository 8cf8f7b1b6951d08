"""How a worker's connection to the broker behaves while the broker is away."""

import pytest

from app.queue import celery


class _EnoughError(Exception):
    """Ends a loop that would go on for ever."""


def test_broker_that_stays_away_is_tried_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def note(_error: Exception, pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 50:
            raise _EnoughError

    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: None)
    connection = celery.connection_for_read("redis://127.0.0.1:1/0")
    with pytest.raises(_EnoughError):
        connection.ensure_connection(note)
    assert 0 < max(pauses) <= 3
    assert connection.clone().ensure_connection.__func__ is connection.ensure_connection.__func__
