"""Estimated passes that the latency models know before the first real one, from the step times of the replay.

Source: search spec, section 5.5.
"""

from collections.abc import Iterator
from typing import Protocol

from workers.planner.latency import AggLatency, DecodeLatency, PrefillLatency
from workers.planner.observation import EngineFacts

_STEPS = 8
_FEWEST_TOKENS = 100
_CONTEXTS = (500, 2000, 4000, 8000)


class StepTimes(Protocol):
    """What is read of an engine's step times; see workers.replay.fleet.StepTimes. Results in ms."""

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        """n prompts of `isl` tokens, `prefix` of them cached."""

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:
        """n decoding requests."""


def seed_prefill(model: PrefillLatency, facts: EngineFacts, times: StepTimes) -> None:
    """Single prompts up to a whole pass."""
    for tokens in _prompt_tokens(facts):
        model.seed(tokens, times.prefill_ms(1, tokens, 0))


def seed_decode(model: DecodeLatency, facts: EngineFacts, times: StepTimes) -> None:
    """Batches of several sizes at several context lengths, as far as the KV cache holds them."""
    for batch, context in _batches(facts):
        model.seed(batch, batch * context, times.decode_ms(batch, batch * context, context))


def seed_agg(model: AggLatency, facts: EngineFacts, times: StepTimes) -> None:
    """Both kinds of passes by themselves, and every prompt beside the largest batch of each context length."""
    largest = {context: (batch, context) for batch, context in _batches(facts)}
    for tokens in _prompt_tokens(facts):
        prefill_ms = times.prefill_ms(1, tokens, 0)
        model.seed(tokens, 0, prefill_ms)
        for batch, context in largest.values():
            both_ms = prefill_ms + times.decode_ms(batch, batch * context, context)
            model.seed(tokens, batch * context, both_ms)
    for batch, context in _batches(facts):
        model.seed(0, batch * context, times.decode_ms(batch, batch * context, context))


def _prompt_tokens(facts: EngineFacts) -> Iterator[int]:
    most = facts.max_num_batched_tokens
    if most <= _FEWEST_TOKENS:
        yield most
        return
    yield from range(_FEWEST_TOKENS, most + 1, max(1, (most - _FEWEST_TOKENS) // _STEPS))


def _batches(facts: EngineFacts) -> Iterator[tuple[int, int]]:
    """Batch and context length; one rank holds its share of the engine's KV tokens."""
    room = facts.max_kv_tokens // facts.attention_dp
    for context in _CONTEXTS:
        most = min(facts.max_num_seqs, room // context)
        for batch in range(1, most + 1, max(1, facts.max_num_seqs // _STEPS)):
            yield batch, context
