"""The running parts: Postgres and Redis unless given, the API, the Celery worker and the scheduler."""

import contextlib
import json
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from launch.folders import REPOSITORY
from launch.install import PYTHON
from launch.process import Child, LaunchError, Program, ignore_signals, run
from launch.servers import external_env, free_port, has_cluster, start_postgres, start_redis

API_WITHIN_S = 60.0
DEFAULT_PORT = 8000
RESTARTS_PER_MINUTE = 5
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy


@dataclass
class Stack:
    """Children in the order they were started, and the environment that lets the next one find them."""

    folder: Path
    env: dict[str, str]
    children: list[Child] = field(default_factory=list)
    restarts: dict[str, list[float]] = field(default_factory=dict)
    """When each part was started again within the last minute, by its name."""
    is_new: bool = False
    """The database is our own and was made just now."""
    schema: str = ""
    """Version of the schema that the database has, empty without one."""

    def start(self, program: Program) -> Child:
        """Start and remember."""
        child = Child(program)
        self.children.append(child)
        return child

    def stop(self) -> None:
        """End everything: clients first and at once, then the servers, last started first."""
        ignore_signals()
        servers = [child for child in self.children if child.program.name in ("Postgres", "Redis")]
        clients = [child for child in self.children if child not in servers]
        for child in clients:
            child.ask_to_stop()
        for child in clients:
            child.wait_stopped()
        for child in reversed(servers):
            child.ask_to_stop()
            child.wait_stopped()
        self.children.clear()

    def require_alive(self) -> None:
        """Raises: LaunchError with the last words of a part that ended by itself."""
        for child in self.children:
            if child.popen.poll() is not None:
                raise LaunchError(f"{child.program.name} ended by itself{child.log_tail()}")

    def restart_dead(self) -> None:
        """Start again what ended by itself. Raises: LaunchError when that happens too often to be chance."""
        for place, child in enumerate(self.children):
            if child.popen.poll() is None:
                continue
            now = time.monotonic()
            name = child.program.name
            # Each part for itself: a machine in trouble may end all of them together, and more than once.
            recent = [moment for moment in self.restarts.get(name, []) if now - moment < 60]
            self.restarts[name] = [*recent, now]
            said = f"{name} ended with exit code {child.popen.returncode}"
            if len(self.restarts[name]) > RESTARTS_PER_MINUTE:
                raise LaunchError(f"{said}; restarted {RESTARTS_PER_MINUTE} times within a minute{child.log_tail()}")
            print(f"{said}; starting it again", flush=True)
            self.children[place] = Child(child.program)


@contextlib.contextmanager
def services(folder: Path, *, for_tests: bool = False) -> Iterator[Stack]:
    """Postgres and Redis up and answering, with their URLs in the stack's environment; stopped on leaving.

    Raises: LaunchError when one cannot be started or reached.
    """
    given = external_env(os.environ)
    (folder / "logs").mkdir(exist_ok=True)
    stack = Stack(folder, child_env(folder))
    try:
        if "DATABASE_URL" not in given:
            stack.is_new = not has_cluster(folder)
            child, stack.env["DATABASE_URL"] = start_postgres(folder, for_tests=for_tests)
            stack.children.append(child)
        if "REDIS_URL" not in given:
            child, stack.env["REDIS_URL"] = start_redis(folder)
            stack.children.append(child)
        found = versions(stack.env)
        stack.schema = found["schema"]
        for name, url_name in (("Postgres", "DATABASE_URL"), ("Redis", "REDIS_URL")):
            print(f"{name} {found[name]} ({'given by ' + url_name if url_name in given else 'private'})", flush=True)
        yield stack
    finally:
        stack.stop()


def versions(env: dict[str, str]) -> dict[str, str]:
    """What `launch.probe` says: of both servers and the schema, over real connections. Raises: LaunchError with refusals."""
    asked = run([str(PYTHON), "-m", "launch.probe"], env=env, cwd=REPOSITORY)
    if asked.returncode != 0:
        raise LaunchError(asked.stdout.strip())
    answer: dict[str, str] = json.loads(asked.stdout)
    return answer


