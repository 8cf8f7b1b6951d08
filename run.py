"""`python3 run.py setup | demo | serve | keys | test | test-browser | check | audit | bench | doctor`; see README.md.

Standard library only.
"""

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from launch.browser import run_browser_tests
from launch.checks import AUDIT, run_checks
from launch.demo import show_demo
from launch.doctor import examine
from launch.folders import REPOSITORY, data_folder, new_run_folder, open_data_folder
from launch.install import DEV_LOCK, EXTRAS, PYTHON, RUNTIME_LOCK, install, install_extra
from launch.keys import manage_keys
from launch.process import LaunchError, raise_interrupt_on_signals, run_in_foreground
from launch.stack import child_env, services, start_application

INTERRUPTED = 130
WATCH_EVERY_S = 0.5


def setup(arguments: argparse.Namespace) -> int:
    """Install what the service needs into .venv, and optional extras where they belong."""
    install(DEV_LOCK if arguments.dev else RUNTIME_LOCK)
    for name in arguments.extra:
        install_extra(name)
    print(f"ready: {PYTHON}")
    return 0


def serve(_arguments: argparse.Namespace) -> int:
    """Run the service until Ctrl-C; data stays in DATA_DIR."""
    install(RUNTIME_LOCK)
    folder = data_folder()
    with open_data_folder(folder), services(folder) as stack:
        url = start_application(stack)
        print(f"serving on {url} (page {url}/docs, data and logs in {folder}); Ctrl-C stops it", flush=True)
        try:
            while True:
                time.sleep(WATCH_EVERY_S)
                stack.restart_dead()
        except KeyboardInterrupt:
            print("stopping ...", flush=True)
            return 0


def keys(arguments: argparse.Namespace) -> int:
    """Make, list and revoke API keys of the service that `serve` keeps up: create | list | revoke."""
    install(RUNTIME_LOCK)
    return manage_keys(data_folder(), arguments.options)


def demo(_arguments: argparse.Namespace) -> int:
    """Search once with every real part on temporary data, show the ranking, stop everything."""
    begun = time.monotonic()
    install(RUNTIME_LOCK)
    with run_folder() as folder, services(folder) as stack:
        url = start_application(stack, with_scheduler=False)
        code = show_demo(url, stack, begun)
    print("everything stopped")
    return code


def test(arguments: argparse.Namespace) -> int:
    """Run pytest against a real Postgres and a real Redis."""
    install(DEV_LOCK)
    with run_folder() as folder, services(folder, for_tests=True) as stack:
        words = ["-m", "pytest", f"--numprocesses={min(os.cpu_count() or 1, 4)}", "--dist=loadfile", *arguments.options]
        return run_in_foreground([str(PYTHON), *words], env=stack.env, cwd=REPOSITORY)


def test_browser(arguments: argparse.Namespace) -> int:
    """Try the dashboard in a real Chromium, against a running service."""
    with run_folder() as folder:
        return run_browser_tests(folder, arguments.options)


def bench(arguments: argparse.Namespace) -> int:
    """Measure everything that docs/performance.md says, beside the peer."""
    install(DEV_LOCK)
    with run_folder() as folder, services(folder) as stack:
        words = ["-m", "benchmarks.all", *arguments.options]
        return run_in_foreground([str(PYTHON), *words], env=stack.env, cwd=REPOSITORY)


def check(_arguments: argparse.Namespace) -> int:
    """Run the static checks."""
    install(DEV_LOCK)
    with run_folder() as folder:
        return run_checks(child_env(folder))


def audit(arguments: argparse.Namespace) -> int:
    """Compare the locks with known vulnerabilities, as kept in advisories.json; --from DUMP makes that file."""
    install(DEV_LOCK)
    with run_folder() as folder:
        return run_in_foreground([*AUDIT, *arguments.options], env=child_env(folder), cwd=REPOSITORY)


def doctor(_arguments: argparse.Namespace) -> int:
    """Say what could keep the service from running here; starts and installs nothing."""
    return examine()


WITH_OPTIONS = (keys, test, test_browser, audit, bench)
"""Commands that hand on what follows their name."""


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """A temporary data folder that is gone afterwards."""
    folder = new_run_folder()
    try:
        with open_data_folder(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run one command; its exit code, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in (setup, demo, serve, keys, test, test_browser, check, audit, bench, doctor):
        takes_options = command in WITH_OPTIONS
        name = command.__name__.replace("_", "-")
        one = commands.add_parser(name, help=command.__doc__, add_help=not takes_options)
        one.set_defaults(run=command)
        if command is setup:
            one.add_argument("--dev", action="store_true", help="with everything that tests and checks need")
            one.add_argument("--extra", action="append", default=[], choices=EXTRAS, help="may be repeated")
    arguments, rest = parser.parse_known_args()
    arguments.options = rest
    if rest and arguments.run not in WITH_OPTIONS:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    raise_interrupt_on_signals()
    try:
        code: int = arguments.run(arguments)
        return code
    except LaunchError as fault:
        print(f"run.py {arguments.command}: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything stopped", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    if sys.platform != "linux" or sys.version_info < (3, 11):
        sys.exit("run.py needs Linux and Python 3.11 or newer")
    sys.exit(main())
