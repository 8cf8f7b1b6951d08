"""How long a large trace takes to upload, and how much memory the API needs for it.

    DATABASE_URL=... REDIS_URL=... python -m benchmarks.trace_upload [--rows 2000000]

The database must be migrated. Starts an API of its own on loopback, with a data folder of its own, sends made rows as
they are made, and prints one JSON object: seconds, bytes, and the API's resident memory before and at its peak.
"""

import argparse
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.scratch import scratch_database

_BATCH_ROWS = 10_000
_SEED = 6
_KIB = 1024


def rows(count: int) -> Iterator[bytes]:
    """Made rows in batches: 20 a second, prompts of up to 8 blocks of which the first ones are shared; a few swapped."""
    rng = random.Random(_SEED)
    unique = 1000
    for first in range(0, count, _BATCH_ROWS):
        batch = []
        for number in range(first, min(count, first + _BATCH_ROWS)):
            blocks = rng.randint(1, 8)
            shared = rng.randint(0, blocks - 1)
            ids = [*range(shared), *range(unique, unique + blocks - shared)]
            unique += blocks - shared
            stamp = number * 50 - (200 if number % 1000 == 999 else 0)
            tokens = blocks * 512 - rng.randint(0, 511)
            batch.append(
                f'{{"timestamp": {stamp}, "input_length": {tokens}, "output_length": {rng.randint(1, 500)},'
                f' "hash_ids": {ids}}}\n'
            )
        yield "".join(batch).encode()


def memory_mb(pid: int, name: str) -> float:
    """A figure of /proc/PID/status, in MB: VmRSS now, VmHWM at its highest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return round(int(line.split()[1]) * _KIB / 1e6, 1)
    raise LookupError(name)


def ready(port: int, within_s: float = 120.0) -> None:
    """Wait for the API. Raises: TimeoutError."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/traces")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError("the API does not answer")


def upload(port: int, count: int) -> tuple[dict[str, Any], int]:
    """The stored trace, and the bytes sent for it."""
    sent = 0

    def counted() -> Iterator[bytes]:
        nonlocal sent
        for batch in rows(count):
            sent += len(batch)
            yield batch

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1800)
    connection.request("POST", "/traces", body=counted(), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    answer = connection.getresponse()
    document: dict[str, Any] = json.loads(answer.read())
    if answer.status != 201:
        raise SystemExit(f"refused: {document}")
    return document, sent


def measure(count: int) -> dict[str, Any]:
    """The figures of one upload, removed again in the end."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        listening.listen()
        command = [sys.executable, "-m", "uvicorn", "app.main:app", "--fd", str(listening.fileno())]
        environment = os.environ | {"SPICA_DATA_DIR": folder}
        with subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()]) as api:
            try:
                ready(port)
                before = memory_mb(api.pid, "VmRSS")
                started = time.perf_counter()
                document, sent = upload(port, count)
                seconds = time.perf_counter() - started
                figures = {
                    "rows": document["num_requests"],
                    "bytes": sent,
                    "seconds": round(seconds, 2),
                    "rows_moved": document["upload"]["num_rows_moved"],
                    "rss_before_mb": before,
                    "rss_peak_mb": memory_mb(api.pid, "VmHWM"),
                }
                delete = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                delete.request("DELETE", f"/traces/{document['id']}")
                delete.getresponse().read()
                return figures
            finally:
                api.terminate()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    arguments = parser.parse_args()
    with scratch_database() as url:
        os.environ["DATABASE_URL"] = url
        print(json.dumps(measure(arguments.rows)))


if __name__ == "__main__":
    main()
