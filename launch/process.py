"""Child processes that never outlive this one, however it ends.

Linux only: each child asks the kernel to be signalled when its parent dies (PR_SET_PDEATHSIG), so even `kill -9` of
run.py leaves nothing behind. The kernel watches the *thread* that forked: start children from the main thread only.
"""

import ctypes
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
LOG_TAIL_LINES = 20
LIBC = ctypes.CDLL(None, use_errno=True)


class LaunchError(Exception):
    """Something could not be started; the message says what, and what its log said last."""


@dataclass(frozen=True)
class Program:
    """What to run and how to end it.

    death_signal reaches it when this process dies; stop_signal asks it to end. as_nobody matters only when we are root.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    log: Path
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    stop_within_s: float = 15.0
    as_nobody: bool = False


class Child:
    """A started Program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        with program.log.open("ab") as log:
            self.popen = subprocess.Popen(
                list(program.argv),
                env=dict(program.env),
                cwd=program.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=tie_to_parent(program.death_signal, own_session=True, as_nobody=program.as_nobody),
            )

    def wait_until(self, ready: Callable[[int], bool], within_s: float) -> None:
        """Return once ready(pid) holds. Raises: LaunchError when the child ends first or the time is over."""
        deadline = time.monotonic() + within_s
        while not ready(self.popen.pid):
            if self.popen.poll() is not None:
                raise LaunchError(f"{self.program.name} ended with exit code {self.popen.returncode}{self.log_tail()}")
            if time.monotonic() > deadline:
                raise LaunchError(f"{self.program.name} was not ready within {within_s:.0f} s{self.log_tail()}")
            time.sleep(0.03)

    def log_tail(self) -> str:
        """The last lines of the child's log, ready to be appended to a message."""
        lines = self.program.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "".join(f"\n    {line}" for line in [f"last lines of {self.program.log}:", *lines])

    def ask_to_stop(self) -> None:
        """Send the stop signal; does not wait."""
        if self.popen.poll() is None:
            self.popen.send_signal(self.program.stop_signal)

    def wait_stopped(self) -> None:
        """Wait for the end; after the program's patience, kill its whole process group."""
        try:
            self.popen.wait(self.program.stop_within_s)
        except subprocess.TimeoutExpired:
            kill_group(self.popen.pid)
            self.popen.wait()
        kill_group(self.popen.pid)


def kill_group(pid: int) -> None:
    """SIGKILL what is left of the process group that `pid` led."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def tie_to_parent(death_signal: signal.Signals, *, own_session: bool, as_nobody: bool = False) -> Callable[[], None]:
    """A preexec_fn: session, user, then the death signal, in this order because setuid clears the death signal."""
    parent = os.getpid()
    nobody = pwd.getpwnam("nobody") if as_nobody and os.geteuid() == 0 else None

    def in_child() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if own_session:
            os.setsid()
        if nobody is not None:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            os.umask(0o077)
        LIBC.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was told to watch it
            os._exit(1)

    return in_child


def run(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, as_nobody: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run to the end and capture the output; the child dies with us."""
    return subprocess.run(
        list(argv),
        env=None if env is None else dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        preexec_fn=tie_to_parent(signal.SIGKILL, own_session=False, as_nobody=as_nobody),
    )


def run_in_foreground(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> int:
    """Run on our terminal and return the exit code; Ctrl-C reaches it directly, and it dies with us."""
    with subprocess.Popen(
        list(argv), env=dict(env), cwd=cwd, preexec_fn=tie_to_parent(signal.SIGTERM, own_session=False)
    ) as popen:
        try:
            return popen.wait()
        except KeyboardInterrupt:
            popen.terminate()
            try:
                popen.wait(10)
            except subprocess.TimeoutExpired:
                popen.kill()
            raise


def raise_interrupt_on_signals() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that every `finally` runs."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asked for deafness
        signal.signal(signal.SIGHUP, interrupt)


def ignore_signals() -> None:
    """Let nothing interrupt the stopping of children."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
