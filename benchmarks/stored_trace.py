"""A recorded trace as workers find it, for benchmarks: taken in as an upload would be, without HTTP or a database."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from app.traces.intake import Intake, IntakeOptions, Limits

_LIMITS = Limits(rows=10_000_000, bytes=1 << 32, decompressed_bytes=1 << 34)


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """workers.traffic.workload.TraceFile."""

    path: Path
    sha256: str
    block_size: int


def stored_trace(path: Path, folder: Path) -> StoredTrace:
    """The content file of a trace (JSON lines, gzipped or not), kept in `folder`. Raises: TraceRefusedError."""
    intake = Intake(folder / "intake", IntakeOptions(), _LIMITS)
    try:
        intake.feed(path.read_bytes())
        found = intake.finish()
        shutil.copy(found.path, folder / found.sha256)
    finally:
        intake.close()
    return StoredTrace(folder / found.sha256, found.sha256, found.block_size)
