"""What a fleet does in its steady state under a closed loop: an expectation that puts loads in order, and no bound.

Every rank decodes its share of the requests in flight, as many as its limits admit; prompts take the time in between.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.search.bounds import Curve, Load
from workers.search.score import MINIMIZED

Steady = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Requests per ms of the fleet, and tokens per ms of one request: float64 [G, S] both."""


def agg_steady(ranks: NDArray[np.float64], best: Curve, in_flight: NDArray[np.float64], load: Load) -> Steady:
    """Args: ranks, float64 [G, 1]; in_flight, requests, float64 [G, S]."""
    decoding = _share(ranks, best, in_flight)
    rate = best.at(decoding) * load.tokens_per_step
    busy = np.minimum(ranks, in_flight)
    return busy / (load.isl * best.token_ms + (load.osl - 1) / rate), rate / decoding


def decode_steady(
    ranks: NDArray[np.float64], best: Curve, in_flight: NDArray[np.float64], load: Load, offered: NDArray[np.float64]
) -> Steady:
    """Decode engines that get no more than the prefill engines hand over; offered: requests per ms, float64 [G, 1]."""
    busy, per_request = np.minimum(ranks, in_flight), load.osl / load.tokens_per_step
    rate = np.minimum(busy * best.at(_share(ranks, best, in_flight)) / per_request, offered)
    decoding = np.maximum(np.interp(rate * per_request / busy, best.rate, np.arange(best.rate.size)), 1.0)
    return rate, best.at(decoding) * load.tokens_per_step / decoding


def _share(ranks: NDArray[np.float64], best: Curve, in_flight: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(in_flight / ranks, 1.0, max(1, best.rate.size - 1))


def expected_gains(
    targets: Sequence[str], steady: Steady, in_flight: NDArray[np.float64], gpus: NDArray[np.float64], load: Load
) -> NDArray[np.float64]:
    """Expectation of every target, larger is better: float64 [M, G, S]; -inf where the steady state is not known."""
    rate, pace = steady
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens_per_s, latency = rate * load.osl * 1000.0, in_flight / rate
        known = {
            "throughput": tokens_per_s,
            "goodput": tokens_per_s,
            "throughput_per_gpu": tokens_per_s / gpus,
            "goodput_per_gpu": tokens_per_s / gpus,
            "throughput_per_user": pace * 1000.0,
            "e2e_latency": latency,
            "ttft": np.maximum(latency - (load.osl - 1) / pace, 0.0),
            "min_gpus": np.broadcast_to(gpus, rate.shape),
        }
        gains = np.stack([-known[target] if target in MINIMIZED else known[target] for target in targets])
    return np.where(np.isfinite(gains).all(axis=0), gains, -np.inf)
