"""The course of a replay in equal buckets, from per-request moments alone.

In flight and queued are exact means over each bucket. Tokens are spread evenly between a request's first and last one,
and a request holds its whole prompt from admission to its end, so output and KV use are close estimates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.replay.compiled import entry, inner
from workers.replay.fleet import Fleet
from workers.replay.outcomes import Outcomes
from workers.traffic.requests import RequestBatch

MAX_BUCKETS = 500
DEFAULT_BUCKETS = 120
_IN_FLIGHT, _QUEUED, _KV_TOKENS, _EMITTED, _NUM_COURSES = range(5)
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


@dataclass(frozen=True, slots=True)
class Moments:
    """What the timeline reads of R requests: float64 [R] each, ms (NaN: never came) and tokens."""

    arrival: Floats
    admitted: Floats
    first_token: Floats
    last_token: Floats
    end: Floats
    prompt_tokens: Floats
    generated_tokens: Floats


def timeline(outcomes: Outcomes, batch: RequestBatch, fleet: Fleet, num_buckets: int = DEFAULT_BUCKETS) -> Timeline:
    """At most 500 buckets; none when the replay took no time.

    Raises: ValueError when num_buckets is outside 1..500.
    """
    moments = Moments(
        outcomes.arrival_ms,
        outcomes.first_admit_ms,
        outcomes.first_token_ms,
        outcomes.last_token_ms,
        outcomes.end_ms,
        batch.input_tokens.astype(np.float64),
        outcomes.generated_tokens.astype(np.float64),
    )
    return course(moments, outcomes.end_of_replay_ms, capacity_tokens(fleet), num_buckets)


def course(
    moments: Moments, end_ms: float, capacity: int, num_buckets: int = DEFAULT_BUCKETS, copies: int = 1
) -> Timeline:
    """The timeline of a fleet of which `moments` are one of `copies` equal parts; capacity: KV tokens of the fleet.

    Raises: ValueError when num_buckets is outside 1..500.
    """
    if not 1 <= num_buckets <= MAX_BUCKETS:
        raise ValueError(f"num_buckets must lie in 1..{MAX_BUCKETS}, got {num_buckets}")
    if not end_ms > 0:
        nothing = np.zeros(0)
        return Timeline(np.zeros(1), nothing, nothing, nothing, nothing, nothing)
    edge_ms = np.linspace(0.0, end_ms, num_buckets + 1)
    sums = np.zeros((_NUM_COURSES, 3, num_buckets + 2))
    _add_requests(
        edge_ms,
        moments.arrival,
        moments.admitted,
        moments.first_token,
        moments.last_token,
        moments.end,
        moments.prompt_tokens,
        moments.generated_tokens,
        sums,
    )
    zero, one, two = np.cumsum(sums[:, :, : num_buckets + 1], axis=2).transpose(1, 0, 2)
    total = zero + one * edge_ms + two * edge_ms**2
    per_ms = np.diff(total, axis=1) * (copies * num_buckets / end_ms)
    return Timeline(
        edge_ms=edge_ms,
        in_flight=per_ms[_IN_FLIGHT],
        queued=per_ms[_QUEUED],
        kv_tokens=per_ms[_KV_TOKENS],
        kv_used_ratio=per_ms[_KV_TOKENS] / capacity,
        output_tok_s=per_ms[_EMITTED] * 1000.0,
    )


def capacity_tokens(fleet: Fleet) -> int:
    """KV tokens of the pools that hold requests while they decode."""
    pool = fleet.agg or fleet.decode
    return pool.num_blocks * pool.block_size * pool.attention_dp * pool.replicas if pool else 1


@entry
def _add_requests(edge_ms, arrival, admitted, first_token, last_token, end, prompts, generated, sums):  # type: ignore[no-untyped-def]
    """Add every request to `sums`, float64 [courses, 3, E + 1]: by edge, what begins to count there, as coefficients of
    1, edge and edge^2; the running total at an edge is the course's integral up to it."""
    last_ms = edge_ms[edge_ms.size - 1]
    width_ms = last_ms / (edge_ms.size - 1)
    for r in range(arrival.size):
        if np.isnan(arrival[r]):
            continue
        start = arrival[r]
        stop = last_ms if np.isnan(end[r]) else end[r]
        admit = min(last_ms if np.isnan(admitted[r]) else admitted[r], stop)
        first = min(max(last_ms if np.isnan(first_token[r]) else first_token[r], start), stop)
        last = min(max(last_ms if np.isnan(last_token[r]) else last_token[r], first), stop)
        tokens = generated[r]
        at_first = min(tokens, 1.0) if last > first else tokens
        _add_held(sums[_IN_FLIGHT], edge_ms, width_ms, start, stop, 1.0)
        _add_held(sums[_QUEUED], edge_ms, width_ms, start, admit, 1.0)
        _add_held(sums[_KV_TOKENS], edge_ms, width_ms, admit, stop, prompts[r])
        _add_linear(sums[_KV_TOKENS], edge_ms, width_ms, first, at_first)
        _add_linear(sums[_KV_TOKENS], edge_ms, width_ms, stop, -tokens)
        sums[_EMITTED, 0, _edge_at(edge_ms, width_ms, first)] += at_first
        if last > first and tokens > 1:
            slope = (tokens - 1) / (last - first)
            _add_held(sums[_EMITTED], edge_ms, width_ms, first, last, slope)
            _add_square(sums[_KV_TOKENS], edge_ms, width_ms, first, slope / 2)
            _add_square(sums[_KV_TOKENS], edge_ms, width_ms, last, -slope / 2)


@inner
def _edge_at(edge_ms, width_ms, moment):  # type: ignore[no-untyped-def]
    """The first edge at or after a moment; the number of edges if there is none."""
    at = max(0, int(moment / width_ms))
    while at < edge_ms.size and edge_ms[at] < moment:
        at += 1
    while at > 0 and edge_ms[at - 1] >= moment:
        at -= 1
    return min(at, edge_ms.size)


@inner
def _add_linear(course_sums, edge_ms, width_ms, moment, weight):  # type: ignore[no-untyped-def]
    """weight * (edge - moment) at every edge from the moment on."""
    at = _edge_at(edge_ms, width_ms, moment)
    course_sums[0, at] -= weight * moment
    course_sums[1, at] += weight


@inner
def _add_held(course_sums, edge_ms, width_ms, start, stop, weight):  # type: ignore[no-untyped-def]
    """weight * (time spent in [start, stop) up to an edge)."""
    _add_linear(course_sums, edge_ms, width_ms, start, weight)
    _add_linear(course_sums, edge_ms, width_ms, stop, -weight)


@inner
def _add_square(course_sums, edge_ms, width_ms, moment, weight):  # type: ignore[no-untyped-def]
    """weight * (edge - moment)^2 at every edge from the moment on."""
    at = _edge_at(edge_ms, width_ms, moment)
    course_sums[0, at] += weight * moment * moment
    course_sums[1, at] -= 2.0 * weight * moment
    course_sums[2, at] += weight
