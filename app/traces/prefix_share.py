"""How many of a trace's blocks an endless cache would already hold: the leading run of seen ids of each request.

Source: data/traces README of the reference cases, "ideal reuse with an unbounded cache".
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_IDS_PER_PASS = 1 << 19
_MAX_IDS = 1 << 25
_READ_IDS = 1 << 18
_READ_REQUESTS = 1 << 16
_MIX = np.uint64(0x9E3779B97F4A7C15)


class PrefixShare(NamedTuple):
    """Of the first `num_requests` requests, which are all unless there are very many ids.

    ratio: shared blocks over all blocks. num_distinct: different ids.
    """

    ratio: float | None
    num_distinct: int
    num_requests: int


def prefix_share(counts: NDArray[np.int64], read: Callable[[int, int], NDArray[np.uint64]]) -> PrefixShare:
    """The share over requests in order of arrival.

    Args: counts, int64 [R], ids per request, overwritten; read(first, count), so many ids from the first on.
    Memory: one byte per id examined (at most 32 MiB), and some 40 bytes for each of the ids of one pass.
    """
    ends = np.cumsum(counts, out=counts)
    num_requests = int(np.searchsorted(ends, _MAX_IDS, side="right"))
    num_ids = int(ends[num_requests - 1]) if num_requests else 0
    if not num_ids:
        return PrefixShare(None, 0, num_requests)
    is_new = _first_occurrences(num_ids, read)
    shared = sum(
        _leading_seen(
            is_new, int(ends[first - 1]) if first else 0, ends[first : min(first + _READ_REQUESTS, num_requests)]
        )
        for first in range(0, num_requests, _READ_REQUESTS)
    )
    return PrefixShare(round(shared / num_ids, 6), int(is_new.sum()), num_requests)


def _first_occurrences(num_ids: int, read: Callable[[int, int], NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """bool [num_ids]: the id occurs here for the first time. Equal ids fall into the same pass."""
    is_new = np.zeros(num_ids, dtype=np.bool_)
    passes = -(-num_ids // _IDS_PER_PASS)
    for each in range(passes):
        ids, places = [], []
        for first in range(0, num_ids, _READ_IDS):
            part = read(first, min(_READ_IDS, num_ids - first))
            mine = np.flatnonzero(((part * _MIX) >> np.uint64(40)) % np.uint64(passes) == each)
            # Once per part: a prefix that every request shares would put all its occurrences into one pass.
            different, at = np.unique(part[mine], return_index=True)
            ids.append(different)
            places.append(mine[at] + first)
        firsts = np.unique(np.concatenate(ids), return_index=True)[1]
        is_new[np.concatenate(places)[firsts]] = True
    return is_new


def _leading_seen(is_new: NDArray[np.bool_], start: int, ends: NDArray[np.int64]) -> int:
    """Blocks before the first new one, summed over the requests whose ids end at `ends`, the first from `start` on."""
    starts = np.append(start, ends[:-1])
    new = np.flatnonzero(is_new[start : ends[-1]]) + start
    nearest = np.append(new, is_new.size)[np.searchsorted(new, starts)]
    return int((np.minimum(nearest, ends) - starts).sum())
