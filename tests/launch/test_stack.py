"""Ports and what servers are told."""

from collections.abc import Callable
from pathlib import Path

import pytest

from launch import servers, stack
from launch.folders import REPOSITORY
from launch.process import Child, LaunchError, Program


@pytest.mark.parametrize("port", ["abc", "0", "65536", "-1"])
def test_port_that_is_none_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", port)
    with pytest.raises(LaunchError, match=f"PORT={port}"):
        stack.api_port()


def test_child_environment_hides_postgres_variables_and_limits_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = stack.child_env(tmp_path)
    assert "PGHOST" not in env
    assert env["OMP_NUM_THREADS"] == "1"


def test_child_environment_keeps_bytecode_apart_where_it_is_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert "PYTHONPYCACHEPREFIX" not in stack.child_env(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    env = stack.child_env(tmp_path)
    assert "PYTHONDONTWRITEBYTECODE" not in env
    assert Path(env["PYTHONPYCACHEPREFIX"]).is_relative_to(REPOSITORY / ".cache")


def test_migrations_are_left_out_only_on_the_newest_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "run", lambda *_words, **_options: pytest.fail("alembic was started"))
    stack.migrate(stack.Stack(tmp_path, {}, schema=stack.newest_schema()))
    with pytest.raises(pytest.fail.Exception):
        stack.migrate(stack.Stack(tmp_path, {}, schema="0001"))


def test_server_whose_port_was_taken_is_started_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = iter((1, 2))
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))

    def program(port: int) -> Program:
        script = "exit 1" if port == 1 else "sleep 600"
        return Program("server", ["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, tmp_path, tmp_path / f"log{port}")

    def ready(port: int) -> Callable[[int], bool]:
        return lambda _pid: port == 2

    child, port = servers.start_on_free_port(program, ready)
    try:
        assert (port, child.popen.poll()) == (2, None)
    finally:
        child.ask_to_stop()
        child.wait_stopped()


def test_program_that_keeps_dying_is_not_restarted_for_ever(tmp_path: Path) -> None:
    dying = Program("dying", ["false"], {"PATH": "/usr/bin:/bin"}, tmp_path, tmp_path / "log")
    running = stack.Stack(tmp_path, {}, [Child(dying)])

    def restart_after_each_end() -> None:
        for _ in range(stack.RESTARTS_PER_MINUTE + 1):
            running.children[0].popen.wait()
            running.restart_dead()

    with pytest.raises(LaunchError, match=r"dying ended with exit code 1; restarted 5 times"):
        restart_after_each_end()


def test_parts_that_end_together_are_all_started_again(tmp_path: Path) -> None:
    names = ["one", "two", "three", "four"]
    short = [Program(name, ["true"], {"PATH": "/usr/bin:/bin"}, tmp_path, tmp_path / name) for name in names]
    running = stack.Stack(tmp_path, {}, [Child(program) for program in short])
    for _ in range(3):
        for child in running.children:
            child.popen.wait()
        running.restart_dead()
    for child in running.children:
        child.wait_stopped()
    assert [child.program.name for child in running.children] == names
