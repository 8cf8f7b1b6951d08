"""Hand-made outcomes for tests of metrics and timeline."""

import dataclasses
from typing import Any

import numpy as np

from workers.replay.fleet import Fleet, Pool
from workers.replay.outcomes import COMPLETED, REJECTED, UNFINISHED, Outcomes
from workers.timing.fixed import FixedTimes
from workers.traffic.requests import RequestBatch

POOL = Pool(
    role="agg",
    backend="vllm",
    replicas=2,
    attention_dp=1,
    gpus_per_replica=4,
    num_blocks=100,
    block_size=64,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    step_times=FixedTimes(100.0, 10.0),
)
AGG = Fleet(agg=POOL)
DISAGG = Fleet(
    prefill=dataclasses.replace(POOL, role="prefill", gpus_per_replica=2),
    decode=dataclasses.replace(POOL, role="decode", gpus_per_replica=8),
)


@dataclasses.dataclass(frozen=True)
class Seen:
    """One request: arrival and the moments of its tokens, ms. Without tokens it is rejected unless `end` is given."""

    arrival: float
    tokens: tuple[float, ...] = ()
    prompt: int = 100
    end: float | None = None
    reuse: tuple[int, int] = (0, 0)
    is_unfinished: bool = False

    @property
    def status(self) -> int:
        if self.is_unfinished:
            return UNFINISHED
        return COMPLETED if self.tokens or self.end is not None else REJECTED


def observe(*requests: Seen, **changes: Any) -> tuple[Outcomes, RequestBatch]:
    """Outcomes and batch of these requests; every request admitted at its arrival."""

    def moments(values: list[float | None]) -> np.ndarray:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    count = len(requests)
    finished = [request for request in requests if request.status == COMPLETED]
    gaps = [gap for request in finished for gap in np.diff(request.tokens).tolist()]
    ends = [request.end if request.end is not None else (request.tokens or (None,))[-1] for request in requests]
    last = max((end for end in ends if end is not None), default=0.0)
    outcomes = Outcomes(
        arrival_ms=moments([request.arrival for request in requests]),
        first_admit_ms=moments([None if request.status == REJECTED else request.arrival for request in requests]),
        first_token_ms=moments([request.tokens[0] if request.tokens else None for request in requests]),
        second_token_ms=moments([request.tokens[1] if len(request.tokens) > 1 else None for request in requests]),
        last_token_ms=moments([request.tokens[-1] if request.tokens else None for request in requests]),
        end_ms=moments(ends),
        generated_tokens=np.array([len(request.tokens) for request in requests], dtype=np.int64),
        admissions=np.array([int(request.status != REJECTED) for request in requests], dtype=np.int64),
        first_reused_tokens=np.array([request.reuse[0] for request in requests], dtype=np.int64),
        max_reused_tokens=np.array([request.reuse[1] for request in requests], dtype=np.int64),
        status=np.array([request.status for request in requests], dtype=np.int8),
        worker=np.zeros(count, dtype=np.int32),
        dp_rank=np.zeros(count, dtype=np.int32),
        prefill_worker=np.full(count, -1, dtype=np.int32),
        gap_ms=np.array(gaps, dtype=np.float64),
        gap_count=np.ones(len(gaps), dtype=np.int64),
        committed_prefill_tokens=sum(request.prompt for request in finished),
        prefill_worker_s=0.0,
        decode_worker_s=2 * last / 1000.0,
        end_of_replay_ms=last,
    )
    prompts = np.array([request.prompt for request in requests], dtype=np.int64)
    batch = RequestBatch(
        arrival_ms=outcomes.arrival_ms,
        delay_ms=np.zeros(count),
        input_tokens=prompts,
        output_tokens=outcomes.generated_tokens,
        session=np.arange(count, dtype=np.int64),
        order=np.arange(count, dtype=np.int64),
        in_flight_cap=None,
    )
    return dataclasses.replace(outcomes, **changes), batch
