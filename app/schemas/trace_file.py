"""How a checked trace lies on disk: one file per content, named by its SHA-256, written once and only read after that.

A header of 64 bytes, then columns of 8-byte little-endian values, each whole before the next; R requests, H block ids:

timestamp_ms   float64 [R], ms from the first arrival, non-decreasing where present; NaN: a later turn without a stamp
delay_ms       float64 [R], ms of think time before a later turn; NaN: not given
session        uint64 [R], the hash of the session's name; 0: a request of no session
input_tokens   int64 [R], at least 1
output_tokens  int64 [R], at least 0
block_id       uint64 [H], ceil(input_tokens / block_size) per request in turn; absent when sharing is unknown

The header is part of the content, so equal rows with another block size are another trace.
"""

import struct
from typing import NamedTuple

MAGIC = b"SPICATR1"
ROW_COLUMNS = (
    ("timestamp_ms", "<f8"),
    ("delay_ms", "<f8"),
    ("session", "<u8"),
    ("input_tokens", "<i8"),
    ("output_tokens", "<i8"),
)
BLOCK_ID_TYPE = "<u8"
VALUE_BYTES = 8
HEADER_BYTES = 64
SUFFIX = ".trace"
_HEADER = struct.Struct("<8sQQII")


class TraceHeader(NamedTuple):
    """What the columns of a file are. has_block_ids: whether prefix sharing between requests is known."""

    num_requests: int
    num_block_ids: int
    block_size: int
    has_block_ids: bool

    def pack(self) -> bytes:
        """The header's 64 bytes."""
        fixed = _HEADER.pack(MAGIC, self.num_requests, self.num_block_ids, self.block_size, self.has_block_ids)
        return fixed.ljust(HEADER_BYTES, b"\0")

    @property
    def num_bytes(self) -> int:
        """Size of the whole file."""
        return HEADER_BYTES + VALUE_BYTES * (len(ROW_COLUMNS) * self.num_requests + self.num_block_ids)


def read_header(start: bytes) -> TraceHeader:
    """The header that begins a file. Raises: ValueError if it is none."""
    if len(start) < HEADER_BYTES or not start.startswith(MAGIC):
        raise ValueError("not a stored trace")
    _, requests, ids, block_size, has_ids = _HEADER.unpack_from(start)
    return TraceHeader(requests, ids, block_size, bool(has_ids))
