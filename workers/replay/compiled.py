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

_PACKAGE = Path(__file__).parent
_SOURCES = sorted([*_PACKAGE.rglob("*.py"), *(_PACKAGE.parent / "timing").glob("*.py")])


def _cache_dir() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for source in _SOURCES:
        digest.update(source.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR") or str(Path.home() / ".cache" / "spica-replay")
    return os.path.join(base, digest.hexdigest()[:16])


_njit: Any = numba.njit  # its stubs know neither the option `_nrt` nor functions without annotations
numba.config.CACHE_DIR = _cache_dir()  # type: ignore[attr-defined]

_Decorator = Callable[[Callable[..., Any]], Any]
_COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

entry: _Decorator = _njit(cache=True, **_COMMON)
"""For functions that Python calls: compiled code is kept on disk."""

bare_entry: _Decorator = _njit(cache=True, _nrt=False, **_COMMON)
"""As `entry`, for functions that allocate nothing; see `inner`."""

allocating: _Decorator = _njit(**_COMMON)
"""For functions that compiled functions call and that make arrays of their own."""

inner: _Decorator = _njit(_nrt=False, **_COMMON)
"""For functions that compiled functions call. They allocate nothing, so no reference counts are kept: counting the
arrays of the address book took most of the time."""
