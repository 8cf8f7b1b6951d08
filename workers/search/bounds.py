"""Upper bounds on what a candidate can score in the simulator, from step times alone.

The load: R requests of `isl` prompt and `osl` output tokens, one turn each, at most C in flight (C = R in an open
loop). In a trace the lengths differ; `isl` and `osl` are then the means, contexts run from the shortest prompt to the
longest request, and what follows holds for the whole replay's sums, none of its requests being rejected.

**Proof.** An engine (one rank) spends its time in passes; the length of a pass is prefill(...) + decode(n, context),
each part 0 if absent (replay-engine spec, 3.3 and 7.5). Lock-step ranks only wait longer.

(1) *Tokens.* Except for the first token of a request, which comes with its last prompt chunk, n requests in a decode
    part get one token each (1 + k with k draft tokens). A decode part of n requests takes at least D(n), the least
    decode time over the contexts isl..isl+osl. Let h be the least concave function with h(0) = 0 and h(n) >= n / D(n)
    for n up to the most requests that a rank can run: `max_num_seqs`, C, and the KV blocks over the blocks of a
    prompt.
(2) *Prompts.* A pass that computes t prompt tokens takes at least t * kappa in its prefill part; preemption and
    recomputation only add to that. With shared tokens or a prefix cache that may hit, kappa = 0.
(3) *Aggregated.* Let x be the requests completed per ms up to some moment and E the ranks. Prefill parts take x * isl
    * kappa of the E rank-milliseconds per ms, so on average K = E - x * isl * kappa ranks decode, and with at most C
    requests in flight their token rate is at most the average of sum h(n_r) <= K h(C / K) (h is concave, and K h(C /
    K) is concave in K). So x (osl - 1) <= K h(C / K) (1 + k): `x` is found by bisection.
(4) *Disaggregated.* Prefill engines: x isl kappa <= E_prefill. Decode engines: x osl <= E_decode h(C / E_decode) (1 +
    k).
(5) *Open loop.* No replay ends before its last arrival: R requests at a constant interval take (R - 1) intervals.
(6) *Latency.* The k-th completion comes no earlier than k / x; in a closed loop min(C, R - completed) requests are in
    flight, and the sum of all latencies is the integral of that number: at least C (R - C / 2) / x. Also, a request
    alone takes isl * kappa + (osl - 1) min D(n) at least. No gap between two tokens is shorter than min D(n). Where
    lengths differ, the first completions may be those of short requests, and only the latter holds.
(7) *One token.* A prefill engine may finish a request of one token by itself: where lengths differ, decode engines are
    charged with x (osl - 1) tokens.

**What it rests on.** D and kappa are the least over samples of the step times (every n; contexts and prompt lengths
on a grid), lowered by `DECODE_SLACK` and `PREFILL_SLACK`, which cover how far the measured times dip between samples;
a test audits both. As a second net, the search stops trusting bounds as soon as any replay beats its own (see
`search`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

DECODE_SLACK = 0.02
PREFILL_SLACK = 0.05
_CONTEXT_SAMPLES = 3
_PREFILL_SAMPLES, _FEWEST_TOKENS = 64, 16
SGLANG_CHUNK = 8192
"""SGLang's prefill chunk, tokens per pass and group; `max_num_batched_tokens` is ignored (replay-engine spec, 7.3)."""


