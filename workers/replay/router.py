"""KV-aware routing of one pool: cached prefix against load, as the router believes them (traffic specification, 4.2).

The router counts load by itself: prompt tokens from routing to the first token, full prompt blocks from routing to the end
of a request. It sees a rank's cache as it was at the end of the rank's last pass. Equal costs, and temperatures, are decided
by one number per request, drawn from the router's seed (`draws`), where the modelled router draws anew in every run.

loads: int64 [ranks, NUM_LOADS]. routes: int32 [ranks * shared nodes, NUM_ROUTES], numbered as in kv_cache: SEEN, cached
blocks as of the last pass end; HOLDERS, unfinished requests that use the node; COVERED, most blocks any of them uses (of those
since the node was last without holders); CHANGED_NEXT chains the nodes changed since the last pass end, UNCHANGED for
others. believed: int64 [R], prompt tokens counted for a request. All empty without such a router.
"""

import math

from workers.replay.compiled import inner
from workers.replay.kv_cache import CACHED
from workers.replay.lost_pages import forget_lost, remembered_pages
from workers.replay.pass_records import num_ready, ready_rank
from workers.replay.retained import END_RUN, FIRST_RUN, radix_tree_of
from workers.replay.state import (
    BACKEND,
    BELIEVED_BLOCKS,
    BELIEVED_TOKENS,
    BLOCK_SIZE,
    CACHING,
    CHANGED_HEAD,
    CHANGED_NEXT,
    COVERED,
    CREDIT,
    DECODE,
    DP_RANK,
    HOLDERS,
    LOAD_SCALE,
    NONE,
    NUM_DP,
    NUM_NODES,
    OWN_START,
    PATH_END,
    PATH_START,
    PREFILL,
    PROMPT,
    REFUSED,
    ROLE,
    SEEN,
    SGLANG,
    TEMPERATURE,
    UNCHANGED,
    WORKER,
    believed_of,
    extents_of,
    limits_of,
    loads_of,
    paths_of,
    requests_of,
    router_draws_of,
    router_of,
    routes_of,
    sgl_runs_of,
    whole_blocks,
)


@inner
def is_routed(st):  # type: ignore[no-untyped-def]
    """True when the pool has a KV-aware router."""
    return loads_of(st).shape[0] > 0


@inner
def pick(st, r):  # type: ignore[no-untyped-def]
    """The rank of least cost for request r, whose load counts there from now on."""
    router, draw = router_of(st), router_draws_of(st)[r]
    least, most, equals = math.inf, -math.inf, 0
    for i in range(num_ready(st)):
        cost = _cost(st, ready_rank(st, i), r)
        most = max(most, cost)
        if cost < least:
            least, equals = cost, 1
        elif cost == least:
            equals += 1
    if router[TEMPERATURE] <= 0.0 or most == least:
        chosen = _nth_of_cost(st, r, least, int(draw * equals))
    else:
        chosen = _sample(st, r, least, (most - least) * router[TEMPERATURE], draw)
    _count(st, chosen, r)
    return chosen


@inner
def _nth_of_cost(st, r, cost, place):  # type: ignore[no-untyped-def]
    for i in range(num_ready(st)):
        s = ready_rank(st, i)
        if _cost(st, s, r) == cost:
            if place == 0:
                return s
            place -= 1
    return ready_rank(st, 0)


@inner
def _sample(st, r, least, scale, draw):  # type: ignore[no-untyped-def]
    """A rank by weights exp(-(cost - least) / scale)."""
    total = 0.0
    for i in range(num_ready(st)):
        total += math.exp(-(_cost(st, ready_rank(st, i), r) - least) / scale)
    reached = 0.0
    for i in range(num_ready(st)):
        s = ready_rank(st, i)
        reached += math.exp(-(_cost(st, s, r) - least) / scale)
        if reached > draw * total:
            return s
    return ready_rank(st, num_ready(st) - 1)


@inner
def _cost(st, s, r):  # type: ignore[no-untyped-def]
    """Prefill engines have no decode load, decode engines no prefill load and no use for a cached prefix."""
    limits, router, load = limits_of(st), router_of(st), loads_of(st)
    cost = 0.0
    if limits[ROLE] != DECODE:
        tokens = load[s, BELIEVED_TOKENS] + requests_of(st)[r, PROMPT]
        prefill = max(0.0, tokens / limits[BLOCK_SIZE] - router[CREDIT] * _overlap(st, s, r))
        cost = router[LOAD_SCALE] * prefill
    if limits[ROLE] != PREFILL:
        cost += load[s, BELIEVED_BLOCKS] + _new_blocks(st, s, r)
    return cost


