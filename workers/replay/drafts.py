"""Which draft tokens a speculative decode step accepts: a function of request and position, not of event order."""

import numpy as np
from numba import njit

from workers.replay.state import GENERATED, NUM_DRAFTS, acceptance_of, limits_of, requests_of


@njit(cache=True, nogil=True)
def accepted_drafts(st, r, limit):  # type: ignore[no-untyped-def]
    """Leading acceptances among `limit` drafts of request r after its `generated` tokens."""
    limit = min(limit, limits_of(st)[NUM_DRAFTS])
    for draft in range(limit):
        probability = acceptance_of(st)[draft]
        if probability <= 0.0:
            return draft
        if probability < 1.0 and _uniform(r, requests_of(st)[r, GENERATED] + draft) >= probability:
            return draft
    return limit


@njit(cache=True, nogil=True)
def _uniform(r, position):  # type: ignore[no-untyped-def]
    """A number in [0, 1) for one request and token position (SplitMix64 of both, seed 42)."""
    mixed = (
        np.uint64(42)
        + np.uint64(r) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(position) * np.uint64(0xD1B54A32D192ED03)
    )
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
