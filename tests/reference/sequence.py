"""One request on its way through the plain replay, and what one pass of one rank did."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workers.replay.outcomes import UNFINISHED
from workers.traffic.requests import RequestBatch

TOKENS_PER_SPAN = 1 << 32


@dataclass(eq=False)
class Sequence:
    """A request: P prompt tokens, g generated, c computed (KV in the pool); known length L = P + g.

    tokens: identity of every token it can ever have, prompt then output; equal numbers mean equal tokens.
    max_output: O, clamped by the engine that accepts it.
    """

    index: int
    session: int
    prompt: int
    max_output: int
    tokens: NDArray[np.int64]
    arrival_ms: float = float("nan")
    generated: int = 0
    computed: int = 0
    admissions: list[tuple[float, int]] = field(default_factory=list)
    token_ms: list[float] = field(default_factory=list)
    end_ms: float = float("nan")
    status: int = UNFINISHED
    worker: int = -1
    dp_rank: int = -1
    prefill_worker: int = -1

    @property
    def length(self) -> int:
        """L, tokens known so far."""
        return self.prompt + self.generated

    @property
    def remaining_output(self) -> int:
        """O - g, tokens still to generate."""
        return self.max_output - self.generated


@dataclass(frozen=True)
class PassLoad:
    """What a pass works on and what it leaves waiting, as a planner sees it; see `workers.planner.observation`."""

    num_prefill_requests: int = 0
    prefill_tokens: int = 0
    num_decode_requests: int = 0
    decode_kv_tokens: int = 0
    queued_prefill_tokens: int = 0
    queued_decode_kv_tokens: int = 0


@dataclass
class PassResult:
    """What one pass of one rank does; everything becomes visible at the end of the (group) pass.

    emitted: (sequence, tokens) in running order. finished and rejected leave the rank.
    computed_prefill: prompt tokens (and recomputed tokens) billed or not, for the traffic totals.
    effect: False when nothing was scheduled, preempted, rejected or finished.
    """

    duration_ms: float = 0.0
    emitted: list[tuple[Sequence, int]] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    rejected: list[Sequence] = field(default_factory=list)
    computed_prefill: int = 0
    did_prefill: bool = False
    effect: bool = False
    load: PassLoad = field(default_factory=PassLoad)


def sequences(batch: RequestBatch) -> list[Sequence]:
    """Every request of the batch as a sequence that has not arrived yet."""
    return [_sequence(batch, r) for r in range(batch.num_requests)]


def _sequence(batch: RequestBatch, r: int) -> Sequence:
    prompt, output = int(batch.input_tokens[r]), int(batch.output_tokens[r])
    tokens = np.concatenate([_prompt_tokens(batch, r, prompt), _span(_output_span(batch, r), output)])
    return Sequence(index=r, session=int(batch.session[r]), prompt=prompt, max_output=output, tokens=tokens)


def _prompt_tokens(batch: RequestBatch, r: int, prompt: int) -> NDArray[np.int64]:
    if batch.span_offset is None or batch.span_id is None or batch.span_tokens is None:
        return _span(r, prompt)
    spans = range(int(batch.span_offset[r]), int(batch.span_offset[r + 1]))
    parts = [_span(int(batch.span_id[j]), int(batch.span_tokens[j])) for j in spans]
    return np.concatenate([*parts, _span(0, 0)])


def _output_span(batch: RequestBatch, r: int) -> int:
    if batch.output_span is not None:
        return int(batch.output_span[r])
    largest = batch.num_requests if batch.span_id is None else int(batch.span_id.max(initial=0))
    return largest + 1 + r


def _span(span: int, count: int) -> NDArray[np.int64]:
    """The first `count` tokens of the endless token string named `span`."""
    return span * TOKENS_PER_SPAN + np.arange(count, dtype=np.int64)
