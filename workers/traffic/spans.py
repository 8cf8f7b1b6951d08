"""Prompt content as spans: which prompts share which leading tokens, without storing a token."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray


class SpanFields(TypedDict, total=False):
    """The span arrays of a RequestBatch, by field name."""

    span_offset: NDArray[np.int64]
    span_id: NDArray[np.int64]
    span_tokens: NDArray[np.int64]
    output_span: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of R prompts, J in all; see RequestBatch.

    offset: int64 [R + 1]; ids, tokens: int64 [J]; output: int64 [R].
    """

    offset: NDArray[np.int64]
    ids: NDArray[np.int64]
    tokens: NDArray[np.int64]
    output: NDArray[np.int64]

    def as_fields(self) -> SpanFields:
        """The same arrays under their names in RequestBatch."""
        return {
            "span_offset": self.offset,
            "span_id": self.ids,
            "span_tokens": self.tokens,
            "output_span": self.output,
        }


def spans_from_table(ids: NDArray[np.int64], tokens: NDArray[np.int64], output: NDArray[np.int64]) -> Spans:
    """Spans from a rectangular table, int64 [R, W] each; entries of 0 tokens are dropped. `output`: int64 [R]."""
    used = tokens > 0
    offset = np.concatenate(([0], np.cumsum(used.sum(axis=1)))).astype(np.int64)
    return Spans(offset, ids[used], tokens[used], output)
