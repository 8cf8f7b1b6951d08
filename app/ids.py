"""Identities: time-ordered ids, and the fingerprint of a JSON document."""

import hashlib
import json
import os
import threading
import time
from uuid import UUID

_COUNTER_BITS = 12
_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """A new UUIDv7, greater than every earlier one of this process.

    The 12 bits after the timestamp count on within a millisecond and run over into the next one.
    Source: RFC 9562, sections 5.7 and 6.2 (method 1).
    """
    global _last
    with _lock:
        _last = max(_last + 1, time.time_ns() // 1_000_000 << _COUNTER_BITS)
        stamp = _last
    random_bits = int.from_bytes(os.urandom(8)) & ((1 << 62) - 1)
    milliseconds, counter = stamp >> _COUNTER_BITS, stamp & ((1 << _COUNTER_BITS) - 1)
    return UUID(int=milliseconds << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | random_bits)


def canonical_json(document: object) -> str:
    """The one text of a JSON document: keys sorted, no blanks, ASCII. Raises ValueError for NaN and infinities."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(document: object) -> str:
    """SHA-256 of the canonical text, 64 hex digits."""
    return hashlib.sha256(canonical_json(document).encode("ascii")).hexdigest()
