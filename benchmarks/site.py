"""A site of 1,000 studies a day, 10^9 requests of trace and 100 workers, reckoned from kept results of the other parts.

Each line: what one unit costs here, what the site asks for, what one such part gave here, and the share of it that is used.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

STUDIES, TRACE_REQUESTS, WORKERS, TRIALS = 1_000, 1_000_000_000, 100, 100
"""A day's studies, requests of all stored traces (each study has one of its own), workers, and trials of a study."""

NEEDED = ("scale", "persist", "replay")
_DAY_S, _GB = 86_400.0, 1e9


@dataclass(frozen=True, slots=True)
class Line:
    """One shared part. share: of what it can do, None where only the disk decides."""

    what: str
    one: str
    asked: str
    can: str
    share: float | None
    setting: str


def lines(results: Mapping[str, Any]) -> Iterator[Line]:
    """Every part, in the order of a study's way. Args: results: the kept ones named in `NEEDED`, by name."""
    scale, trials_per_s = results["scale"], results["persist"]["trials_per_s"]
    yield _replays(results["replay"])
    yield from _postgres(scale, trials_per_s)
    yield from _redis(scale)
    yield from _disks(scale)


def _replays(replay: Mapping[str, Any]) -> Line:
    us = max(1e3 * row["ours_ms"] / row["requests"] for row in replay["rows"] if "conversation" in row["load"])
    requests = TRIALS * TRACE_REQUESTS
    cores = requests * us * 1e-6 / _DAY_S
    asked = f"{requests:.0e} requests a day: {cores:.1f} cores"
    return Line("replays", f"{us:.2f} µs a request", asked, f"{WORKERS} cores", cores / WORKERS, "workers")


def _postgres(scale: Mapping[str, Any], trials_per_s: float) -> Iterator[Line]:
    parts, one = scale["parts"], scale["per_worker"]
    seconds = STUDIES * TRIALS / trials_per_s
    asked = f"{STUDIES * TRIALS:,} trials a day: {seconds:.0f} s"
    yield Line("Postgres: trials", f"1 / {trials_per_s:,.0f} s", asked, "a day", seconds / _DAY_S, "`SPICA_CHUNK_S`")
    held, can = _at(one["connections"]), parts["max_connections"]
    each = f"{one['connections']['of_one']:.1f} a worker"
    setting = "`max_connections`"
    yield Line("Postgres: connections", each, f"{held:.0f}", f"{can:.0f}", held / can, setting)
    asks, rate = _at(one["idle_transactions_per_s"]), parts["statements_per_s"]
    each = f"{one['idle_transactions_per_s']['of_one']:.1f} a second and idle worker"
    yield Line(
        "Postgres: transactions of idle workers", each, f"{asks:.0f} /s", f"{rate:,.0f} /s", asks / rate,
        "`SPICA_RESCUE_EVERY_S`",
    )  # fmt: skip


def _redis(scale: Mapping[str, Any]) -> Iterator[Line]:
    parts, one = scale["parts"], scale["per_worker"]
    clients, can = _at(one["redis_clients"]), parts["max_redis_clients"]
    each = f"{one['redis_clients']['of_one']:.1f} a worker"
    yield Line("Redis: clients", each, f"{clients:.0f}", f"{can:,.0f}", clients / can, "`maxclients`")
    of_studies = max(row["redis_commands_per_study"] for row in scale["rows"]) * STUDIES / _DAY_S
    asks, rate = _at(one["idle_redis_commands_per_s"]) + of_studies, parts["redis_commands_per_s"]
    each = f"{one['idle_redis_commands_per_s']['of_one']:.1f} a second and idle worker"
    yield Line("Redis: commands", each, f"{asks:.0f} /s", f"{rate:,.0f} /s", asks / rate, "a Redis of its own")


def _disks(scale: Mapping[str, Any]) -> Iterator[Line]:
    rows, traces = scale["rows"], scale["traces"]
    size = max(row["database_bytes_per_study"] for row in rows)
    asked = f"{size * STUDIES / _GB:.2f} GB a day"
    yield Line("Postgres: disk", f"{size / 1e3:.0f} kB a study", asked, "disk", None, "`SPICA_RETENTION_DAYS`")
    row_bytes = traces["stored_bytes_of_a_recorded_row"]
    asked = f"{row_bytes * TRACE_REQUESTS / _GB:.0f} GB"
    setting = "`SPICA_DATA_DIR` on a shared disk, or `SPICA_TRACE_STORE`"
    yield Line("trace store: disk", f"{row_bytes:.0f} bytes a request", asked, "disk", None, setting)
    seconds = TRACE_REQUESTS / traces["rows_per_s"]
    each = f"1 / {traces['rows_per_s']:,.0f} s a row"
    asked = f"{seconds / 3600:.1f} hours of one API process"
    yield Line("trace store: uploads", each, asked, "a day", seconds / _DAY_S, "API processes")


def _at(line: Mapping[str, float]) -> float:
    """A figure at `WORKERS` workers."""
    return float(line["without"] + line["of_one"] * WORKERS)
