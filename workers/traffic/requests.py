"""RequestBatch: the structure of arrays that every replay consumes."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """R requests, sessions in creation (or file) order, the turns of a session consecutive.

    A single request is a session of one turn. Request r's session is `session[r]`; its next turn, if any, is
    request r + 1 with the same session. Arrays are read-only once built.

    Prompt content is a list of spans: tokens `[0, span_tokens[j])` of the endless token string named
    `span_id[j]`. Two prompts share a prefix of L tokens iff their spans agree on the first L tokens. `spans` are
    None when no prompt shares a token with another (the replay then skips prefix bookkeeping).

    arrival_ms:     float64 [R], ms; release of first turns on the open-loop clock, non-decreasing over
                    first turns in `order`; ignored (0) in a closed loop; NaN for later turns.
    delay_ms:       float64 [R], ms; think time from the last token of the previous turn; 0 for first turns.
    input_tokens:   int64 [R]; prompt tokens, earlier turns included where the dialect says so.
    output_tokens:  int64 [R]; may be 0 (computed, but no token and no latency sample).
    session:        int64 [R]; 0..S-1, session index = tie-break among simultaneous releases.
    order:          int64 [S]; sessions in release order: by arrival (stable) in an open loop, by index in a closed one.
    in_flight_cap:  closed-loop limit in sessions, None for open loop.
    span_offset:    int64 [R + 1] into span_id and span_tokens, or None.
    span_id:        int64 [J]; negative never; shared id = shared content.
    span_tokens:    int64 [J], >= 1; sums to input_tokens per request.
    output_span:    int64 [R]; span id of the generated tokens (unique unless a later turn repeats them), or None.
    """

    arrival_ms: NDArray[np.float64]
    delay_ms: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    session: NDArray[np.int64]
    order: NDArray[np.int64]
    in_flight_cap: int | None
    span_offset: NDArray[np.int64] | None = None
    span_id: NDArray[np.int64] | None = None
    span_tokens: NDArray[np.int64] | None = None
    output_span: NDArray[np.int64] | None = None
    stop_after_ms: float | None = None

    def frozen(self) -> "RequestBatch":
        """This batch, its arrays made read-only."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        return self

    @property
    def num_requests(self) -> int:
        """Requests, all turns counted."""
        return int(self.input_tokens.size)
