"""Loops are compiled by processes of their own: once, bounded, and never left behind."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.replay import kernel_compiler, kernel_process
from workers.replay.kernel_process import AGGREGATED, DISAGGREGATED, have_compiled, mark

_MARKS = "import pathlib, sys; (pathlib.Path(sys.argv[2]) / (sys.argv[1] + '.compiled')).touch()"


@pytest.fixture(autouse=True)
def _begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process of another test, none left to another test."""
    begun: dict[str, subprocess.Popen[bytes]] = {}
    monkeypatch.setattr(kernel_process, "_begun", begun)
    yield
    for child in begun.values():
        child.kill()
        child.wait()


def _stand_in(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(kernel_process, "COMPILER", ("-c", script))


def test_loop_on_disk_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch, _MARKS)
    mark(tmp_path, AGGREGATED).touch()
    assert have_compiled(tmp_path, AGGREGATED)
    assert not kernel_process._begun


def test_both_loops_are_begun_where_one_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch, _MARKS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert have_compiled(tmp_path, DISAGGREGATED)
    assert mark(tmp_path, DISAGGREGATED).exists()
    assert kernel_process._begun[AGGREGATED].wait() == 0


def test_one_core_compiles_only_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch, _MARKS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert have_compiled(tmp_path, AGGREGATED)
    assert list(kernel_process._begun) == [AGGREGATED]


def test_failed_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch, "raise SystemExit(3)")
    assert not have_compiled(tmp_path, AGGREGATED)


def test_process_that_takes_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert not have_compiled(tmp_path, AGGREGATED, within_s=0.1)
    assert kernel_process._begun[AGGREGATED].poll() is not None


def test_compiler_finds_done_what_another_one_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(kernel_compiler, "_compile", compiled.append)
    monkeypatch.setattr("sys.argv", ["kernel_compiler", AGGREGATED, str(tmp_path), str(os.getppid())])
    monkeypatch.setattr(kernel_compiler, "_die_with_parent", lambda _parent: None)
    for _ in range(2):
        kernel_compiler.main()
    assert compiled == [AGGREGATED]


def test_compiler_ends_with_who_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in starts a compiler that would wait for its turn for ever, and is killed."""
    with (tmp_path / f".{AGGREGATED}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        script = (
            "from pathlib import Path; import sys; from workers.replay import kernel_process as k;"
            "k._begin(Path(sys.argv[1]), k.AGGREGATED); print(k._begun[k.AGGREGATED].pid, flush=True); sys.stdin.read()"
        )
        words = [sys.executable, "-c", script, str(tmp_path)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            parent.kill()
        deadline = time.monotonic() + 30
        while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{pid}/stat").exists()
