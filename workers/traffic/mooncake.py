"""Mooncake traces to requests: open loop on the trace's clock, or closed loop in file order.

Source: traffic spec, sections 3.1 to 3.4 and 3.6 (mooncake-delta).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.traffic.requests import RequestBatch
from workers.traffic.spans import SpanFields, Spans
from workers.traffic.synthetic import Dialect
from workers.traffic.trace_rows import TraceFaultError, TraceRows


@dataclass(frozen=True, slots=True)
class TraceDrive:
    """How a trace is replayed.

    in_flight_cap: closed loop, timestamps ignored; None: open loop. speedup divides arrivals and think times of an
    open loop only. is_delta: later rows of a session carry only their new input. stop_after_ms: virtual-time limit.
    """

    trace_block_size: int = 512
    speedup: float = 1.0
    in_flight_cap: int | None = None
    is_delta: bool = False
    stop_after_ms: float | None = None
    dialect: Dialect = "spica"

    def __post_init__(self) -> None:
        if self.trace_block_size < 1:
            raise ValueError(f"trace_block_size must be at least 1, got {self.trace_block_size}")
        if not (math.isfinite(self.speedup) and self.speedup > 0):
            raise ValueError(f"arrival_speedup_ratio must be positive and finite, got {self.speedup}")
        if self.in_flight_cap is not None and self.in_flight_cap < 1:
            raise ValueError(f"in_flight_cap must be at least 1, got {self.in_flight_cap}")


def mooncake_batch(rows: TraceRows, drive: TraceDrive) -> RequestBatch:
    """The requests of a trace.

    Raises: TraceFaultError when the rows do not fit the drive (delays, stamps, empty prompts in `spica`).
    """
    by_session = np.argsort(rows.session, kind="stable")
    session = rows.session[by_session]
    is_first = np.diff(session, prepend=-1) != 0
    stamps = rows.timestamp_ms[by_session]
    lines = rows.line[by_session]
    _check_dialect(rows, drive, stamps, is_first, lines)
    delays = _think_times(rows.delay_ms[by_session], stamps, is_first, lines)
    first_stamps = np.nan_to_num(stamps[is_first])
    arrivals = np.full(session.size, np.nan)
    order = np.arange(first_stamps.size, dtype=np.int64)
    if drive.in_flight_cap is None:
        order = np.argsort(first_stamps, kind="stable").astype(np.int64)
        arrivals[is_first] = (first_stamps - first_stamps.min()) / drive.speedup
        delays = delays / drive.speedup
    else:
        arrivals[is_first] = 0.0
    lengths = rows.input_tokens[by_session]
    outputs = rows.output_tokens[by_session]
    fields: SpanFields = {}
    if rows.block_id.size:  # Without ids nothing is known to be shared.
        spans = _row_spans(rows, by_session, drive.trace_block_size)
        if drive.is_delta:
            lengths, spans = _with_history(spans, session, lengths, outputs)
        fields = spans.as_fields() if drive.is_delta or _shares_tokens(spans) else {}
    return RequestBatch(
        arrival_ms=arrivals,
        delay_ms=delays,
        input_tokens=lengths,
        output_tokens=outputs,
        session=session,
        order=order,
        in_flight_cap=drive.in_flight_cap,
        stop_after_ms=drive.stop_after_ms,
        **fields,
    ).frozen()


def _check_dialect(
    rows: TraceRows,
    drive: TraceDrive,
    stamps: NDArray[np.float64],
    is_first: NDArray[np.bool_],
    lines: NDArray[np.int64],
) -> None:
    """What dialect `spica` refuses and `cli` does not mind."""
    if drive.dialect != "spica":
        return
    _refuse(rows.input_tokens == 0, rows.line, "a request needs a positive input_length")
    if drive.in_flight_cap is None:
        _refuse(is_first & np.isnan(stamps), lines, "first turn is missing its timestamp (first_arrival_timestamp_ms)")
    else:
        _refuse(stamps < 0, lines, "timestamp must be non-negative")


def _refuse(bad: NDArray[np.bool_], lines: NDArray[np.int64], detail: str) -> None:
    """Name the first line that is bad, if there is one."""
    if bad.any():
        raise TraceFaultError(detail, int(lines[bad].min()))


def _think_times(
    delays: NDArray[np.float64],
    stamps: NDArray[np.float64],
    is_first: NDArray[np.bool_],
    lines: NDArray[np.int64],
) -> NDArray[np.float64]:
    """float64 [R], ms before each turn: its explicit delay, else the gap to the last known stamp, else 0."""
    explicit = np.nan_to_num(delays)
    _refuse(is_first & (explicit != 0), lines, "delay on the first turn")
    _refuse(explicit < 0, lines, "invalid delay")
    is_inferred = ~is_first & np.isnan(delays) & ~np.isnan(stamps)
    gaps = stamps - np.roll(_last_known(stamps, is_first), 1)
    _refuse(is_inferred & np.isnan(gaps), lines, "cannot infer delay without a previous timestamp")
    _refuse(is_inferred & (gaps < 0), lines, "invalid delay: timestamps decrease inside a session")
    return np.where(is_inferred, gaps, explicit)


def _last_known(stamps: NDArray[np.float64], is_first: NDArray[np.bool_]) -> NDArray[np.float64]:
    """float64 [R]: at or before each row of its session, the last stamp present; NaN where there is none."""
    rows = np.arange(stamps.size)
    known = np.maximum.accumulate(np.where(np.isnan(stamps), -1, rows))
    session_start = np.maximum.accumulate(np.where(is_first, rows, 0))
    return np.where(known >= session_start, stamps[known], np.nan)


def _row_spans(rows: TraceRows, by_session: NDArray[np.int64], block: int) -> Spans:
    """One span per trace block of every row, the last one cut at the prompt's end."""
    lengths = rows.input_tokens[by_session]
    counts = -(-lengths // block)
    offset = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    source = np.repeat(rows.block_offset[:-1][by_session] - offset[:-1], counts) + np.arange(offset[-1])
    tokens = np.full(offset[-1], block, dtype=np.int64)
    tokens[offset[1:][counts > 0] - 1] = (lengths - (counts - 1) * block)[counts > 0]
    ids = rows.block_id[source]
    first_output = int(ids.max(initial=-1)) + 1
    return Spans(offset, ids, tokens, first_output + np.arange(lengths.size, dtype=np.int64))


def _with_history(
    spans: Spans, session: NDArray[np.int64], lengths: NDArray[np.int64], outputs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Spans]:
    """Prompt lengths and spans when each turn repeats all earlier prompts and outputs of its session first."""
    full_lengths = lengths.copy()
    ids: list[NDArray[np.int64]] = []
    tokens: list[NDArray[np.int64]] = []
    for row in range(lengths.size):
        own = slice(spans.offset[row], spans.offset[row + 1])
        row_ids, row_tokens = spans.ids[own], spans.tokens[own]
        if row and session[row] == session[row - 1]:
            emitted = outputs[row - 1 : row][outputs[row - 1 : row] > 0]
            row_ids = np.concatenate((ids[-1], spans.output[row - 1 : row][: emitted.size], row_ids))
            row_tokens = np.concatenate((tokens[-1], emitted, row_tokens))
            full_lengths[row] += full_lengths[row - 1] + outputs[row - 1]
        ids.append(row_ids)
        tokens.append(row_tokens)
    offset = np.concatenate(([0], np.cumsum([part.size for part in ids]))).astype(np.int64)
    return full_lengths, Spans(offset, np.concatenate(ids), np.concatenate(tokens), spans.output)


def _shares_tokens(spans: Spans) -> bool:
    """Whether two prompts begin with the same span."""
    heads = spans.ids[spans.offset[:-1][np.diff(spans.offset) > 0]]
    return np.unique(heads).size < heads.size
