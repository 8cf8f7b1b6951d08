"""Frozen description of the engines a replay runs: the only input besides requests."""

from dataclasses import dataclass
from typing import Literal, Protocol

RoleName = Literal["agg", "prefill", "decode"]


class StepTimes(Protocol):
    """How long one engine step takes; see workers.timing. All arguments are integers, results ms >= 0."""

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        """n prompts, floor-mean length (prefix included), floor-mean prefix; rounded to whole nanoseconds."""

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:
        """n decoding requests, summed and floor-mean context length; rounded to whole nanoseconds."""


@dataclass(frozen=True, slots=True)
class Pool:
    """All engines of one role: `replicas` groups of `attention_dp` ranks, each rank with its own scheduler and KV pool.

    num_blocks: KV blocks of one rank. max_num_batched_tokens, max_num_seqs: per rank and pass.
    context_length: reject limit in tokens, None = none.
    acceptance: conditional acceptance probability per draft token (empty = no speculation).
    acceptance_seed: of the draws of rank 0 of replica 0; rank r of replica w draws from a stream of its own, seeded
    acceptance_seed + w * attention_dp + r (see `workers.traffic.random_stream`).
    prefill_schedule_interval: vLLM with attention DP; 1 = off. prefill_decode_interval: SGLang; 0 = off.
    """

    role: RoleName
    backend: Literal["vllm", "sglang", "trtllm"]
    replicas: int
    attention_dp: int
    gpus_per_replica: int
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    step_times: StepTimes
    prefix_caching: bool = True
    chunked_prefill: bool = True
    context_length: int | None = None
    acceptance: tuple[float, ...] = ()
    acceptance_seed: int = 42
    prefill_schedule_interval: int = 1
    prefill_decode_interval: int = 0


@dataclass(frozen=True, slots=True)
class KvRouter:
    """KV-aware routing (dialect S only); None in Fleet.router means round robin."""

    overlap_score_credit: float = 1.0
    prefill_load_scale: float = 1.0
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """Prefill to decode KV hand-off; bytes or bandwidth 0 or None means free."""

    bytes_per_token: float = 0.0
    bandwidth_gb_per_s: float = 0.0
    timing: Literal["full_prompt", "destination_missing"] = "full_prompt"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Either `agg`, or `prefill` and `decode`."""

    agg: Pool | None = None
    prefill: Pool | None = None
    decode: Pool | None = None
    router: KvRouter | None = None
    transfer: Transfer = Transfer()
