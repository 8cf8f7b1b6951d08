"""What `auto` asks next, stage by stage; a stage begins only when the one before it has nothing left.

1. every group that may still win, with its first option; 2. under a range of KV loads, refinement along the front;
3. the other options of the groups, best groups first, those whose planner scales last; 4. refinement again, now among
all options. A space too large for that is left to `moves` after a while.
"""

from collections.abc import Iterable, Iterator

from workers.search import moves
from workers.search.loads import FIRST_LEVEL, MAX_LEVEL, between, first_ratios, has_settled, level_of, ratio_at, step_of
from workers.search.pareto import Front, gains
from workers.search.standing import Arm, Standing, light
from workers.traffic.load_shape import kv_load_concurrency

Pick = tuple[Arm, float | None]


def refinements(standing: Standing, branch: int | None, seed: int) -> Iterator[Pick]:
    """The picks of the first stage that has any, in order."""

    def moved(standing: Standing, branch: int | None) -> Iterator[Pick]:
        for arm in moves.moves(standing, branch, seed):
            yield from _unasked(standing, arm)

    for stage in (moved, _refined) if moves.is_large(standing) else (_first_options, _refined, _other_options):
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
    for scaled in (False, True):
        for group in _groups(standing, branch, scaled=scaled):
            arm = (group, _options(standing, group)[0])
            if standing.is_scaled(arm) == scaled:
                yield from _unasked(standing, arm)


def _other_options(standing: Standing, branch: int | None) -> Iterator[Pick]:
    for scaled in (False, True):
        groups = _groups(standing, branch, scaled=scaled)
        for group in sorted(groups, key=lambda group: _reached(standing, group)):
            for option in _options(standing, group)[1:]:
                if standing.is_scaled((group, option)) == scaled:
                    yield from _unasked(standing, (group, option))


def _options(standing: Standing, group: int) -> list[int]:
    own = standing.outline.branches[standing.outline.branch_of(group)]
    return own.options(group - own.first)


def _reached(standing: Standing, group: int) -> tuple[bool, float]:
    """Groups on the front first, then by the score of the first option."""
    told = standing.asked.get((group, _options(standing, group)[0]), [])
    leads = {member.canonical for _, member in standing.front.members}
    scores = [each.score for each in told if each.score is not None]
    if standing.goal.is_pareto:
        return (not any(str(each.number) in leads for each in told), 0.0)
    return (False, -max(scores, default=float("-inf")))


def _unasked(standing: Standing, arm: Arm) -> Iterator[Pick]:
    limits = standing.outline.space.config.workload.kv_load_range
    told = standing.asked.get(arm, [])
    if limits is None:
        if not told:
            yield arm, None
        return
    yield from _new_loads(standing, arm, first_ratios(*limits))


def _new_loads(standing: Standing, arm: Arm, ratios: Iterable[float]) -> Iterator[Pick]:
    """The ratios that mean a concurrency the arm has not been asked with."""
    known, capacity = standing.concurrencies(arm), int(standing.outline.capacity[arm[0]])
    for ratio in ratios:
        concurrency = kv_load_concurrency(ratio, capacity)
        if concurrency not in known:
            known.add(concurrency)
            yield arm, ratio


def _refined(standing: Standing, branch: int | None) -> Iterator[Pick]:
    """The next level of ratios around the front, unless the last one moved it too little."""
    limits = standing.outline.space.config.workload.kv_load_range
    if limits is None:
        return
    leads = {member.canonical for _, member in standing.front.members}
    for level in range(FIRST_LEVEL + 1, MAX_LEVEL + 1):
        if level > FIRST_LEVEL + 1 and has_settled(_front_to(standing, level - 2), _front_to(standing, level - 1)):
            return
        found = list(_level(standing, branch, level, leads))
        yield from found
        if found:
            return


def _level(standing: Standing, branch: int | None, level: int, leads: set[str]) -> Iterator[Pick]:
    limits = standing.outline.space.config.workload.kv_load_range
    assert limits is not None
    for arm, told in sorted(standing.asked.items()):
        if branch is not None and standing.outline.branch_of(arm[0]) != branch:
            continue
        steps = {each.number: step_of(*limits, each.deployment.kv_load_ratio or 0.0) for each in told}
        leading = [steps[each.number] for each in told if str(each.number) in leads]
        between_them = between(steps.values(), leading, level)
        yield from _new_loads(standing, arm, [ratio_at(*limits, step, MAX_LEVEL) for step in between_them])


def _front_to(standing: Standing, level: int) -> list[tuple[float, ...]]:
    """The front of everything asked up to a level, as gains."""
    limits = standing.outline.space.config.workload.kv_load_range
    assert limits is not None
    front = Front(standing.goal.objectives)
    for told in (each for asked in standing.asked.values() for each in asked if each.objectives):
        if level_of(step_of(*limits, told.deployment.kv_load_ratio or 0.0)) <= level:
            front.add(light(told))
    return [gains(standing.goal.objectives, member)[:-1] for _, member in front.members]
