"""Answers of the performance-data package kept on disk between processes.

A file is `MAGIC | BLAKE2b-128 of the payload | payload`, written beside its place and renamed into it, so a reader sees
a whole file or none; a torn or foreign file fails the checksum and counts as absent. Writers do not lock: each merges
what is there with what it knows, and whoever renames last wins. Losing an entry costs one repeated question.

The folder is `SPICA_CACHE_DIR`, by default `spica-studies` under the user's cache folder; `off` switches it off.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

SETTING = "SPICA_CACHE_DIR"
_MAGIC = b"SPICA\x00\x01\n"
_DIGEST_BYTES = 16


def folder() -> Path | None:
    """The cache folder, or None when caching is off. Read on each call so that tests and workers may redirect it."""
    configured = os.environ.get(SETTING)
    if configured == "off":
        return None
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spica-studies"


def _path(kind: str, identity: str) -> Path | None:
    root = folder()
    if root is None:
        return None
    return root / kind / hashlib.blake2b(identity.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def read(kind: str, identity: str) -> bytes | None:
    """The payload stored under (kind, identity), or None if absent, damaged or unreadable."""
    path = _path(kind, identity)
    if path is None:
        return None
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST_BYTES
    payload = raw[start:]
    if not raw.startswith(_MAGIC) or _digest(payload) != raw[len(_MAGIC) : start]:
        return None
    return payload


def write(kind: str, identity: str, payload: bytes) -> bool:
    """Store a payload; False if the folder is off, full or not writable (a cache must never end a trial)."""
    path = _path(kind, identity)
    if path is None:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    except OSError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + _digest(payload) + payload)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return False
    return True


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
