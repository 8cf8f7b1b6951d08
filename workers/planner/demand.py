"""What the next interval will ask for: requests, prompt and output lengths, and how much of prompts is cached.

Source: search spec, section 5.6.
"""

from collections.abc import Callable
from dataclasses import dataclass

from workers.planner.observation import Traffic
from workers.planner.predictors.predictor import Predictor


@dataclass(frozen=True, slots=True)
class Forecast:
    """One interval: requests per second, mean lengths in tokens, share of prompt tokens found in a cache."""

    requests_per_s: float
    isl: float
    osl: float
    hit_rate: float


def added(one: Traffic, other: Traffic) -> Traffic:
    """Two stretches of traffic as one."""
    return Traffic(
        one.num_requests + other.num_requests,
        one.num_completed + other.num_completed,
        one.isl_tokens + other.isl_tokens,
        one.osl_tokens + other.osl_tokens,
        one.num_admitted + other.num_admitted,
        one.hit_rate_sum + other.hit_rate_sum,
    )


class Demand:
    """Three independent predictors; the hit rate is that of the last interval with an admission."""

    def __init__(self, predictor: Callable[[], Predictor], interval_s: float) -> None:
        self._requests, self._isl, self._osl = predictor(), predictor(), predictor()
        self._interval_s = interval_s
        self._lengths = (0.0, 0.0)

    def observe(self, traffic: Traffic) -> None:
        """The interval that has ended. Without a completion it repeats the last lengths."""
        if traffic.num_completed:
            self._lengths = (
                traffic.isl_tokens / traffic.num_completed,
                traffic.osl_tokens / traffic.num_completed,
            )
        self._requests.add(float(traffic.num_requests))
        self._isl.add(self._lengths[0])
        self._osl.add(self._lengths[1])

    def forecast(self, hit_rate: float) -> Forecast:
        """The interval that begins."""
        return Forecast(self._requests.predict() / self._interval_s, self._isl.predict(), self._osl.predict(), hit_rate)
