"""How functions of this package are compiled, and where the compiled code is kept.

numba keeps compiled code per file and does not notice when a function that was inlined from another file has changed.
The directory is therefore named after the sources of the whole package: any change compiles anew, nothing stale is ever
loaded. Base directory: $NUMBA_CACHE_DIR, else a folder in the user's cache directory.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import config, njit

_PACKAGE = Path(__file__).parent
_SOURCES = sorted([*_PACKAGE.rglob("*.py"), *(_PACKAGE.parent / "timing").glob("*.py")])


def _cache_dir() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for source in _SOURCES:
        digest.update(source.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR") or str(Path.home() / ".cache" / "spica-replay")
    return os.path.join(base, digest.hexdigest()[:16])


config.CACHE_DIR = _cache_dir()

entry: Callable[[Callable[..., Any]], Any] = njit(nogil=True, cache=True)
"""For functions that Python calls: compiled code is kept on disk."""

inner: Callable[[Callable[..., Any]], Any] = njit(nogil=True)
"""For functions that compiled functions call: they become part of their callers."""