@inner
def _overlap(st, s, r):  # type: ignore[no-untyped-def]
    """Leading full prompt blocks of request r that rank s is believed to have cached."""
    limits, req, way, route = limits_of(st), requests_of(st), paths_of(st), routes_of(st)
    if limits[CACHING] == 0:
        return 0
    full = whole_blocks(limits, req[r, PROMPT])
    if limits[BACKEND] == SGLANG:
        runs = sgl_runs_of(st)
        size = limits[BLOCK_SIZE]
        return remembered_pages(radix_tree_of(st), s, runs, req[r, FIRST_RUN], req[r, END_RUN], full, size)
    found = 0
    for j in range(req[r, PATH_START], req[r, PATH_END]):
        here = min(route[s * limits[NUM_NODES] + way[j, 0], SEEN], full - found)
        found += max(0, here)
        if here < way[j, 2]:
            break
    return found


@inner
def _new_blocks(st, s, r):  # type: ignore[no-untyped-def]
    """Full prompt blocks of request r that no unfinished request of rank s has."""
    limits, req, way, route = limits_of(st), requests_of(st), paths_of(st), routes_of(st)
    full = whole_blocks(limits, req[r, PROMPT])
    count = max(0, full - req[r, OWN_START])
    for j in range(req[r, PATH_START], req[r, PATH_END]):
        if way[j, 1] >= full:
            break
        covered = route[s * limits[NUM_NODES] + way[j, 0], COVERED]
        count += max(0, min(way[j, 2], full - way[j, 1]) - covered)
    return count


@inner
def _count(st, s, r):  # type: ignore[no-untyped-def]
    """Request r belongs to the load of rank s."""
    limits, req, way, route, load = limits_of(st), requests_of(st), paths_of(st), routes_of(st), loads_of(st)
    believed_of(st)[r] = req[r, PROMPT] - limits[BLOCK_SIZE] * _overlap(st, s, r)
    load[s, BELIEVED_TOKENS] += believed_of(st)[r]
    load[s, BELIEVED_BLOCKS] += _new_blocks(st, s, r)
    full = whole_blocks(limits, req[r, PROMPT])
    for j in range(req[r, PATH_START], req[r, PATH_END]):
        if way[j, 1] >= full:
            break
        node = s * limits[NUM_NODES] + way[j, 0]
        route[node, HOLDERS] += 1
        route[node, COVERED] = max(route[node, COVERED], min(way[j, 2], full - way[j, 1]))


@inner
def note_first_token(st, r):  # type: ignore[no-untyped-def]
    """Request r has its first token: its prompt is no load any more."""
    if not is_routed(st):
        return
    req, load = requests_of(st), loads_of(st)
    s = req[r, WORKER] * limits_of(st)[NUM_DP] + req[r, DP_RANK]
    load[s, BELIEVED_TOKENS] -= believed_of(st)[r]
    believed_of(st)[r] = 0


@inner
def note_end(st, r, status):  # type: ignore[no-untyped-def]
    """Request r has ended on its rank; one that its prefill engine refuses stays in the books of the decode engine."""
    limits = limits_of(st)
    if not is_routed(st) or (limits[ROLE] == DECODE and status == REFUSED):
        return
    note_first_token(st, r)
    req, way, route, load = requests_of(st), paths_of(st), routes_of(st), loads_of(st)
    s = req[r, WORKER] * limits[NUM_DP] + req[r, DP_RANK]
    full = whole_blocks(limits, req[r, PROMPT])
    load[s, BELIEVED_BLOCKS] -= max(0, full - req[r, OWN_START])
    for j in range(req[r, PATH_START], req[r, PATH_END]):
        if way[j, 1] >= full:
            break
        node = s * limits[NUM_NODES] + way[j, 0]
        route[node, HOLDERS] -= 1
        if route[node, HOLDERS] == 0:
            load[s, BELIEVED_BLOCKS] -= route[node, COVERED]
            route[node, COVERED] = 0


@inner
def show_cache(st, s):  # type: ignore[no-untyped-def]
    """A pass of rank s ended: the router sees what is cached there now."""
    if not is_routed(st):
        return
    if limits_of(st)[BACKEND] == SGLANG:
        forget_lost(radix_tree_of(st), s)
        return
    route, load, ext = routes_of(st), loads_of(st), extents_of(st)
    node = load[s, CHANGED_HEAD]
    while node != NONE:
        route[node, SEEN] = ext[node, CACHED]
        after = route[node, CHANGED_NEXT]
        route[node, CHANGED_NEXT] = UNCHANGED
        node = after
    load[s, CHANGED_HEAD] = NONE
