"""Synthetic traffic: identical lengths, arrivals on a clock or in a closed loop, shared prefixes, multi-turn sessions.

Two dialects of the modelled system read the same knobs differently (traffic spec, section 0):
`spica`, the user's, gives every turn a fresh prompt and draws prefix groups from seed 42; `cli`, the peer's command
line, makes a turn's prompt cumulative and draws from seed 0.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workers.traffic.random_stream import RandomStream
from workers.traffic.requests import RequestBatch
from workers.traffic.spans import SpanFields, Spans, spans_from_table

Dialect = Literal["spica", "cli"]

_GROUP_SEED: dict[Dialect, int] = {"spica": 42, "cli": 0}


@dataclass(frozen=True, slots=True)
class SyntheticTraffic:
    """What every session looks like; lengths in tokens.

    isl: prompt of a turn (`cli`: its new part); osl: output of a turn; sessions: how many.
    block_size: KV block of the agg or prefill engine, the unit of `shared_prefix_ratio`.
    cached_prefix_tokens: leading tokens that all prompts share; single-turn traffic only.
    """

    isl: int
    osl: int
    sessions: int
    block_size: int
    turns: int = 1
    inter_turn_delay_ms: float = 0.0
    shared_prefix_ratio: float = 0.0
    num_prefix_groups: int = 0
    cached_prefix_tokens: int = 0
    dialect: Dialect = "spica"

    def __post_init__(self) -> None:
        for name in ("isl", "osl", "sessions", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.turns < 0 or self.num_prefix_groups < 0:
            raise ValueError("turns and num_prefix_groups must be non-negative")
        if not (math.isfinite(self.inter_turn_delay_ms) and self.inter_turn_delay_ms >= 0):
            raise ValueError(f"inter_turn_delay_ms must be finite and non-negative, got {self.inter_turn_delay_ms}")
        if not 0 <= self.shared_prefix_ratio <= 1:
            raise ValueError(f"shared_prefix_ratio must lie between 0.0 and 1.0, got {self.shared_prefix_ratio}")
        if not 0 <= self.cached_prefix_tokens <= self.isl:
            raise ValueError(f"cached_prefix_tokens must lie in [0, isl], got {self.cached_prefix_tokens}")


def constant_arrivals(count: int, interval_ms: float) -> NDArray[np.float64]:
    """float64 [count], ms: 0, then accumulated gaps; interval 0 puts everything at 0.

    The gap is interval_ms taken through its rate and back, so 30 ms becomes 29.999999999999996 as in the peer.
    Raises: ValueError when the interval is negative or not finite.
    """
    if not (math.isfinite(interval_ms) and interval_ms >= 0):
        raise ValueError(f"interval_ms must be finite and non-negative, got {interval_ms}")
    gap_ms = 1000.0 / (1000.0 / interval_ms) if interval_ms else 0.0
    gaps = np.full(count, gap_ms)
    gaps[:1] = 0.0
    return np.cumsum(gaps)


def poisson_arrivals(count: int, rate: float, seed: int) -> NDArray[np.float64]:
    """float64 [count], ms: 0, then exponential gaps of mean 1000 / rate from the stream of `seed`.

    Raises: ValueError when the rate is not positive and finite.
    """
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"rate must be positive and finite, got {rate}")
    mean_ms = 1000.0 / rate
    # The C library's logarithm, not NumPy's: the latter's last bit depends on the machine.
    gaps = [-mean_ms * math.log(1.0 - u) for u in RandomStream(seed).uniforms(max(0, count - 1))]
    return np.cumsum(np.array([0.0, *gaps])[:count])


def synthetic_batch(
    traffic: SyntheticTraffic, arrival_ms: NDArray[np.float64] | None = None, in_flight_cap: int | None = None
) -> RequestBatch:
    """The requests of `traffic`, released at `arrival_ms` (float64 [sessions], non-decreasing) or in a closed loop.

    Raises: ValueError unless exactly one of arrival_ms and in_flight_cap is given, or when the cap is below 1.
    """
    if (arrival_ms is None) == (in_flight_cap is None):
        raise ValueError("exactly one of arrival_ms and in_flight_cap drives synthetic traffic")
    if in_flight_cap is not None and in_flight_cap < 1:
        raise ValueError(f"in_flight_cap must be at least 1, got {in_flight_cap}")
    sessions, turns = traffic.sessions, max(1, traffic.turns)
    arrivals = np.full((sessions, turns), np.nan)
    arrivals[:, 0] = 0.0 if arrival_ms is None else arrival_ms
    delays = np.full((sessions, turns), traffic.inter_turn_delay_ms)
    delays[:, 0] = 0.0
    lengths = np.full((sessions, turns), traffic.isl, dtype=np.int64)
    if traffic.dialect == "cli":
        lengths += np.arange(turns) * (traffic.isl + traffic.osl)
    spans = _prompt_spans(traffic, turns)
    fields: SpanFields = {} if spans is None else spans.as_fields()
    return RequestBatch(
        arrival_ms=arrivals.reshape(-1),
        delay_ms=delays.reshape(-1),
        input_tokens=lengths.reshape(-1),
        output_tokens=np.full(sessions * turns, traffic.osl, dtype=np.int64),
        session=np.repeat(np.arange(sessions, dtype=np.int64), turns),
        order=np.arange(sessions, dtype=np.int64),
        in_flight_cap=in_flight_cap,
        **fields,
    ).frozen()


def prefix_groups(traffic: SyntheticTraffic) -> NDArray[np.int64] | None:
    """int64 [sessions], the prefix group of each session; None when nothing is shared."""
    if traffic.num_prefix_groups == 0 or traffic.shared_prefix_ratio == 0:
        return None
    return RandomStream(_GROUP_SEED[traffic.dialect]).below(traffic.num_prefix_groups, traffic.sessions)


def shared_prefix_tokens(traffic: SyntheticTraffic) -> int:
    """Leading tokens a prompt shares with its group: whole blocks, half a block rounded up, cut at the prompt."""
    blocks = -(-traffic.isl // traffic.block_size)
    shared_blocks = min(blocks, math.floor(blocks * traffic.shared_prefix_ratio + 0.5))
    return min(traffic.isl, shared_blocks * traffic.block_size)


def _prompt_spans(traffic: SyntheticTraffic, turns: int) -> Spans | None:
    """Spans of all prompts, or None when no two prompts share a token."""
    groups = prefix_groups(traffic)
    shared = shared_prefix_tokens(traffic) if groups is not None else traffic.cached_prefix_tokens
    is_cumulative = traffic.dialect == "cli" and turns > 1
    if shared == 0 and not is_cumulative:
        return None
    if groups is None:
        groups = np.zeros(traffic.sessions, dtype=np.int64)
    num_requests = traffic.sessions * turns
    first_own = int(groups.max()) + 1
    own = first_own + np.arange(num_requests, dtype=np.int64).reshape(traffic.sessions, turns)
    output = own + num_requests
    if is_cumulative:
        return _cumulative_spans(traffic, groups, shared, own, output)
    ids = np.stack([np.repeat(groups, turns), own.reshape(-1)], axis=1)
    tokens = np.broadcast_to(np.array([shared, traffic.isl - shared], dtype=np.int64), ids.shape)
    return spans_from_table(ids, tokens, output.reshape(-1))


def _cumulative_spans(
    traffic: SyntheticTraffic,
    groups: NDArray[np.int64],
    shared: int,
    own: NDArray[np.int64],
    output: NDArray[np.int64],
) -> Spans:
    """Turn k repeats the spans and outputs of turns 0..k-1 before its own part; only turn 0 shares with its group."""
    sessions, turns = own.shape
    columns = [groups, own[:, 0]]
    lengths = [shared, traffic.isl - shared]
    for turn in range(1, turns):
        columns += [output[:, turn - 1], own[:, turn]]
        lengths += [traffic.osl, traffic.isl]
    width = len(columns)
    ids = np.repeat(np.stack(columns, axis=1), turns, axis=0)
    reach = 2 * (np.arange(sessions * turns) % turns + 1)
    tokens = np.where(np.arange(width) < reach[:, None], np.array(lengths, dtype=np.int64), 0)
    return spans_from_table(ids, tokens, output.reshape(-1))
