"""Load scaling under fixed thresholds: the targets throughput, latency and load.

One measure per reporting rank; an engine is added when any rank is above the upper threshold, and one is removed when
all are below the lower one, unless those left would then pass the upper one. Source: search spec, section 5.4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.planner.observation import EngineFacts, PassRecord, Role
from workers.planner.settings import Target


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a measure asks for more engines or for fewer; whether the threshold itself does."""

    up: float
    down: float
    up_at_threshold: bool
    down_at_threshold: bool

    def is_high(self, measure: float) -> bool:
        """Asks for one engine more."""
        return measure >= self.up if self.up_at_threshold else measure > self.up

    def is_low(self, measure: float) -> bool:
        """Allows one engine fewer."""
        return measure <= self.down if self.down_at_threshold else measure < self.down


PREFILL_THRESHOLDS: Mapping[Target, Thresholds] = {
    "throughput": Thresholds(1.0, 0.1, True, False),
    "latency": Thresholds(0.1, 0.0, True, True),
    "load": Thresholds(1.0, 0.0, True, True),
}
"""Queued prompt tokens over the context length; under the target load the tokens themselves."""

KV_THRESHOLDS: Mapping[Target, Thresholds] = {
    "throughput": Thresholds(1.0, 0.6, False, False),
    "latency": Thresholds(0.4, 0.1, False, False),
    "load": Thresholds(0.9, 0.7, True, True),
}
"""KV tokens, in use and waiting, over the KV capacity of an engine."""


def thresholds(role: Role, target: Target) -> Thresholds:
    """The thresholds of a role; an aggregated engine is judged like a decode engine."""
    return (PREFILL_THRESHOLDS if role == "prefill" else KV_THRESHOLDS)[target]


def measures(role: Role, target: Target, facts: EngineFacts, records: Sequence[PassRecord]) -> list[float] | None:
    """One measure per record; None where the engines lack what it is measured against."""
    if role == "prefill":
        if target == "load":
            return [float(record.queued_prefill_tokens) for record in records]
        if not facts.context_length:
            return None
        return [record.queued_prefill_tokens / facts.context_length for record in records]
    if facts.max_kv_tokens <= 0:
        return None
    waiting = 1 if role == "agg" else 0
    return [
        (record.decode_kv_tokens + record.queued_decode_kv_tokens + waiting * record.queued_prefill_tokens)
        / facts.max_kv_tokens
        for record in records
    ]


def step(role: Role, target: Target, facts: EngineFacts, records: Sequence[PassRecord], ready: int) -> int:
    """+1, 0 or -1 engines. ready: engines that took part; records: one per rank of theirs, at least one."""
    found = measures(role, target, facts, records)
    if not found:
        return 0
    limits = thresholds(role, target)
    if any(limits.is_high(measure) for measure in found):
        return 1
    if ready < 2 or not all(limits.is_low(measure) for measure in found):
        return 0
    return 0 if max(found) * ready / (ready - 1) >= limits.up else -1
