"""A trace as workers find it: its content file on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.traces.helpers import take


@dataclass(frozen=True)
class Stored:
    """workers.traffic.workload.TraceFile."""

    path: Path
    sha256: str
    block_size: int


def stored(folder: Path, content: bytes, **options: Any) -> Stored:
    """The content file of an upload."""
    found = take(folder, content, **options)
    return Stored(folder / found.sha256, found.sha256, found.block_size)
