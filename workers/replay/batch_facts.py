"""What replays want to know of a batch again and again."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.replay.kept import Kept
from workers.traffic.requests import RequestBatch

_FEW_SHAPES = 16
_FEW_TOKENS = 300_000


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Facts of a batch of R requests in S sessions.

    first: int64 [S], first request of every session in release order. has_next: int8 [R]. is_plain: one turn each.
    is_uniform: all requests have the same lengths. is_in_order: sessions are released in the order of their requests.
    asks_each_decode: so few pairs of lengths, or output tokens, that asking the time of every decode step costs little.
    longest, longest_output: tokens of a request, prompt and output, and of an output.
    has_empty_prompt, has_empty_output: some request has no prompt or no output token.
    """

    first: NDArray[np.int64]
    has_next: NDArray[np.int8]
    is_plain: bool
    is_uniform: bool
    is_in_order: bool
    asks_each_decode: bool
    longest: int
    longest_output: int
    has_empty_prompt: bool
    has_empty_output: bool


_kept = Kept[BatchFacts](most=64)


def facts_of(batch: RequestBatch) -> BatchFacts:
    """The facts of a batch, kept for the next candidates."""
    return _kept.of((batch,), lambda: _facts_of(batch), weight=batch.num_requests)


def _facts_of(batch: RequestBatch) -> BatchFacts:
    num = batch.num_requests
    has_next = np.zeros(num, dtype=np.int8)
    has_next[:-1] = batch.session[1:] == batch.session[:-1]
    starts = np.flatnonzero(np.concatenate([[True], has_next[:-1] == 0])[:num])
    first_of = np.zeros(int(batch.session.max(initial=-1)) + 1, dtype=np.int64)
    first_of[batch.session[starts]] = starts
    shapes = np.unique(batch.input_tokens * (1 << 32) + batch.output_tokens).size
    first = first_of[batch.order]
    return BatchFacts(
        first=first,
        has_next=has_next,
        is_plain=bool(starts.size == num),
        is_uniform=shapes <= 1,
        is_in_order=bool((first[1:] > first[:-1]).all()),
        asks_each_decode=shapes <= _FEW_SHAPES or int(batch.output_tokens.sum()) <= _FEW_TOKENS,
        longest=int((batch.input_tokens + batch.output_tokens).max(initial=0)),
        longest_output=int(batch.output_tokens.max(initial=0)),
        has_empty_prompt=bool((batch.input_tokens == 0).any()),
        has_empty_output=bool((batch.output_tokens == 0).any()),
    )
