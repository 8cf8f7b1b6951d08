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


def _candidate(rank: int, score: float, replicas: int) -> dict[str, Any]:
    pool = {"shape": {"tp": 1}, "replicas": replicas, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    return {
        "rank": rank,
        "score": score,
        "used_gpus": replicas,
        "deployment": {"backend": "vllm", "agg": pool},
        "objectives": {"throughput_per_gpu": score},
        "metrics": {},
    }


def test_winner_is_set_beside_the_next_outcome_and_its_twins_are_counted() -> None:
    said = demo.winner_line([_candidate(1, 110.0, 2), _candidate(2, 110.0, 2), _candidate(3, 100.0, 1)])
    assert said == (
        "the winner: vllm agg 2x tp1 on 2 GPUs, 10.0% better than vllm agg 1x tp1 of rank 3; "
        "1 more end alike, ties go to the simplest"
    )
    assert demo.winner_line([_candidate(1, 110.0, 1)]) == "the winner: vllm agg 1x tp1 on 1 GPU"
