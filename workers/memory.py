"""Memory of a process that makes and drops the same large arrays again and again."""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _MAPPED_BYTES = 64 << 20, 8 << 20


def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB of freed memory instead of returning it after every replay.

    Pages that come back from the system are cleared one fault at a time: a fifth of the time of a long trace's replay.
    Arrays of 8 MB and more stay mapped on their own, since most of them are never touched. Other C libraries do as they like.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
