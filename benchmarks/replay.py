"""Replay speed beside the peer's, in turn in one run: `python -m benchmarks.replay [--peer PATH] [--trace FILE] [--out FILE]`.

Ours: CPU milliseconds of `replay_many` with every metric, median of many calls in a warm process. The peer's: the time it
reports for its own simulation (process start and loading of tables not counted), median of `--runs`. Without `--peer`
only ours is measured. Prints one line per load; `--out` writes them as JSON with machine and commit.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.golden import files
from workers.cases import read_case
from workers.replay.loop import replay_many
from workers.replay.reports import warm

Config = dict[str, Any]

_CALLS = 30


def main() -> int:
    """Measure every load and print the table."""
    arguments = _arguments()
    started = time.process_time()
    warm()
    print(f"warm: {time.process_time() - started:.2f} s CPU to compile or load the kernel")
    rows = [
        _measure(name, configs, arguments) for name, configs in loads(arguments.trace).items() if arguments.only in name
    ]
    if arguments.out is not None:
        result = {"machine": platform.processor() or platform.machine(), "commit": _commit(), "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def loads(trace: Path | None) -> dict[str, list[Config]]:
    """Configurations by name of the load; a load of several is one `replay_many` call."""
    reference = files.cases("reference-trial")[0]["config"]
    found = {
        "reference trial": [reference],
        "16 mixed candidates": [_mixed(reference, i) for i in range(16)],
        "20,000 Poisson requests": [_poisson(reference, 20_000, 8.0)],
    }
    if trace is not None:
        found["trace on 3 replicas"] = [_trace(reference, trace, 3)]
    return found


def _mixed(reference: Config, i: int) -> Config:
    """Candidate i of a small factorial: parallel shape, replicas, token budget, sequences."""
    config: Config = json.loads(json.dumps(reference))
    worker = config["engine"]["workers"]["aggregated"]
    worker["parallelism"] = {"tensor": (1, 2, 4, 8)[i % 4], "replicas": (1, 2, 3, 4)[i // 4]}
    worker["scheduler"] = {"max_batched_tokens": (2048, 4096, 8192, 16384)[(i + i // 4) % 4]}
    return config


def _poisson(reference: Config, requests: int, rate: float) -> Config:
    config: Config = json.loads(json.dumps(reference))
    config["traffic"]["source"] |= {"input_tokens": 1500, "output_tokens": 200}
    config["traffic"]["load"] = {"type": "poisson", "request_rate": rate}
    config["traffic"]["stop"] = {"requests": requests}
    return config


def _trace(reference: Config, trace: Path, replicas: int) -> Config:
    config: Config = json.loads(json.dumps(reference))
    config["traffic"] = {
        "source": {"type": "trace", "paths": [str(trace.resolve())], "format": "mooncake"},
        "load": {"type": "trace_timestamps"},
    }
    config["engine"]["workers"]["aggregated"]["parallelism"]["replicas"] = replicas
    return config


def _measure(name: str, configs: list[Config], arguments: argparse.Namespace) -> dict[str, Any]:
    cases = [read_case({"id": name, "config": config}, Path("/")) for config in configs]
    jobs = [(case.fleet, case.batch) for case in cases]
    first_ms = _cpu_ms(lambda: replay_many(jobs))
    peer_ms: list[float] = []
    ours_ms: list[float] = []
    for _ in range(arguments.runs):
        ours_ms += [_cpu_ms(lambda: replay_many(jobs)) for _ in range(_CALLS)]
        if arguments.peer is not None:
            peer_ms.append(sum(_peer_ms(arguments.peer, config) for config in configs))
    ours = statistics.median(ours_ms)
    row: dict[str, Any] = {"load": name, "ours_ms": ours, "ours_best_ms": min(ours_ms), "first_call_ms": first_ms}
    line = f"{name:28} ours {ours:9.3f} ms CPU (best {min(ours_ms):.3f}, first call {first_ms:.0f})"
    if peer_ms:
        row |= {"peer_ms": statistics.median(peer_ms), "ratio": statistics.median(peer_ms) / ours}
        line += f"   peer {row['peer_ms']:10.1f} ms   {row['ratio']:8.0f} x"
    print(line, flush=True)
    return row


def _cpu_ms(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1e3


def _peer_ms(peer: Path, config: Mapping[str, Any]) -> float:
    """Milliseconds the peer says its simulation took. Raises: CalledProcessError when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        argv = [str(peer), "predict", "--config", str(path), "--output-dir", f"{folder}/out", "--format", "json"]
        subprocess.run(argv, check=True, capture_output=True)
        report = json.loads((Path(folder) / "out" / "prediction.json").read_text())
    summary = report.get("summary")
    return float((summary if isinstance(summary, dict) else report)["wall_time_ms"])


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, help="the peer's command")
    parser.add_argument("--trace", type=Path, help="a Mooncake trace to replay on three replicas")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
