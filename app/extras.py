"""Optional extras of an installation: what is looked for, and where.

The extra `vizier` is 700 MB with pins of its own, so it lives in an environment of its own: `.venv-vizier` beside the
sources, or the one whose interpreter SPICA_VIZIER_PYTHON names. It is never imported here, only looked at.
"""

import os
from pathlib import Path

VIZIER_SETTING = "SPICA_VIZIER_PYTHON"
_BESIDE_THE_SOURCES = Path(__file__).parent.parent / ".venv-vizier" / "bin" / "python"


def vizier_python() -> Path | None:
    """The interpreter that has the extra `vizier`; None without one. Read on each call, so installing needs no restart."""
    given = os.environ.get(VIZIER_SETTING)
    python = Path(given) if given else _BESIDE_THE_SOURCES
    packages = python.parent.parent.glob("lib/python3*/site-packages")
    has_it = any((folder / "vizier").is_dir() and (folder / "jax").is_dir() for folder in packages)
    return python if has_it and os.access(python, os.X_OK) else None
