"""What a stored trace says about itself, and what an upload was like.

Reads one column of a content file at a time, so memory is bounded by 8 bytes per request a few times over.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.schemas.trace_file import BLOCK_ID_TYPE, HEADER_BYTES, ROW_COLUMNS, VALUE_BYTES, TraceHeader, read_header
from app.traces.convert import Clock
from app.traces.inflate import Inflater
from app.traces.prefix_share import prefix_share
from app.traces.spool import Order, turns_of

QUANTILES = (1, 25, 50, 75, 90, 99)
FAST_RPS = 1000.0
_PEAK_WINDOW_MS = 1000.0
_MIN_WINDOWS = 10
_PIECE_REQUESTS = 1 << 17
_MAX_EXACT_LENGTHS = 2000
_LENGTH_STEP_TOKENS = 256


@dataclass(slots=True)
class TextNotes:
    """What the text of an upload was like, beyond its rows."""

    num_lines: int = 0
    num_blank_lines: int = 0
    num_crlf_lines: int = 0
    has_bom: bool = False


class ContentFile:
    """The columns of a content file, read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self.header: TraceHeader = read_header(file.read(HEADER_BYTES))

    def column(self, name: str) -> NDArray[Any]:
        """One column, whole."""
        place, kind = next((at, kind) for at, (each, kind) in enumerate(ROW_COLUMNS) if each == name)
        requests = self.header.num_requests
        return np.fromfile(self._path, kind, requests, offset=HEADER_BYTES + VALUE_BYTES * requests * place)

    def pieces(self, name: str) -> Iterator[NDArray[Any]]:
        """One column, piece by piece."""
        place, kind = next((at, kind) for at, (each, kind) in enumerate(ROW_COLUMNS) if each == name)
        requests = self.header.num_requests
        start = HEADER_BYTES + VALUE_BYTES * requests * place
        for first in range(0, requests, _PIECE_REQUESTS):
            count = min(_PIECE_REQUESTS, requests - first)
            yield np.fromfile(self._path, kind, count, offset=start + VALUE_BYTES * first)

    def block_ids(self, first: int, count: int) -> NDArray[np.uint64]:
        """`count` block ids from `first` on."""
        start = HEADER_BYTES + VALUE_BYTES * (len(ROW_COLUMNS) * self.header.num_requests + first)
        return np.fromfile(self._path, BLOCK_ID_TYPE, count, offset=start)


def content_report(path: Path) -> dict[str, Any]:
    """What clients and the planner are told about the content; keys as in app.schemas.trace.TraceSummary."""
    content = ContentFile(path)
    requests = content.header.num_requests
    inputs = content.column("input_tokens")
    report: dict[str, Any] = {"num_requests": requests, "isl": _lengths(inputs), "input_tokens": int(inputs.sum())}
    outputs = content.column("output_tokens")
    report |= {
        "osl": _lengths(outputs),
        "output_tokens": int(outputs.sum()),
        "num_zero_token_outputs": int((outputs == 0).sum()),
        "num_one_token_outputs": int((outputs == 1).sum()),
    }
    inputs += outputs
    del outputs
    report |= {"longest_request_tokens": int(inputs.max()), "length_counts": _length_counts(inputs)}
    del inputs
    report |= _arrivals(content) | _sessions(content) | _sharing(content)
    return report | {"warnings": content_warnings(report)}


def _lengths(tokens: NDArray[np.int64]) -> dict[str, Any]:
    """Mean and nearest-rank quantiles. A partition finds them without a second array sorted in full."""
    ranks = [max(0, math.ceil(each / 100 * tokens.size) - 1) for each in QUANTILES]
    placed = np.partition(tokens, sorted(set(ranks)))
    found = {f"p{each}": int(placed[rank]) for each, rank in zip(QUANTILES, ranks, strict=True)}
    return {"mean": round(float(tokens.mean()), 3), "min": int(tokens.min()), **found, "max": int(tokens.max())}


