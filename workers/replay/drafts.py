"""Which draft tokens a speculative decode step accepts, draw for draw as the modelled engine.

Every rank has a stream of its own, seeded by the pool's acceptance seed plus its rank number; every verified draft is drawn
until one fails. Certain acceptance needs no draw. `draws` holds NUM_DRAWS numbers of every rank's stream, made by the host
(`extend_draws`) before a pass could run out of them.
"""

import numpy as np
from numpy.typing import NDArray

from workers.replay.compiled import inner
from workers.replay.fleet import Pool
from workers.replay.state import (
    DRAWS_USED,
    ENGINE,
    NUM_DRAFTS,
    NUM_DRAWS,
    NUM_RUNNING,
    State,
    acceptance_of,
    draws_of,
    limits_of,
    numbers_of,
    ranks_of,
)
from workers.traffic.random_stream import RandomStream

_FIRST_DRAWS = 1024


@inner
def accepted_drafts(st, s, drafts):  # type: ignore[no-untyped-def]
    """Leading acceptances among `drafts` verified drafts of one request of rank s."""
    rank, chance = ranks_of(st), acceptance_of(st)
    known = numbers_of(st)[NUM_DRAWS]
    drafts = min(drafts, limits_of(st)[NUM_DRAFTS])
    for position in range(drafts):
        if chance[position] >= 1.0:
            continue
        if known == 0:
            return position
        draw = draws_of(st)[s * known + rank[s, DRAWS_USED]]
        rank[s, DRAWS_USED] += 1
        if draw >= chance[position]:
            return position
    return drafts


@inner
def draws_suffice(st, s):  # type: ignore[no-untyped-def]
    """True when rank s cannot run out of draws in its next pass."""
    rank = ranks_of(st)
    known = numbers_of(st)[NUM_DRAWS]
    return known == 0 or rank[s, DRAWS_USED] + rank[s, NUM_RUNNING] * limits_of(st)[NUM_DRAFTS] <= known


def needs_draws(pool: Pool) -> bool:
    """False when every draft is accepted or rejected for certain."""
    return any(0.0 < probability < 1.0 for probability in pool.acceptance)


def extend_draws(st: State, pool: Pool) -> None:
    """Make or double every rank's draws."""
    count = max(_FIRST_DRAWS, 2 * int(st["numbers"][NUM_DRAWS]))
    engines = st["records"][:: pool.attention_dp, ENGINE].tolist() or range(pool.replicas)
    st["draws"] = np.concatenate([draws_of_engine(pool, engine, count) for engine in engines])
    st["numbers"][NUM_DRAWS] = count


def draws_of_engine(pool: Pool, engine: int, count: int) -> NDArray[np.float64]:
    """float64 [ranks * count]: the first `count` draws of every rank of an engine."""
    first = pool.acceptance_seed + engine * pool.attention_dp
    return np.concatenate([RandomStream(first + rank).uniforms(count) for rank in range(pool.attention_dp)])