def child_env(folder: Path) -> dict[str, str]:
    """Environment of what runs from .venv: one numeric thread a process, and bytecode kept.

    Who forbids bytecode does not want files beside sources, so it goes into a folder of its own: without any, each process
    would compile for seconds what it imports.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    if env.pop("PYTHONDONTWRITEBYTECODE", ""):
        env.setdefault("PYTHONPYCACHEPREFIX", str(REPOSITORY / ".cache" / "bytecode"))
    env.update({name: env.get(name, "1") for name in ONE_THREAD})
    env.setdefault("SPICA_DATA_DIR", str(folder / "files"))
    env.update(PYTHONUNBUFFERED="1", VIRTUAL_ENV=str(PYTHON.parent.parent))
    env["PATH"] = f"{PYTHON.parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    env.pop("PYTHONHOME", None)
    return env


def newest_schema() -> str:
    """The version that the migrations lead to: their files are named after theirs."""
    return max(path.name for path in (REPOSITORY / "migrations" / "versions").glob("*.py")).partition("_")[0]


def migrate(stack: Stack) -> None:
    """Bring the database to the newest schema; nothing to do if it has it. Raises: LaunchError with alembic's words."""
    if stack.schema == newest_schema():
        return
    done = run([str(PYTHON), "-m", "alembic", "-c", "pyproject.toml", "upgrade", "head"], env=stack.env, cwd=REPOSITORY)
    (stack.folder / "logs" / "migrations.log").write_text(done.stdout)
    if done.returncode != 0:
        raise LaunchError(f"migrations failed:\n{done.stdout}")


def start_application(stack: Stack, *, with_scheduler: bool = True) -> str:
    """Migrate, start worker, API and scheduler; the API's base URL, once it says it is ready.

    The scheduler only clears up after faults and deletes what is old: a demonstration goes without.

    Processes import for seconds before they ask for anything, so on a new database, where no older schema can mislead them,
    the migrations run meanwhile. Raises: LaunchError when the migrations fail or the API does not become ready.
    """
    if not stack.is_new:
        migrate(stack)
    cores = len(os.sched_getaffinity(0))
    celery = [str(PYTHON), "-m", "celery", "-A"]
    # Workers need nothing from each other: without looking for neighbours one starts a second sooner.
    alone = ["--without-mingle", "--without-gossip"]
    worker = [*celery, "workers.main", "worker", f"--concurrency={cores}", *alone, "--loglevel=INFO"]
    stack.start(application(stack, "worker", worker))
    port = api_port()
    words = ["uvicorn", "app.main:app", "--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
    api = stack.start(application(stack, "api", [str(PYTHON), "-m", *words]))
    url = f"http://127.0.0.1:{port}"
    if stack.is_new:
        migrate(stack)
    api.wait_until(lambda _pid: answers(f"{url}/readyz"), API_WITHIN_S)
    if with_scheduler:
        schedule = f"--schedule={stack.folder / 'celerybeat-schedule'}"
        stack.start(application(stack, "scheduler", [*celery, "app.queue", "beat", schedule, "--pidfile="]))
    return url


def application(stack: Stack, name: str, argv: list[str]) -> Program:
    """One of our own processes, as a Program."""
    return Program(name=name, argv=argv, env=stack.env, folder=REPOSITORY, log=stack.folder / "logs" / f"{name}.log")


def api_port() -> int:
    """PORT; else 8000 when it is free; else any free one. Raises: LaunchError for a PORT that is none."""
    given = os.environ.get("PORT")
    if given:
        if not given.isdecimal() or not 0 < int(given) < 65536:
            raise LaunchError(f"PORT={given}: not a TCP port, which is a number from 1 to 65535")
        return int(given)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return free_port()
    return DEFAULT_PORT


def answers(url: str) -> bool:
    """True when a GET gives 200."""
    try:
        with DIRECT.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
