"""The examples of the contract: those named fault-* are refused, all others are valid."""

import json
from pathlib import Path

import pytest

from app.routes.bodies import RefusedError, check, read_document

EXAMPLES = sorted((Path(__file__).parents[3] / "openapi" / "examples").glob("*.json"))
PLANNED_FAULTS = {"fault-model-does-not-fit"}
"""Valid as configurations; refused by their plan."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_what_its_name_says(path: Path) -> None:
    reading = read_document("application/json", path.read_bytes())
    if path.stem.startswith("fault-") and path.stem not in PLANNED_FAULTS:
        with pytest.raises(RefusedError):
            check(reading.document, reading.faults)
    else:
        assert check(reading.document, reading.faults).config


def test_examples_cover_every_load_shape() -> None:
    loads = set()
    for path in EXAMPLES:
        if not path.stem.startswith("fault-"):
            workload = json.loads(path.read_text())["workload"]
            capped = "replay_concurrency" in workload
            loads |= {
                (name, capped)
                for name in ("trace_path", "request_rate", "concurrency", "kv_load_ratio")
                if name in workload
            }
    assert loads == {
        ("trace_path", False),
        ("trace_path", True),
        ("request_rate", False),
        ("concurrency", False),
        ("kv_load_ratio", False),
    }
