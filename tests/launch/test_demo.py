"""The demonstration follows its study: patiently while a worker compiles, not for ever."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launch import demo
from launch.process import LaunchError
from launch.stack import Stack


class _Clock:
    """A clock that a study moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[list[tuple[float, str]]], dict[str, Any]]:
    """Follows a study that shows the statuses given, each after so many seconds."""

    def followed(story: list[tuple[float, str]]) -> dict[str, Any]:
        clock, told = _Clock(), iter(story)
        monkeypatch.setattr(demo, "time", clock)
        monkeypatch.setattr(demo, "call", lambda _url: _next(clock, told))
        return demo.follow("", _study("queued"), Stack(tmp_path, {}))

    return followed


def _next(clock: _Clock, told: Iterator[tuple[float, str]]) -> dict[str, Any]:
    seconds, status = next(told)
    clock.now += seconds
    return _study(status)


def _study(status: str) -> dict[str, Any]:
    return {"id": "1", "version": 1, "status": status, "progress": {"done": 0, "trials_total": 0}}


def test_time_that_a_worker_needs_to_get_ready_is_not_taken_from_the_study(
    follow: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = follow([(400.0, "queued"), (400.0, "running"), (100.0, "running"), (1.0, "succeeded")])
    assert ended["status"] == "succeeded"
    assert "compiles the replay kernel" in capsys.readouterr().out


@pytest.mark.parametrize("status", ["queued", "running"])
def test_study_that_does_not_get_on_is_given_up(follow: Callable[..., Any], status: str) -> None:
    with pytest.raises(LaunchError, match=f"still {status} after"):
        follow([(100.0, status)] * 20)
