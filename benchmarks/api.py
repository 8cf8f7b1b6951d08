"""What many open dashboards cost: latency of full pages and of 304, CPU time per answer, and how they slow a study.

    python -m benchmarks.api                                              # 200 dashboards, 20 streams, a running study
    python -m benchmarks.api --studies 5000 --candidates 1000000 --pairs 0  # polls alone, in a large database

Needs DATABASE_URL and REDIS_URL; runs an API process and a worker of its own on a scratch database. Each dashboard polls
once per `--every` seconds. First they poll a bare server: its latency is that of the machine and of the client, and no
service on this machine in this minute can be faster. Then a stored study is polled: unchanged, then while its version
rises twice a second. Then one study runs `--pairs` times alone and as often watched by all dashboards and streams, in
turns. Prints JSON.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import time
import urllib.request
from typing import Any

import psycopg

from benchmarks.dashboards import Dashboard, figures, follow, poll_all
from benchmarks.scratch import circumstances, core_time, fill, process, scratch_database, study_id

_START_WITHIN_S = 180.0
_ENDS_WITHIN_S = 600.0
_BUMP_EVERY_S = 0.5


def _config(num_trials: int, seed: int) -> dict[str, Any]:
    return {
        "search_space": {
            "model_name": "Qwen/Qwen3-32B-FP8",
            "hardware_sku": "h200_sxm",
            "gpu_budget": 16,
            "deployment_mode": ["agg"],
            "backend": ["vllm"],
            "router_mode": ["round_robin"],
            "planner_scaling_policy": ["disabled"],
        },
        "workload": {"isl": 4000, "osl": 500, "num_request_ratio": 400, "concurrency": 256},
        "goal": {"target": "throughput"},
        "sweep": {"max_rounds": 1, "candidates_per_round": num_trials, "seed": seed},
    }


def _submit(port: int, config: dict[str, Any]) -> str:
    url, kind = f"http://127.0.0.1:{port}/studies", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(config).encode(), kind)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["id"])


async def _run_study(port: int, config: dict[str, Any]) -> str:
    """Submit; the study's id. Its end is the end of its event stream."""
    return await asyncio.to_thread(_submit, port, config)


async def _alone(port: int, config: dict[str, Any]) -> float:
    """Seconds of a study that nobody but one event stream watches."""
    started = time.monotonic()
    await asyncio.wait_for(follow(port, await _run_study(port, config)), _ENDS_WITHIN_S)
    return time.monotonic() - started


