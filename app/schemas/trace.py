"""/traces: what a client sees of a stored trace."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field


class LengthView(BaseModel):
    """Lengths in tokens: mean, nearest-rank quantiles, extremes."""

    mean: float
    min: int
    p1: int
    p25: int
    p50: int
    p75: int
    p90: int
    p99: int
    max: int


class TraceSummary(BaseModel):
    """What the content says about itself, in order of arrival.

    A rate is null when all requests arrive at one instant. The ideal prefix share is the part of all blocks that an
    endless cache would hold already: in each request, the leading blocks seen in an earlier one.
    """

    num_requests: int
    span_ms: float = Field(description="First to last arrival.")
    longest_gap_ms: float
    mean_rate_rps: float | None
    peak_rate_rps: float | None
    peak_window_ms: float = Field(description="The peak is over windows of this length.")
    isl: LengthView
    osl: LengthView
    input_tokens: int
    output_tokens: int
    longest_request_tokens: int = Field(description="Input and output together.")
    num_zero_token_outputs: int = Field(description="Prefilled, completed, without any latency.")
    num_one_token_outputs: int = Field(description="Without time between tokens.")
    num_sessions: int = Field(description="Named sessions.")
    num_turns_in_sessions: int
    max_turns: int
    sharing: Literal["known", "unknown"] = Field(description="unknown: no hash_ids, so replays reuse nothing.")
    ideal_prefix_share: float | None
    num_blocks: int | None
    num_distinct_blocks: int | None
    prefix_share_requests: int | None = Field(description="Requests the share was reckoned over: the first so many.")


class UploadReport(BaseModel):
    """What an upload was like. `num_rows_moved`: rows that sorting by arrival put elsewhere."""

    format: str
    time_unit: Literal["ms", "s"] | None
    compression: Literal["gzip", "zstd"] | None
    num_bytes: int
    num_decompressed_bytes: int
    num_lines: int
    num_blank_lines: int
    num_skipped_lines: int = Field(description="Lines that hold no request, such as other events.")
    num_crlf_lines: int
    has_bom: bool
    unknown_fields: dict[str, int] = Field(description="Fields that no replay reads, and in how many rows.")
    first_timestamp_ms: float = Field(description="The first arrival as uploaded; in the trace it is 0.")
    num_rows_moved: int
    first_moved_line: int | None
    first_backward_line: int | None = Field(description="First line whose arrival is before one above it.")
    largest_step_back_ms: float
    warnings: list[str]


class TraceView(BaseModel):
    """A trace. `sha256` is that of the sorted, rebased content, so the same rows in any order are one trace."""

    id: UUID
    sha256: str
    name: str | None = Field(description="Its first alias.")
    names: list[str]
    created_at: datetime
    block_size: int = Field(description="Tokens per hash id.")
    num_requests: int
    num_bytes: int
    summary: TraceSummary
    upload: UploadReport = Field(description="Of this upload in the answer to it, of the first one otherwise.")
    warnings: list[str]
    links: dict[str, str]


class TracePage(BaseModel):
    """Traces, newest first."""

    items: list[TraceView]
    next_cursor: str | None
