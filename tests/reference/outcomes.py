"""Sequences after the replay as arrays of moments."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tests.reference.sequence import Sequence
from workers.replay.outcomes import COMPLETED, Outcomes
from workers.traffic.requests import RequestBatch


class FinishedReplay(Protocol):
    """What the totals need to know of a replay."""

    prefill_replicas: int
    decode_replicas: int
    computed_prefill: int
    now: float


def outcomes_of(batch: RequestBatch, seqs: list[Sequence], run: FinishedReplay) -> Outcomes:
    """Moments per request, and the gaps between consecutive tokens of completed requests."""

    def moments(moment: Callable[[Sequence], float | None]) -> NDArray[np.float64]:
        return np.array([np.nan if (t := moment(s)) is None else t for s in seqs], dtype=np.float64)

    def counts(count: Callable[[Sequence], int]) -> NDArray[np.int64]:
        return np.array([count(s) for s in seqs], dtype=np.int64)

    gaps = Counter(b - a for s in seqs if s.status == COMPLETED for a, b in pairwise(s.token_ms))
    return Outcomes(
        arrival_ms=moments(lambda s: s.arrival_ms),
        first_admit_ms=moments(lambda s: s.admissions[0][0] if s.admissions else None),
        first_token_ms=moments(lambda s: _nth(s.token_ms, 0)),
        second_token_ms=moments(lambda s: _nth(s.token_ms, 1)),
        last_token_ms=moments(lambda s: _nth(s.token_ms, -1)),
        end_ms=moments(lambda s: s.end_ms),
        generated_tokens=counts(lambda s: len(s.token_ms)),
        admissions=counts(lambda s: len(s.admissions)),
        first_reused_tokens=counts(lambda s: s.admissions[0][1] if s.admissions else 0),
        max_reused_tokens=counts(lambda s: max((reuse for _, reuse in s.admissions), default=0)),
        status=counts(lambda s: s.status).astype(np.int8),
        worker=counts(lambda s: s.worker).astype(np.int32),
        dp_rank=counts(lambda s: s.dp_rank).astype(np.int32),
        prefill_worker=counts(lambda s: s.prefill_worker).astype(np.int32),
        gap_ms=np.array(sorted(gaps), dtype=np.float64),
        gap_count=np.array([gaps[gap] for gap in sorted(gaps)], dtype=np.int64),
        committed_prefill_tokens=run.computed_prefill,
        prefill_worker_s=run.prefill_replicas * run.now / 1000.0,
        decode_worker_s=run.decode_replicas * run.now / 1000.0,
        end_of_replay_ms=run.now,
    )


def _nth(values: list[float], position: int) -> float | None:
    try:
        return values[position]
    except IndexError:
        return None