async def _watched(arguments: argparse.Namespace, port: int, config: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Seconds of the same study under all dashboards and streams, and what these saw."""
    started = time.monotonic()
    study, ended = await _run_study(port, config), asyncio.Event()
    dashboards = [Dashboard(port, study) for _ in range(arguments.dashboards)]
    await asyncio.gather(*(each.open() for each in dashboards))
    polling = asyncio.create_task(poll_all(dashboards, arguments.every, ended, conditional=True))
    num_events = await asyncio.gather(*(follow(port, study) for _ in range(max(arguments.streams, 1))))
    seconds = time.monotonic() - started
    ended.set()
    return seconds, {**figures(await polling), "events_per_stream": statistics.mean(num_events)}


async def _pairs(arguments: argparse.Namespace, port: int) -> dict[str, Any]:
    """The study alone and watched, in turns, so that a change of the machine's mood hits both."""
    await _alone(port, _config(16, 0))
    alone, watched, seen = list[float](), list[float](), list[dict[str, Any]]()
    for seed in range(1, arguments.pairs + 1):
        config = _config(arguments.trials, seed)
        alone.append(await _alone(port, config))
        seconds, figures_ = await _watched(arguments, port, config)
        watched.append(seconds)
        seen.append(figures_)
    slowed = statistics.median(after / before for before, after in zip(alone, watched, strict=True)) - 1
    return {"alone_s": alone, "watched_s": watched, "slowed_by": slowed, "seen": seen}


async def _bump(url: str, study: str) -> None:
    """Rank the study's candidates anew now and then, as a running study does."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            await connection.execute(
                "UPDATE studies SET version = version + 1, ranked_version = version + 1 WHERE id = %s", [study]
            )
            await asyncio.sleep(_BUMP_EVERY_S)


async def _bare(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same polls of a server that does nothing."""
    port = _free_port()
    with process(["benchmarks.bare_server", str(port)], {}):
        await _until_listening(port)
        dashboards = [Dashboard(port, "bare") for _ in range(arguments.dashboards)]
        for dashboard in dashboards:
            await dashboard.open()
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(arguments.seconds, ended.set)
        return dict(figures(await poll_all(dashboards, arguments.every, ended, conditional=False)))


async def _stored(arguments: argparse.Namespace, url: str, port: int, pid: int) -> dict[str, Any]:
    """A stored study polled: by those who have its page, then by those who want it whole while it changes."""
    study = study_id(max(1, arguments.studies // 2))
    dashboards = [Dashboard(port, study) for _ in range(arguments.dashboards)]
    for dashboard in dashboards:
        await dashboard.open()
        await dashboard.poll(conditional=False)

    async def round_(*, conditional: bool) -> dict[str, Any]:
        ended, before = asyncio.Event(), core_time(pid)
        asyncio.get_running_loop().call_later(arguments.seconds, ended.set)
        polls = await poll_all(dashboards, arguments.every, ended, conditional=conditional)
        after, ms_each = core_time(pid), 1000 / len(polls)
        return {
            **figures(polls),
            "cpu_ms_per_poll": ms_each * (after.ran_s - before.ran_s),
            "waited_for_a_core_ms_per_poll": ms_each * (after.waited_s - before.waited_s),
        }

    unchanged = await round_(conditional=True)
    bumping = asyncio.create_task(_bump(url, study))
    full = await round_(conditional=False)
    bumping.cancel()
    return {"unchanged": unchanged, "full_page": full}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _until_listening(port: int) -> None:
    deadline = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            await asyncio.open_connection("127.0.0.1", port)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def _measure(arguments: argparse.Namespace, url: str, port: int, pid: int) -> dict[str, Any]:
    await _until_listening(port)
    found = {"bare": await _bare(arguments), "stored": await _stored(arguments, url, port, pid)}
    if arguments.pairs:
        # Queues of their own: another service may listen to this broker.
        redis_url = os.environ["REDIS_URL"].partition("?")[0].rsplit("/", 1)[0] + "/10"
        words = ["celery", "-A", "workers.main", "worker", f"--concurrency={arguments.cores}", "--loglevel=ERROR"]
        with process(words, {"DATABASE_URL": url, "REDIS_URL": redis_url}):
            found["running"] = await _pairs(arguments, port)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description=__doc__)
    parser.add_argument("--dashboards", type=int, default=200)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between the polls of one dashboard")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="length of each of the two rounds on a stored study"
    )
    parser.add_argument("--studies", type=int, default=1)
    parser.add_argument("--candidates", type=int, default=1000, help="over all stored studies")
    parser.add_argument("--pairs", type=int, default=3, help="runs of a study alone and watched")
    parser.add_argument("--trials", type=int, default=1500, help="trials of that study")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="processes of the worker")
    arguments = parser.parse_args()
    port = _free_port()
    redis_url = os.environ["REDIS_URL"].partition("?")[0].rsplit("/", 1)[0] + "/10"
    with scratch_database() as url:
        fill(url, arguments.studies, arguments.candidates // arguments.studies)
        words = ["uvicorn", "app.main:app", "--port", str(port), "--no-access-log"]
        with process(words, {"DATABASE_URL": url, "REDIS_URL": redis_url}) as api:
            found = asyncio.run(_measure(arguments, url, port, api.pid))
    print(json.dumps({"arguments": vars(arguments), **found, **circumstances()}, indent=1))


if __name__ == "__main__":
    main()
