"""What happened to each request, and the token gaps, as arrays: the output of a replay, the input of metrics."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COMPLETED, REJECTED, UNFINISHED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Per-request moments (NaN where the moment never came) and pooled token gaps.

    arrival_ms, first_admit_ms, first_token_ms, second_token_ms, last_token_ms, end_ms: float64 [R], ms from 0.
    generated_tokens, admissions: int64 [R].
    first_reused_tokens, max_reused_tokens: int64 [R]; prefix reuse at the first admission, largest over admissions.
    status: int8 [R]; COMPLETED, REJECTED or UNFINISHED (virtual-time limit).
    worker, dp_rank: int32 [R]; prefill_worker: rank among all ranks of the prefill pool; -1 where none.
    gap_ms: float64 [G], gap_count: int64 [G]; token gap lengths with multiplicity (zero gaps of bursts included).
    prefill_worker_s, decode_worker_s: provisioned worker-seconds (aggregated workers count as decode).
    end_of_replay_ms: the last event, a completion unless a request was refused later or a virtual-time limit struck.
    """

    arrival_ms: NDArray[np.float64]
    first_admit_ms: NDArray[np.float64]
    first_token_ms: NDArray[np.float64]
    second_token_ms: NDArray[np.float64]
    last_token_ms: NDArray[np.float64]
    end_ms: NDArray[np.float64]
    generated_tokens: NDArray[np.int64]
    admissions: NDArray[np.int64]
    first_reused_tokens: NDArray[np.int64]
    max_reused_tokens: NDArray[np.int64]
    status: NDArray[np.int8]
    worker: NDArray[np.int32]
    dp_rank: NDArray[np.int32]
    prefill_worker: NDArray[np.int32]
    gap_ms: NDArray[np.float64]
    gap_count: NDArray[np.int64]
    committed_prefill_tokens: int
    prefill_worker_s: float
    decode_worker_s: float
    end_of_replay_ms: float
