"""Takes texts in as an upload would, without HTTP or a database."""

import shutil
from pathlib import Path
from typing import Any

import orjson

from app.traces.faults import TraceRefusedError
from app.traces.intake import CheckedTrace, Intake, IntakeOptions, Limits
from tests.golden.files import GOLDEN

LIMITS = Limits(rows=100_000, bytes=1 << 26, decompressed_bytes=1 << 26)


def field_case(start: str) -> bytes:
    """The text of a field case by the start of its name."""
    (path,) = (GOLDEN / "field").glob(f"{start}-*.jsonl")
    return path.read_bytes()


def take(
    folder: Path, content: bytes, limits: Limits = LIMITS, feed_bytes: int = 1 << 20, **options: Any
) -> CheckedTrace:
    """The checked trace; its content file is kept in `folder`."""
    intake = Intake(folder / "intake", IntakeOptions(**options), limits)
    try:
        for at in range(0, len(content), feed_bytes):
            intake.feed(content[at : at + feed_bytes])
        found = intake.finish()
        shutil.copy(found.path, folder / found.sha256)
    finally:
        intake.close()
    return found


def refusal(folder: Path, content: bytes, **options: Any) -> TraceRefusedError:
    """The refusal of a faulty trace."""
    try:
        take(folder, content, **options)
    except TraceRefusedError as error:
        return error
    raise AssertionError("the trace was taken")


def faults(folder: Path, content: bytes, **options: Any) -> list[tuple[object, object]]:
    """Line and field of every fault named."""
    return [(each.about["line"], each.about["field"]) for each in refusal(folder, content, **options).faults]


def lines(*rows: dict[str, Any]) -> bytes:
    """Rows as a file."""
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def row(**changes: Any) -> dict[str, Any]:
    """A good row with changes; None leaves a field out."""
    good: dict[str, Any] = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    return {name: value for name, value in (good | changes).items() if value is not None}