def _length_counts(totals: NDArray[np.int64]) -> list[list[int]]:
    """Pairs [input + output tokens, requests], longest first.

    With very many distinct lengths they are rounded up to 256 tokens, as context limits are; the longest stays exact.
    """
    lengths, counts = np.unique(totals, return_counts=True)
    if lengths.size > _MAX_EXACT_LENGTHS:
        rounded = np.minimum(-(-lengths // _LENGTH_STEP_TOKENS) * _LENGTH_STEP_TOKENS, lengths[-1])
        steps, place = np.unique(rounded, return_inverse=True)
        lengths, counts = steps, np.bincount(place, weights=counts).astype(np.int64)
    return [[int(length), int(count)] for length, count in zip(lengths[::-1], counts[::-1], strict=True)]


def _arrivals(content: ContentFile) -> dict[str, Any]:
    """Span and rates; the stamps are in order, and the first is 0."""
    count, last_ms, gap_ms = 0, 0.0, 0.0
    for stamps in content.pieces("timestamp_ms"):
        known = stamps[~np.isnan(stamps)]
        if known.size:
            count += known.size
            gap_ms = max(gap_ms, float(np.diff(known, prepend=last_ms).max()))
            last_ms = float(known[-1])
    # A short trace gets shorter windows, or its peak would come out below its mean.
    window_ms = min(_PEAK_WINDOW_MS, last_ms / _MIN_WINDOWS) or _PEAK_WINDOW_MS
    return {
        "span_ms": last_ms,
        "longest_gap_ms": gap_ms,
        "mean_rate_rps": round(count / last_ms * 1000.0, 6) if last_ms > 0 else None,
        "peak_rate_rps": round(_peak(content, window_ms) / window_ms * 1000.0, 6) if last_ms > 0 else None,
        "peak_window_ms": window_ms,
    }


def _peak(content: ContentFile, window_ms: float) -> int:
    """Most arrivals in one window; windows begin at whole multiples of their length."""
    most, window, carried = 0, -1.0, 0
    for stamps in content.pieces("timestamp_ms"):
        windows, counts = np.unique(np.floor(stamps[~np.isnan(stamps)] / window_ms), return_counts=True)
        if not windows.size:
            continue
        if windows[0] == window:  # It began in the piece before.
            counts[0] += carried
        most, window, carried = max(most, int(counts.max())), float(windows[-1]), int(counts[-1])
    return most


def _sessions(content: ContentFile) -> dict[str, Any]:
    session = content.column("session")
    turns, is_first = turns_of(session)
    if not turns.size:
        return {"num_sessions": 0, "num_turns_in_sessions": 0, "max_turns": 1}
    lengths = np.diff(np.append(np.flatnonzero(is_first), turns.size))
    return {"num_sessions": lengths.size, "num_turns_in_sessions": turns.size, "max_turns": int(lengths.max())}


def _sharing(content: ContentFile) -> dict[str, Any]:
    if not content.header.has_block_ids:
        none = dict.fromkeys(("ideal_prefix_share", "num_blocks", "num_distinct_blocks", "prefix_share_requests"))
        return {"sharing": "unknown", **none}
    counts = content.column("input_tokens")
    counts += content.header.block_size - 1
    counts //= content.header.block_size
    share = prefix_share(counts, content.block_ids)
    return {
        "sharing": "known",
        "ideal_prefix_share": share.ratio,
        "num_blocks": content.header.num_block_ids,
        "num_distinct_blocks": share.num_distinct,
        "prefix_share_requests": share.num_requests,
    }


def upload_report(
    order: Order, clock: Clock, text: TextNotes, inflater: Inflater, unknown: Mapping[str, int]
) -> dict[str, Any]:
    """What had to be done to the text; keys as in app.schemas.trace.UploadReport."""
    return {
        "compression": inflater.compression,
        "num_decompressed_bytes": inflater.num_bytes,
        "num_lines": text.num_lines,
        "num_blank_lines": text.num_blank_lines,
        "num_crlf_lines": text.num_crlf_lines,
        "has_bom": text.has_bom,
        "unknown_fields": dict(unknown),
        "first_timestamp_ms": order.start / clock.divisor,
        "num_rows_moved": order.num_moved,
        "first_moved_line": order.first_moved_line,
        "first_backward_line": order.first_backward_line,
        "largest_step_back_ms": order.largest_step_back_ms,
    }


def content_warnings(summary: Mapping[str, Any]) -> list[str]:
    """What whoever replays this content should know, most serious first."""
    found = []
    rate = summary["mean_rate_rps"]
    if rate is not None and rate > FAST_RPS:
        found.append(
            f"{summary['num_requests']} requests in {summary['span_ms'] / 1000:.6g} s are {rate:.0f} requests/s: if the"
            " timestamps are seconds, not milliseconds, upload with time_unit=s"
        )
    if rate is None and summary["num_requests"] > 1:
        found.append("all requests arrive at the same instant")
    if summary["sharing"] == "unknown":
        found.append("no hash_ids: how much of the prompts is shared is unknown, and replays reuse nothing")
    if summary["num_zero_token_outputs"]:
        found.append(
            f"{summary['num_zero_token_outputs']} requests have no output: they are prefilled, count as completed,"
            " and have no latency"
        )
    return found


def upload_warnings(upload: Mapping[str, Any]) -> list[str]:
    """What was changed or left out on the way in."""
    found = []
    if upload["num_rows_moved"]:
        found.append(
            f"{upload['num_rows_moved']} rows were put in order of arrival; the first is line"
            f" {upload['first_moved_line']}, and the clock runs back by up to {upload['largest_step_back_ms']:.6g} ms"
        )
    if upload["unknown_fields"]:
        found.append(f"fields that no replay reads: {', '.join(upload['unknown_fields'])}")
    said = {"has_bom": "a byte-order mark was skipped", "num_crlf_lines": "lines end in CRLF"}
    found += [text for name, text in said.items() if upload[name]]
    return found
