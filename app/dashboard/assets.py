"""The dashboard's files, read once, with all that HTTP needs to send them."""

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

PAGE = "index.html"
_FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/markdown; charset=utf-8",
}
VENDORED = "chart-4.6.1"
"""Begins the name of each file that is not ours; its version in the name lets browsers keep it for good."""


class Asset(NamedTuple):
    """One file, plain and gzipped. The entity tags are strong, so each form has its own."""

    media_type: str
    plain: bytes
    gzipped: bytes
    plain_tag: str
    gzipped_tag: str
    is_immutable: bool


@lru_cache(maxsize=1)
def assets() -> dict[str, Asset]:
    """Every file of the page by name."""
    return {path.name: _read(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _MEDIA_TYPES}


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Asset(
        media_type=_MEDIA_TYPES[path.suffix],
        plain=content,
        gzipped=gzip.compress(content, 9, mtime=0),
        plain_tag=f'"{digest}"',
        gzipped_tag=f'"{digest}-gzip"',
        is_immutable=path.name.startswith(VENDORED),
    )
