"""How many trials a search still has before it, as far as its history tells.

A search that ends by its certificate takes every arm that may still win and has not been asked. That is few once the
first results have shown what leads, and unknown before. A range of KV loads ends when its front stands still, and moves
through a large space end where they find nothing better: neither says beforehand when.
"""

import numpy as np

from workers.search import moves
from workers.search.standing import Standing


def arms_left(standing: Standing) -> int | None:
    """Arms not asked yet that may still win; in a large space those before the moves begin. None while unknown."""
    known = standing.outline
    if known.space.config.workload.kv_load_range is not None or (known.is_bounded and not standing.asked):
        return None
    num_alive = moves.num_alive(standing)
    if num_alive > moves.MOST_ARMS:
        return max(moves.BEST_FIRST - len(standing.asked), 0) or None
    return num_alive - _num_done(standing)


def _num_done(standing: Standing) -> int:
    """Arms among those alive that need no trial: asked, or of a group known to be hopeless."""
    known, groups = standing.outline, np.arange(standing.outline.standing.size)
    alive = {scaled: standing.alive(groups, scaled=scaled) for scaled in (False, True)}
    done = set(standing.asked)
    for group in standing.hopeless:
        own = known.branches[known.branch_of(group)]
        done |= {(group, option) for option in own.options(group - own.first)}
    return sum(
        bool(alive[standing.is_scaled(arm)][arm[0]])
        for arm in done
        if known.standing[arm[0]] == arm[0] and known.twins(*arm)[0] == arm[1]
    )