class Times(Protocol):
    """Step times of one engine in whole nanoseconds; as workers.timing.aic."""

    def __hash__(self) -> int:
        """By identity: one object answers for one engine."""

    def prefill_ns(self, n: int, isl: int, prefix: int) -> int:
        """One prefill part."""

    def decode_ns(self, n: int, context: int) -> int:
        """One decode part."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load as the bounds see it. concurrency None: open loop.

    isl, osl: prompt and output tokens of every request, or their means. span_ms: no replay is shorter; None: unknown.
    lengths: shortest prompt and longest request, tokens; None: all requests are alike.
    """

    isl: float
    osl: float
    num_requests: int
    concurrency: int | None
    span_ms: float | None
    shares_tokens: bool
    tokens_per_step: int = 1
    lengths: tuple[int, int] | None = None

    @property
    def contexts(self) -> tuple[int, int]:
        """Least and greatest context that a decode part can meet, tokens."""
        return self.lengths or (int(self.isl), int(self.isl + self.osl))

    @property
    def arrival_rate(self) -> float:
        """Requests per ms at most, whatever serves them (proof, 5)."""
        return self.num_requests / self.span_ms if self.span_ms else np.inf

    @property
    def handed_over(self) -> float:
        """Output tokens of a request that a decode engine makes at least (proof, 7)."""
        return self.osl if self.lengths is None else self.osl - 1

    @property
    def in_flight(self) -> int:
        """Most requests in flight."""
        return self.num_requests if self.concurrency is None else min(self.concurrency, self.num_requests)


@dataclass(frozen=True, slots=True)
class Curve:
    """What one rank can do at best.

    rate:     float64 [N + 1], tokens per ms with n requests decoding at once, concave, rate[0] = 0.
    step_ms:  shortest decode part, ms.
    token_ms: prefill time of a prompt token at best, ms (kappa).
    """

    rate: NDArray[np.float64]
    step_ms: float
    token_ms: float

    def at(self, requests: NDArray[np.float64]) -> NDArray[np.float64]:
        """Token rate with so many requests, fractions included; constant beyond the most that a rank runs."""
        return np.interp(requests, np.arange(self.rate.size), self.rate)


@lru_cache(maxsize=4096)
def curve(times: Times, load: Load, most: int, max_tokens: int, decodes: bool, prefills: bool) -> Curve:
    """The curve of a rank that runs at most `most` requests and computes at most `max_tokens` prompt tokens a pass."""
    step_ms, rate = 0.0, np.full(most + 1, np.inf)
    rate[0] = 0.0
    if decodes:
        steps = _decode_ms(times, load, most)
        step_ms = float(steps.min())
        rate = _concave(np.concatenate([[0.0], np.arange(1, most + 1) / steps]))
    token_ms = 0.0
    if prefills and not load.shares_tokens:
        token_ms = _token_ms(times, load, most, max_tokens)
    return Curve(rate, step_ms, token_ms)


def _decode_ms(times: Times, load: Load, most: int) -> NDArray[np.float64]:
    """Least decode part for n = 1..most: float64 [most], ms."""
    contexts = np.unique(np.linspace(*load.contexts, _CONTEXT_SAMPLES).astype(np.int64))
    steps = [min(times.decode_ns(n, int(context)) for context in contexts) for n in range(1, most + 1)]
    return np.asarray(steps, dtype=np.float64) / 1e6 * (1 - DECODE_SLACK)


