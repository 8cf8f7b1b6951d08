"""What a planner sees at a tick of the replay, and what it answers: the seam between replay and scaling policy.

Source: search spec, section 5.1. Pure data; the replay fills it, the policy reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Role = Literal["agg", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The latest forward pass of one rank of a ready engine; a rank that has been idle for a while reports zeros.

    num_prefill_requests, prefill_tokens: prompts in the pass and their new tokens computed in it.
    num_decode_requests, decode_kv_tokens: requests that decode in the pass and the KV tokens of their contexts.
    queued_prefill_tokens: prompt tokens waiting for a pass. queued_decode_kv_tokens: contexts waiting to decode.
    wall_time_ms: duration of the pass.
    """

    engine: int
    dp_rank: int
    num_prefill_requests: int
    prefill_tokens: int
    num_decode_requests: int
    decode_kv_tokens: int
    queued_prefill_tokens: int
    queued_decode_kv_tokens: int
    wall_time_ms: float


@dataclass(frozen=True, slots=True)
class RoleView:
    """The engines of one role: `ready` take work; `expected` counts those that are starting too, not the draining ones.

    records: one per rank of a ready engine that has reported since the start of the replay, ascending engine and rank.
    """

    ready: int
    expected: int
    records: tuple[PassRecord, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sums since the previous tick; the planner adds ticks up for its longer interval.

    num_requests: arrivals. num_completed, isl_tokens, osl_tokens: completions, their prompt and output tokens.
    num_admitted, hit_rate_sum: first admissions by an engine, and the sum over them of cached / prompt tokens.
    """

    num_requests: int = 0
    num_completed: int = 0
    isl_tokens: int = 0
    osl_tokens: int = 0
    num_admitted: int = 0
    hit_rate_sum: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What does not change about the engines of one role.

    gpus: of one engine. max_kv_tokens: KV tokens of one engine (all ranks). max_num_batched_tokens, max_num_seqs: per
    rank and pass. context_length: longest sequence in tokens, None = not limited. accepted_length: mean output tokens
    of one decode pass per request; above 1 with drafts. attention_dp: ranks of one engine.
    """

    gpus: int
    max_kv_tokens: int
    max_num_batched_tokens: int
    max_num_seqs: int
    context_length: int | None = None
    accepted_length: float = 1.0
    attention_dp: int = 1


@dataclass(frozen=True, slots=True)
class Observation:
    """The state after all work of the instant of a tick."""

    now_ms: float
    roles: Mapping[Role, RoleView]
    traffic: Traffic


class Scaler(Protocol):
    """A scaling policy of one replay; it may keep state between ticks, so each replay needs its own.

    interval_ms: time between ticks, the first tick at one interval. startup_ms: from decision to readiness of an
    engine that the policy adds; 0 = ready in the instant of the tick.
    """

    interval_ms: float
    startup_ms: float

    def decide(self, observation: Observation) -> Mapping[Role, int]:
        """Engines wanted per role, starting ones included; a role that is not named stays as it is."""
