"""Every request's tokens as runs of whole KV pages: what two requests share, without listing tokens or pages."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.replay.compiled import entry, inner

# Columns of PageRuns.runs.
RUN_NAME, RUN_FIRST, END_PAGE, NUM_RUN_COLUMNS = range(4)

# Odd multipliers of a 64-bit mixing hash (splitmix64).
_MIX_A = np.uint64(0x9E3779B97F4A7C15)
_MIX_B = np.uint64(0xBF58476D1CE4E5B9)
_MIX_C = np.uint64(0x94D049BB133111EB)


class PageRuns(NamedTuple):
    """R requests, J runs in all; a request's tokens are its prompt, then its output.

    offset: int64 [R + 1] into runs. runs: int64 [J, NUM_RUN_COLUMNS]. RUN_NAME: the content string. RUN_FIRST: offset
    in it, tokens, of the run's first page. END_PAGE: the request's pages up to and including the run.
    """

    offset: NDArray[np.int64]
    runs: NDArray[np.int64]


def page_runs(
    total_tokens: NDArray[np.int64],
    page_size: int,
    span_offset: NDArray[np.int64] | None,
    span_id: NDArray[np.int64] | None,
    span_tokens: NDArray[np.int64] | None,
    output_span: NDArray[np.int64] | None,
) -> PageRuns:
    """The runs of whole pages of every request; the last, incomplete page has no identity and no run.

    Args: total_tokens int64 [R], prompt plus output; the others as in RequestBatch (None: nothing is shared, every
    request is one run of its own; output_span None: outputs are unique).
    """
    num_requests = total_tokens.size
    if span_offset is None or span_id is None or span_tokens is None:
        runs = np.zeros((num_requests, NUM_RUN_COLUMNS), np.int64)
        runs[:, RUN_NAME] = np.arange(num_requests)
        runs[:, END_PAGE] = total_tokens // page_size
        return PageRuns(np.arange(num_requests + 1), runs)
    if output_span is None:
        first_unused = int(span_id.max(initial=-1)) + 1
        output_span = np.arange(first_unused, first_unused + num_requests)
    # A span gives at most a page that straddles its start and one run of whole pages.
    runs = np.empty((2 * (span_id.size + num_requests), NUM_RUN_COLUMNS), np.int64)
    offset = np.zeros(num_requests + 1, np.int64)
    spans = (np.array(array, np.int64) for array in (total_tokens, span_offset, span_id, span_tokens, output_span))
    used = _fill_runs(page_size, *spans, offset, runs)
    return PageRuns(offset, runs[:used])


@inner
def mixed(value, word):  # type: ignore[no-untyped-def]
    """Hash of a 64-bit hash and one more integer."""
    key = (value + np.uint64(word)) * _MIX_A
    key = (key ^ (key >> np.uint64(30))) * _MIX_B
    key = (key ^ (key >> np.uint64(27))) * _MIX_C
    return key ^ (key >> np.uint64(31))


@entry
def _fill_runs(page_size, total_tokens, span_offset, span_id, span_tokens, output_span, offset, runs):  # type: ignore[no-untyped-def]
    """Fill the arrays of PageRuns, return the number of runs.

    A page across spans is named by a 64-bit hash of its pieces, made negative to keep clear of span ids.
    """
    used = 0
    for request in range(total_tokens.size):
        position = 0
        straddle = np.uint64(0)
        first = used
        num_spans = span_offset[request + 1] - span_offset[request]
        for k in range(num_spans + 1):
            if k < num_spans:
                identity = span_id[span_offset[request] + k]
                tokens = span_tokens[span_offset[request] + k]
            else:
                identity = output_span[request]
                tokens = total_tokens[request] - position
            begin = 0
            while begin < tokens:
                filled = position % page_size
                name, start = identity, begin
                if filled == 0 and tokens - begin >= page_size:
                    pages = (tokens - begin) // page_size
                    piece = pages * page_size
                else:
                    piece = min(page_size - filled, tokens - begin)
                    if filled == 0:
                        straddle = np.uint64(0)
                    straddle = mixed(mixed(mixed(straddle, identity), begin), piece)
                    pages = 1 if filled + piece == page_size else 0
                    name, start = -np.int64(straddle >> np.uint64(1)) - 1, 0
                begin += piece
                position += piece
                if pages == 0:
                    continue
                if used > first and name >= 0 and runs[used - 1, RUN_NAME] == name:
                    before = runs[used - 2, END_PAGE] if used - 1 > first else 0
                    if runs[used - 1, RUN_FIRST] + (runs[used - 1, END_PAGE] - before) * page_size == start:
                        runs[used - 1, END_PAGE] += pages
                        continue
                runs[used, RUN_NAME] = name
                runs[used, RUN_FIRST] = start
                runs[used, END_PAGE] = position // page_size
                used += 1
        offset[request + 1] = used
    return used