def _token_ms(times: Times, load: Load, most: int, max_tokens: int) -> float:
    """Least prefill time per prompt token (kappa), ms.

    A pass holds at most one prompt cut by the pass before and one cut by its own budget, so n <= tokens / isl + 2. Its
    floor-mean lengths understate the new tokens by less than one per prompt.
    """
    best = np.inf
    for tokens in np.unique(
        np.geomspace(min(_FEWEST_TOKENS, max_tokens), max_tokens, _PREFILL_SAMPLES).astype(np.int64)
    ):
        for n in range(1, min(most, int(tokens) // load.contexts[0] + 2) + 1):
            length = max(1, int(tokens) // n - 1)
            best = min(best, times.prefill_ns(n, length, 0) / int(tokens))
    return float(best) / 1e6 * (1 - PREFILL_SLACK)


def _concave(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least concave function over 0..N that is nowhere below `values`, non-decreasing: float64 [N + 1]."""
    hull: list[int] = []
    for point in range(values.size):
        while len(hull) > 1 and _turns_up(values, hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    lifted = np.interp(np.arange(values.size), hull, values[hull])
    return np.maximum.accumulate(lifted)


def _turns_up(values: NDArray[np.float64], first: int, middle: int, last: int) -> bool:
    slope = (values[last] - values[first]) / (last - first)
    return bool(values[middle] <= values[first] + slope * (middle - first))


def most_running(load: Load, max_num_seqs: int, num_blocks: int, block_size: int) -> int:
    """Most requests that a rank can run at once; at least 1, so that a curve exists for what rejects everything."""
    most = min(max_num_seqs, load.in_flight)
    if not load.shares_tokens:
        most = min(most, num_blocks // -(-load.contexts[0] // block_size))
    return max(1, most)


def agg_rate(ranks: NDArray[np.float64], best: Curve, load: Load) -> NDArray[np.float64]:
    """Requests per ms at most, by number of ranks: float64, shape of `ranks` (proof, 3)."""
    own_ms = load.isl * best.token_ms
    low, high = np.zeros_like(ranks), np.full_like(ranks, np.inf)
    if own_ms > 0:
        high = ranks / own_ms
    if load.osl > 1:
        high = np.minimum(high, _decoding(ranks, best, load) / (load.osl - 1))
    high = np.where(np.isfinite(high), high, 1e12)
    for _ in range(60):
        middle = (low + high) / 2
        decoding = np.maximum(ranks - middle * own_ms, 0.0)
        fits = middle * (load.osl - 1) <= _decoding(decoding, best, load)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return high


def _decoding(ranks: NDArray[np.float64], best: Curve, load: Load) -> NDArray[np.float64]:
    """Token rate of so many decoding ranks that share the requests in flight at best: K h(C / K) (1 + k)."""
    shared = np.divide(load.in_flight, ranks, out=np.full_like(ranks, np.inf), where=ranks > 0)
    most = best.rate.size - 1
    return np.where(ranks > 0, ranks * best.at(np.minimum(shared, most)), 0.0) * load.tokens_per_step


def prefill_rate(ranks: NDArray[np.float64], best: Curve, load: Load) -> NDArray[np.float64]:
    """Requests per ms that prefill ranks can take at most (proof, 4)."""
    own_ms = load.isl * best.token_ms
    return ranks / own_ms if own_ms > 0 else np.full_like(ranks, np.inf)


def decode_rate(ranks: NDArray[np.float64], best: Curve, load: Load) -> NDArray[np.float64]:
    """Requests per ms that decode ranks can finish at most (proof, 4)."""
    tokens = load.handed_over
    return _decoding(ranks, best, load) / tokens if tokens > 0 else np.full_like(ranks, np.inf)


def gain_bounds(
    targets: Sequence[str], rate: NDArray[np.float64], alone_ms: NDArray[np.float64], step_ms: NDArray[np.float64],
    gpus: NDArray[np.float64], load: Load,
) -> NDArray[np.float64]:  # fmt: skip
    """Bounds on every target, larger is better: float64 [M, G].

    Args: rate, requests per ms; alone_ms, least latency of a request; step_ms, shortest gap; gpus: all float64 [G].
    """
    tokens_per_s = rate * load.osl * 1000.0
    latency = np.array(alone_ms, dtype=np.float64)
    if load.concurrency is not None and load.lengths is None:
        cap = load.in_flight
        queued = cap * (load.num_requests - cap / 2) / (rate * load.num_requests)
        latency = np.maximum(latency, queued)
    prompt_ms = alone_ms - (load.osl - 1) * step_ms / load.tokens_per_step
    with np.errstate(divide="ignore"):
        per_user = np.where(step_ms > 0, 1000.0 / step_ms, np.inf) if load.tokens_per_step == 1 else np.inf * step_ms
    known = {
        "throughput": tokens_per_s,
        "goodput": tokens_per_s,
        "throughput_per_gpu": tokens_per_s / gpus,
        "goodput_per_gpu": tokens_per_s / gpus,
        "throughput_per_user": per_user,
        "e2e_latency": -latency,
        "ttft": -np.maximum(prompt_ms, 0.0),
        "min_gpus": -gpus,
    }
    return np.stack([np.broadcast_to(known[target], rate.shape) for target in targets])
