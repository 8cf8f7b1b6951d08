"""The course of a replay in equal buckets, from per-request moments alone.

In flight and queued are exact means over each bucket. Tokens are spread evenly between a request's first and last one,
and a request holds its whole prompt from admission to its end, so output and KV use are close estimates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.replay.fleet import Fleet
from workers.replay.outcomes import Outcomes
from workers.traffic.requests import RequestBatch

MAX_BUCKETS = 500
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """B buckets over [0, end of replay].

    edge_ms: float64 [B + 1]. in_flight, queued: float64 [B], mean requests. kv_tokens: float64 [B], mean tokens held by
    requests; kv_used_ratio: the same over the fleet's capacity. output_tok_s: float64 [B].
    """

    edge_ms: Floats
    in_flight: Floats
    queued: Floats
    kv_tokens: Floats
    kv_used_ratio: Floats
    output_tok_s: Floats


def timeline(outcomes: Outcomes, batch: RequestBatch, fleet: Fleet, num_buckets: int = 120) -> Timeline:
    """At most 500 buckets; none when the replay took no time.

    Raises: ValueError when num_buckets is outside 1..500.
    """
    if not 1 <= num_buckets <= MAX_BUCKETS:
        raise ValueError(f"num_buckets must lie in 1..{MAX_BUCKETS}, got {num_buckets}")
    end_ms = outcomes.end_of_replay_ms
    if not end_ms > 0:
        nothing = np.zeros(0)
        return Timeline(np.zeros(1), nothing, nothing, nothing, nothing, nothing)
    edge_ms = np.linspace(0.0, end_ms, num_buckets + 1)
    arrived = ~np.isnan(outcomes.arrival_ms)
    start = outcomes.arrival_ms[arrived]
    stop = _or(outcomes.end_ms[arrived], end_ms)
    admitted = np.minimum(_or(outcomes.first_admit_ms[arrived], end_ms), stop)
    first = np.clip(_or(outcomes.first_token_ms[arrived], end_ms), start, stop)
    last = np.clip(_or(outcomes.last_token_ms[arrived], end_ms), first, stop)
    prompts = batch.input_tokens[arrived].astype(np.float64)
    tokens = outcomes.generated_tokens[arrived].astype(np.float64)
    width_ms = end_ms / num_buckets
    held = _held_area(edge_ms, admitted, stop, prompts) + _ramp_area(edge_ms, first, last, stop, tokens)
    kv_tokens = np.diff(held) / width_ms
    return Timeline(
        edge_ms=edge_ms,
        in_flight=np.diff(_held_area(edge_ms, start, stop)) / width_ms,
        queued=np.diff(_held_area(edge_ms, start, admitted)) / width_ms,
        kv_tokens=kv_tokens,
        kv_used_ratio=kv_tokens / _capacity_tokens(fleet),
        output_tok_s=np.diff(_emitted(edge_ms, first, last, tokens)) / width_ms * 1000.0,
    )


def _or(moments: Floats, default: float) -> Floats:
    """Moments that never came become `default`."""
    return np.where(np.isnan(moments), default, moments)


def _capacity_tokens(fleet: Fleet) -> int:
    """KV tokens of the pools that hold requests while they decode."""
    pool = fleet.agg or fleet.decode
    return pool.num_blocks * pool.block_size * pool.attention_dp * pool.replicas if pool else 1


def _since(edge_ms: Floats, moments: Floats, weight: Floats, power: int) -> Floats:
    """float64 [E]: sum over moments m <= edge of weight * (edge - m) ** power, power 0, 1 or 2."""
    order = np.argsort(moments, kind="stable")
    ascending, weights = moments[order], weight[order]
    passed = np.searchsorted(ascending, edge_ms, side="right")
    sums = [np.concatenate(([0.0], np.cumsum(weights * ascending**k)))[passed] for k in range(power + 1)]
    if power == 0:
        return sums[0]
    if power == 1:
        return edge_ms * sums[0] - sums[1]
    return edge_ms**2 * sums[0] - 2 * edge_ms * sums[1] + sums[2]


def _held_area(edge_ms: Floats, start: Floats, stop: Floats, weight: Floats | None = None) -> Floats:
    """float64 [E]: weighted request-milliseconds spent in [start, stop) up to each edge."""
    weights = np.ones(start.size) if weight is None else weight
    return _since(edge_ms, start, weights, 1) - _since(edge_ms, stop, weights, 1)


def _emitted(edge_ms: Floats, first: Floats, last: Floats, tokens: Floats) -> Floats:
    """float64 [E]: tokens emitted up to each edge: one at `first`, the others evenly until `last`."""
    spread = last > first
    slope = (tokens - 1)[spread] / (last - first)[spread]
    even = _since(edge_ms, first[spread], slope, 1) - _since(edge_ms, last[spread], slope, 1)
    return even + _since(edge_ms, first, np.where(spread, np.minimum(tokens, 1.0), tokens), 0)


def _ramp_area(edge_ms: Floats, first: Floats, last: Floats, stop: Floats, tokens: Floats) -> Floats:
    """float64 [E]: token-milliseconds of generated tokens held up to each edge, released at `stop`."""
    spread = (last > first) & (tokens > 1)
    slope = (tokens - 1)[spread] / (last - first)[spread] / 2
    growing = _since(edge_ms, first[spread], slope, 2) - _since(edge_ms, last[spread], slope, 2)
    base = np.where(spread, np.minimum(tokens, 1.0), tokens)
    return growing + _since(edge_ms, first, base, 1) - _since(edge_ms, stop, tokens, 1)
