"""Latencies that the planner expects of one rank: time to first token from a queue, and time between tokens.

Each model learns from passes of its role, real ones and estimated ones (`seeds`), and answers in ms.
Source: search spec, section 5.5; what is modelled: docs/model/planner.md.
"""

import math

from workers.planner.observation import EngineFacts, PassRecord
from workers.planner.regression import MovingMean, PassTimes
from workers.planner.settings import PlannerSettings

LARGEST_HIT_RATE = 0.95


def computed_share(hit_rate: float) -> float:
    """Share of prompt tokens that no cache holds."""
    return 1.0 - min(max(hit_rate, 0.0), LARGEST_HIT_RATE)


class Averages:
    """Moving means over the real passes of one role: prompt and context lengths, and prompt tokens of a pass."""

    def __init__(self, size: int) -> None:
        self._prompt, self._context, self._prefill = MovingMean(size), MovingMean(size), MovingMean(size)

    def add(self, record: PassRecord) -> None:
        """One pass more."""
        if record.num_prefill_requests:
            self._prompt.add(record.prefill_tokens / record.num_prefill_requests)
        if record.num_decode_requests:
            self._context.add(record.decode_kv_tokens / record.num_decode_requests)
        self._prefill.add(float(record.prefill_tokens))

    @property
    def prompt_tokens(self) -> float:
        """Of one request in a pass."""
        return self._prompt.value

    @property
    def context_tokens(self) -> float:
        """Of one decoding request."""
        return self._context.value

    @property
    def prefill_tokens(self) -> float:
        """Prompt tokens that a pass computes."""
        return self._prefill.value


class PrefillLatency:
    """Passes of prompt tokens alone."""

    def __init__(self, settings: PlannerSettings, facts: EngineFacts) -> None:
        self._facts, self.means = facts, Averages(settings.max_num_fpm_samples)
        self.times = PassTimes(
            1, settings.max_num_fpm_samples, settings.fpm_sample_bucket_size, settings.load_min_observations
        )

    def learn(self, record: PassRecord) -> None:
        """A real pass."""
        self.means.add(record)
        self.times.learn((float(record.prefill_tokens),), record.wall_time_ms)

    def seed(self, prefill_tokens: int, duration_ms: float) -> None:
        """An estimated pass."""
        self.times.learn((float(prefill_tokens),), duration_ms)

    def ttft_ms(self, queued_tokens: float, hit_rate: float) -> float:
        """Until the queue and one more mean prompt are computed."""
        return self.drain_ms((queued_tokens + self.means.prompt_tokens) * computed_share(hit_rate))

    def drain_ms(self, tokens: float) -> float:
        """Passes of at most `max_num_batched_tokens` until the tokens are computed."""
        whole, rest = divmod(tokens, self._facts.max_num_batched_tokens)
        full_ms = self.times.ms(self._facts.max_num_batched_tokens) if whole else 0.0
        return whole * full_ms + (self.times.ms(rest) if rest > 0.0 else 0.0)


class DecodeLatency:
    """Passes of decoding requests alone. More requests at equal KV may look cheaper: that slope is clamped."""

    def __init__(self, settings: PlannerSettings, facts: EngineFacts) -> None:
        self._facts, self.means = facts, Averages(settings.max_num_fpm_samples)
        self.times = PassTimes(
            2, settings.max_num_fpm_samples, settings.fpm_sample_bucket_size, settings.load_min_observations, (0,)
        )

    def learn(self, record: PassRecord) -> None:
        """A real pass."""
        self.means.add(record)
        self.times.learn((float(record.num_decode_requests), float(record.decode_kv_tokens)), record.wall_time_ms)

    def seed(self, num_requests: int, kv_tokens: int, duration_ms: float) -> None:
        """An estimated pass."""
        self.times.learn((float(num_requests), float(kv_tokens)), duration_ms)

    def itl_ms(self, record: PassRecord, growth: float = 1.0) -> float:
        """With everything that runs or waits on the rank, `growth` times as much of it."""
        tokens = float(record.decode_kv_tokens + record.queued_decode_kv_tokens)
        return self.batch_ms(self._requests(record) * growth, tokens * growth)

    def batch_ms(self, num_requests: float, kv_tokens: float) -> float:
        """Between two tokens of a request in such a batch."""
        return self.times.ms(num_requests, kv_tokens) / self._facts.accepted_length

    def _requests(self, record: PassRecord) -> float:
        """Running requests, and those waiting as far as their KV tells their number."""
        waiting, context = record.queued_decode_kv_tokens, self.means.context_tokens
        return record.num_decode_requests + (waiting / context if waiting and context else 0.0)


class AggLatency:
    """Passes of prompt tokens and KV tokens together."""

    def __init__(self, settings: PlannerSettings, facts: EngineFacts) -> None:
        self._facts, self.means = facts, Averages(settings.max_num_fpm_samples)
        self.times = PassTimes(
            2, settings.max_num_fpm_samples, settings.fpm_sample_bucket_size, settings.load_min_observations
        )

    def learn(self, record: PassRecord) -> None:
        """A real pass."""
        self.means.add(record)
        self.times.learn((float(record.prefill_tokens), float(record.decode_kv_tokens)), record.wall_time_ms)

    def seed(self, prefill_tokens: int, kv_tokens: int, duration_ms: float) -> None:
        """An estimated pass."""
        self.times.learn((float(prefill_tokens), float(kv_tokens)), duration_ms)

    def ttft_ms(self, queued_tokens: float, hit_rate: float, kv_tokens: float) -> float:
        """Until the queue and one more mean prompt are computed, beside so many decoding KV tokens."""
        tokens = (queued_tokens + self.means.prompt_tokens) * computed_share(hit_rate)
        return self.drain_ms(tokens, kv_tokens)

    def drain_ms(self, tokens: float, kv_tokens: float) -> float:
        """Passes of at most `max_num_batched_tokens` until the tokens are computed."""
        if tokens <= 0.0:
            return 0.0
        passes = math.ceil(tokens / self._facts.max_num_batched_tokens)
        rest = tokens - (passes - 1) * self._facts.max_num_batched_tokens
        full_ms = self.times.ms(self._facts.max_num_batched_tokens, kv_tokens) if passes > 1 else 0.0
        return (passes - 1) * full_ms + self.times.ms(rest, kv_tokens)

    def itl_ms(self, kv_tokens: float) -> float:
        """Between two tokens of a request, with the prompt tokens that passes have held of late."""
        return self.batch_ms(self.means.prefill_tokens, kv_tokens)

    def batch_ms(self, prefill_tokens: float, kv_tokens: float) -> float:
        """Between two tokens of a request in such a pass."""
        return self.times.ms(prefill_tokens, kv_tokens) / self._facts.accepted_length
