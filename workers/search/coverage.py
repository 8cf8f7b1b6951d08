"""How much of a space a history settles.

A candidate is settled by its own verdict, by a twin's (see `classes`), by a bound below what was found, or because its
whole group was found to have no capacity or no data. Under a range of KV loads every concurrency of the range counts as
a candidate of its own.
"""

import numpy as np
from numpy.typing import NDArray

from workers.search.concurrencies import concurrencies, spans
from workers.search.history import Coverage
from workers.search.standing import SETTLED, Arm, Standing


def coverage(standing: Standing, ended: bool) -> Coverage:
    """Counts over the space; `ended` says that nothing more will be asked."""
    if standing.outline.space.config.workload.kv_load_range is not None:
        return _coverage_of_range(standing, ended)
    total, settled, evaluated = standing.outline.space.size, _settled(standing), len(standing.settled)
    left = total - settled if ended else len(standing.asked) - evaluated
    return Coverage(evaluated, settled - evaluated, left, total, settled == total)


def _coverage_of_range(standing: Standing, ended: bool) -> Coverage:
    prepared, limits = standing.outline, standing.outline.space.config.workload.kv_load_range
    assert limits is not None
    span, alive = spans(prepared.capacity, *limits), {scaled: _alive(standing, scaled) for scaled in (False, True)}
    # Twins have one capacity, so a group that stands for others settles as many loads of each.
    sizes = np.bincount(prepared.standing, minlength=span.size)
    total = settled = 0
    for own in prepared.branches:
        groups = slice(own.first, own.first + own.num_groups)
        total += int(span[groups].sum()) * own.num_options
        for scaled, lives in alive.items():
            settled += int((span * sizes)[groups][~lives[groups]].sum()) * own.num_options_that(scale=scaled)
    loads = {arm: _settled_loads(standing, arm) for arm in standing.asked}
    evaluated = sum(len(known) for known in loads.values())
    for (group, option), known in loads.items():
        stands = int(prepared.standing[group])
        if alive[standing.is_scaled((group, option))][stands]:
            first, twins = prepared.twins(group, option)
            is_own = (stands, first) == (group, option)
            settled += (
                len(known) * twins * int(sizes[group]) if is_own else len(known - loads.get((stands, first), set()))
            )
    asked = sum(len(told) for told in standing.asked.values())
    left = total - settled if ended else max(0, asked - evaluated)
    return Coverage(evaluated, settled - evaluated, left, total, settled == total)


def _settled_loads(standing: Standing, arm: Arm) -> set[int]:
    """Concurrencies at which an arm has a verdict."""
    settled = [told for told in standing.asked[arm] if told.status in SETTLED]
    ratios = (told.deployment.kv_load_ratio or 0.0 for told in settled)
    return concurrencies(ratios, int(standing.outline.capacity[arm[0]]))


def _alive(standing: Standing, scaled: bool) -> NDArray[np.bool_]:
    """Whether each group stands for itself and its static or scaled options may still win: bool [G]; one that stands
    for others decides for them."""
    prepared = standing.outline
    alive = np.zeros(prepared.standing.size, dtype=np.bool_)
    alive[prepared.order] = standing.alive(prepared.order, scaled=scaled)
    for group in standing.hopeless:
        alive[prepared.standing[group]] = False
    return alive


def _settled(standing: Standing) -> int:
    prepared, alive = standing.outline, {scaled: _alive(standing, scaled) for scaled in (False, True)}
    sizes = np.bincount(prepared.standing, minlength=prepared.standing.size)
    settled = 0
    for own in prepared.branches:
        groups = slice(own.first, own.first + own.num_groups)
        for scaled, lives in alive.items():
            settled += int(sizes[groups][~lives[groups]].sum()) * own.num_options_that(scale=scaled)
    known = standing.settled
    for group, option in known:
        stands = int(prepared.standing[group])
        if not alive[standing.is_scaled((group, option))][stands]:
            continue
        twin, twins = prepared.twins(group, option)
        if (stands, twin) == (group, option):
            settled += int(sizes[group]) * twins
        elif (stands, twin) not in known:
            settled += 1
    return settled
