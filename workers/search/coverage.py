"""How much of a space a history settles.

A candidate is settled by its own verdict, by a twin's (see `classes`), by a bound below what was found, or because its
whole group was found to have no capacity or no data.
"""

import numpy as np

from workers.search.history import Coverage
from workers.search.standing import Standing


def coverage(standing: Standing, ended: bool) -> Coverage:
    """Counts over the space; `ended` says that nothing more will be asked."""
    if standing.outline.space.config.workload.kv_load_range is not None:
        evaluated = sum(len(told) for told in standing.asked.values())
        return Coverage(evaluated, 0, 0, None, False)
    total, settled, evaluated = standing.outline.space.size, _settled(standing), len(standing.settled)
    exhaustive = settled == total
    left = total - settled if ended else len(standing.asked) - evaluated
    return Coverage(evaluated, settled - evaluated, left, total, exhaustive)


def _settled(standing: Standing) -> int:
    prepared = standing.outline
    sizes = np.bincount(prepared.standing, minlength=prepared.standing.size)
    alive = np.zeros(prepared.standing.size, dtype=np.bool_)
    alive[prepared.order] = standing.alive(prepared.order)
    for group in standing.hopeless:
        alive[prepared.standing[group]] = False
    settled = 0
    for own in prepared.branches:
        groups = slice(own.first, own.first + own.num_groups)
        settled += int(sizes[groups][~alive[groups]].sum()) * own.num_options
    known = standing.settled
    for group, option in known:
        stands = int(prepared.standing[group])
        if not alive[stands]:
            continue
        own = prepared.branches[prepared.branch_of(group)]
        routing = own.classes.routing[0 if own.classes.single[(group - own.first) // len(own.branch.batching)] else 1]
        twin = int(routing[option])
        if (stands, twin) == (group, option):
            settled += int(sizes[group]) * int((routing == option).sum())
        elif (stands, twin) not in known:
            settled += 1
    return settled
