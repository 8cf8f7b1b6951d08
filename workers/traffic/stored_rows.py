"""A stored trace to rows without parsing: its columns mapped from the file, once per process, its hash checked.

The pages belong to the file, so processes of one host that read the same trace share them.
Source of the layout: app.schemas.trace_file.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.schemas.trace_file import (
    BLOCK_ID_TYPE,
    HEADER_BYTES,
    ROW_COLUMNS,
    VALUE_BYTES,
    TraceHeader,
    read_header,
)
from workers.traffic.trace_rows import TraceRows, without_large_ids


class DamagedTraceError(Exception):
    """A trace's content on this host is not what its hash says."""


@lru_cache(maxsize=2)
def stored_rows(sha256: str, path: Path) -> TraceRows:
    """The rows of a content file, read-only, in order of arrival; its block size is part of the content.

    Raises: DamagedTraceError if the file is not the one that the hash names; OSError if it is not there.
    """
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise DamagedTraceError(f"trace {sha256[:12]} is damaged on this host")
        file.seek(0)
        header = read_header(file.read(HEADER_BYTES))
    columns = _columns(path, header)
    inputs = columns["input_tokens"]
    counts = -(-inputs // header.block_size) if header.has_block_ids else np.zeros_like(inputs)
    ids: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
    if header.num_block_ids:
        start = header.num_bytes - VALUE_BYTES * header.num_block_ids
        ids = np.memmap(path, BLOCK_ID_TYPE, "r", start, header.num_block_ids)
    return TraceRows(
        line=np.arange(1, header.num_requests + 1),
        timestamp_ms=columns["timestamp_ms"],
        delay_ms=columns["delay_ms"],
        input_tokens=inputs,
        output_tokens=columns["output_tokens"],
        session=_session_index(columns["session"]),
        session_names=(),
        block_offset=np.concatenate(([0], np.cumsum(counts))),
        block_id=without_large_ids(ids),
    )


def _columns(path: Path, header: TraceHeader) -> dict[str, NDArray[Any]]:
    start, column = HEADER_BYTES, VALUE_BYTES * header.num_requests
    return {
        name: np.memmap(path, kind, "r", start + column * place, header.num_requests)
        for place, (name, kind) in enumerate(ROW_COLUMNS)
    }


def _session_index(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """int64 [R]: sessions numbered by first appearance; a row of no session is one by itself."""
    rows = np.arange(keys.size)
    named = np.flatnonzero(keys)
    if not named.size:
        return rows
    first = rows.copy()
    _, at, inverse = np.unique(keys[named], return_index=True, return_inverse=True)
    first[named] = named[at[inverse]]
    return np.cumsum(first == rows)[first] - 1
