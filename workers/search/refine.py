"""What `auto` asks next, stage by stage; a stage begins only when the one before it has nothing left.

1. every group that may still win, with its first option; 2. under a range of KV loads, finer loads along the front;
3. the other options of the groups, best groups first, those whose planner scales last; 4. finer loads again, now among
all options. A space too large for that is left to `moves` after a while. `ranges` says what a range of KV loads changes.
"""

from collections.abc import Iterator

from workers.search import moves, ranges
from workers.search.loads import first_ratios
from workers.search.ranges import Pick
from workers.search.standing import Arm, Standing


def refinements(standing: Standing, branch: int | None, seed: int) -> Iterator[Pick]:
    """The picks of the first stage that has any, in order."""

    def moved(standing: Standing, branch: int | None) -> Iterator[Pick]:
        for arm in moves.moves(standing, branch, seed):
            yield from _unasked(standing, arm)

    for stage in (moved, _finer) if moves.is_large(standing) else (_first_options, _finer, _other_options):
        found = False
        for pick in stage(standing, branch):
            found = True
            yield pick
        if found:
            return


def _groups(standing: Standing, branch: int | None, *, scaled: bool) -> list[int]:
    """Groups whose static or scaled options may still win, most promising first."""
    prepared = standing.outline
    order = prepared.order
    if branch is not None:
        own = prepared.branches[branch]
        order = order[(order >= own.first) & (order < own.first + own.num_groups)]
    return [group for group in order[standing.alive(order, scaled=scaled)].tolist() if group not in standing.hopeless]


def _first_options(standing: Standing, branch: int | None) -> Iterator[Pick]:
    if _has_range(standing) and standing.outline.promising.size:
        yield from ranges.coarse(standing, branch, lambda group: _options(standing, group)[0])
        return
    arms = (
        arm
        for scaled in (False, True)
        for group in _groups(standing, branch, scaled=scaled)
        if standing.is_scaled(arm := (group, _options(standing, group)[0])) == scaled
    )
    for arm in arms:
        yield from _unasked(standing, arm)


def _finer(standing: Standing, branch: int | None) -> Iterator[Pick]:
    if _has_range(standing):
        yield from ranges.fine(standing, branch)


def _other_options(standing: Standing, branch: int | None) -> Iterator[Pick]:
    if _has_range(standing) and standing.outline.promising.size:
        yield from ranges.options(standing, branch, lambda group: _options(standing, group)[1:])
        return
    for scaled in (False, True):
        groups = _groups(standing, branch, scaled=scaled)
        for group in sorted(groups, key=lambda group: _reached(standing, group)):
            for option in _options(standing, group)[1:]:
                if standing.is_scaled((group, option)) == scaled:
                    yield from _unasked(standing, (group, option))


def _has_range(standing: Standing) -> bool:
    return standing.outline.space.config.workload.kv_load_range is not None


def _options(standing: Standing, group: int) -> list[int]:
    own = standing.outline.branches[standing.outline.branch_of(group)]
    return own.options(group - own.first)


def _reached(standing: Standing, group: int) -> tuple[bool, float]:
    """Groups on the front first, then by the score of the first option."""
    told = standing.asked.get((group, _options(standing, group)[0]), [])
    scores = [each.score for each in told if each.score is not None]
    if standing.goal.is_pareto:
        return (not any(each.number in standing.leading for each in told), 0.0)
    return (False, -max(scores, default=float("-inf")))


def _unasked(standing: Standing, arm: Arm) -> Iterator[Pick]:
    limits = standing.outline.space.config.workload.kv_load_range
    told = standing.asked.get(arm, [])
    if limits is None:
        if not told:
            yield arm, None
        return
    yield from ranges.NewLoads(standing).of(arm, first_ratios(*limits))
