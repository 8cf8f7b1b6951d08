"""Seeded random search: the whole space without replacement, in an order that depends on the seed alone."""

from collections.abc import Iterator

import numpy as np

from workers.search.standing import Arm, Standing

_PERMUTED = 2_000_000
"""Spaces up to this size are permuted; larger ones are drawn from, repeats left out."""


def draws(standing: Standing, branch: int | None, seed: int) -> Iterator[tuple[Arm, float | None]]:
    """Arms not asked yet, with a uniform ratio where a range of KV loads is searched."""
    prepared = standing.outline
    numbers = range(len(prepared.branches)) if branch is None else [branch]
    counts = [prepared.branches[number].num_groups * prepared.branches[number].num_options for number in numbers]
    ends = np.cumsum(counts)
    limits = prepared.space.config.workload.kv_load_range
    known = {arm for arm, told in standing.asked.items() if told}
    rng = np.random.Generator(np.random.PCG64([seed, 0 if branch is None else branch + 1]))
    for position in _order(rng, int(ends[-1]) if len(counts) else 0):
        own = int(np.searchsorted(ends, position, side="right"))
        outlined = prepared.branches[numbers[own]]
        group, option = divmod(position - int(ends[own]) + counts[own], outlined.num_options)
        arm = (outlined.first + group, option)
        ratio = None if limits is None else limits[0] + (limits[1] - limits[0]) * float(rng.random())
        if arm not in known:
            yield arm, ratio


def _order(rng: np.random.Generator, total: int) -> Iterator[int]:
    if total <= _PERMUTED:
        yield from rng.permutation(total).tolist()
        return
    seen: set[int] = set()
    while len(seen) < total:
        position = int(rng.integers(total))
        if position not in seen:
            seen.add(position)
            yield position
