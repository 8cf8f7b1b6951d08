"""Reference cases and traces kept with the tests, gzipped."""

import gzip
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

GOLDEN = Path(__file__).parent
TRACES = GOLDEN / "traces"


@lru_cache
def document(name: str) -> Any:
    """The parsed file `name`.json.gz; shared, so not to be written into."""
    return orjson.loads(gzip.decompress((GOLDEN / f"{name}.json.gz").read_bytes()))


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of a file, whether it is a list or holds one under `cases`."""
    found = document(name)
    return list(found if isinstance(found, list) else found["cases"])


def case(name: str, case_id: str) -> dict[str, Any]:
    """One case by id."""
    return next(found for found in cases(name) if found["id"] == case_id)


def trace(name: str) -> bytes:
    """The text of a trace."""
    return gzip.decompress((TRACES / f"{name}.gz").read_bytes())
