"""Smaller replays with the same result: what can be left out before simulating.

Folding. In a closed loop of identical, unshared, single-turn requests, round robin deals every rank the same number of
requests at the same instants if the cap and the request count divide by the number of ranks: all ranks do the same for
ever, so one of them stands for all. (When they do not divide, ranks differ and folding would change latencies by tens of
percent.) Prefill and decode pools fold alike, to parts with one decode engine each, where a prefill engine hands over one
prompt at a time: prompts that end at one instant are then dealt one to each decode engine, and all those are in the same
state. (Of two prompts at a time, which travel one after the other, those of the first engine would come to all decode engines
first.) Only where no engine lacks blocks and no request waits for a place in a decode engine.
"""

import math
from dataclasses import replace

import numpy as np

from workers.replay.arrays import effective_output, needs_explicit
from workers.replay.batch_facts import facts_of
from workers.replay.fleet import Pool
from workers.replay.kept import Kept
from workers.timing.fixed import FixedTimes
from workers.traffic.requests import RequestBatch


def folded(pool: Pool, batch: RequestBatch) -> tuple[Pool, RequestBatch, int]:
    """(pool, batch, copies): the part to simulate and how many equal parts the fleet consists of."""
    ranks = pool.replicas * pool.attention_dp
    if ranks == 1 or not is_foldable(pool, batch):
        return pool, batch, 1
    part = replace(pool, replicas=1, attention_dp=1, prefill_schedule_interval=1)
    return part, first_requests(batch, ranks), ranks


def is_foldable(pool: Pool, batch: RequestBatch) -> bool:
    """True when all ranks of the fleet would do the same at the same instants."""
    ranks = pool.replicas * pool.attention_dp
    cap = batch.in_flight_cap
    if cap is None or cap % ranks or batch.num_requests % ranks or batch.num_requests == 0:
        return False
    if batch.span_offset is not None or batch.stop_after_ms is not None or pool.acceptance:
        return False
    if pool.prefill_schedule_interval > 1 or (pool.backend == "sglang" and pool.attention_dp > 1):
        return False
    facts = facts_of(batch)
    return facts.is_uniform and facts.is_plain


def serves_in_order(pool: Pool, batch: RequestBatch) -> bool:
    """True when `cohorts` replays a pool, as far as its blocks suffice: all requests are alike and none can be refused."""
    if batch.in_flight_cap is None or batch.span_offset is not None or batch.num_requests == 0:
        return False
    if pool.backend == "sglang" or pool.attention_dp > 1:
        return False
    if isinstance(pool.step_times, FixedTimes) and pool.step_times.decode_pass_ms == 0.0:
        return False
    facts = facts_of(batch)
    if not facts.is_uniform or not facts.is_plain or not facts.is_in_order or needs_explicit(pool, batch):
        return False
    prompt, output = int(batch.input_tokens[0]), int(effective_output(pool, batch)[0])
    room = pool.num_blocks * pool.block_size
    return (
        prompt > 0
        and output > 0
        and prompt + output <= room
        and (pool.chunked_prefill or prompt <= pool.max_num_batched_tokens)
    )


def hands_over_in_order(prefill: Pool, decode: Pool, batch: RequestBatch) -> bool:
    """True when `handoff_cohorts` replays both pools, as far as their blocks suffice."""
    return prefill.backend == "vllm" and all(serves_in_order(pool, batch) for pool in (prefill, decode))


def folded_both(prefill: Pool, decode: Pool, batch: RequestBatch) -> tuple[Pool, Pool, RequestBatch, int]:
    """(prefill, decode, batch, copies) as of `folded`; exact if `handoff_cohorts` replays the part to its end."""
    parts = decode.replicas
    divides = math.gcd(prefill.replicas, batch.in_flight_cap or 1, batch.num_requests) % parts == 0
    if (
        parts == 1
        or not divides
        or not hands_over_in_order(prefill, decode, batch)
        or not _may_fold(prefill, decode, batch)
    ):
        return prefill, decode, batch, 1
    prefill, decode = (replace(pool, replicas=pool.replicas // parts) for pool in (prefill, decode))
    return prefill, decode, first_requests(batch, parts), parts


def _may_fold(prefill: Pool, decode: Pool, batch: RequestBatch) -> bool:
    """See above: hand-overs one by one and room for all of the requests, which are all alike, that may come to an engine."""
    prompt, output = int(batch.input_tokens[0]), int(batch.output_tokens[0])
    one_by_one = prefill.max_num_seqs == 1 or prompt >= prefill.max_num_batched_tokens
    most = -(-(batch.in_flight_cap or 0) // decode.replicas)
    have_room = all(most * -(-(prompt + output) // pool.block_size) <= pool.num_blocks for pool in (prefill, decode))
    return one_by_one and have_room and most <= decode.max_num_seqs


_parts = Kept[RequestBatch](most=64)


def first_requests(batch: RequestBatch, parts: int) -> RequestBatch:
    """The first 1 / parts of a plain closed loop, with as much of its cap; kept, as candidates share batches."""
    return _parts.of((batch,), lambda: _first_requests(batch, parts), parts, batch.num_requests)


def _first_requests(batch: RequestBatch, parts: int) -> RequestBatch:
    num = batch.num_requests // parts
    return replace(
        batch,
        arrival_ms=batch.arrival_ms[:num],
        delay_ms=batch.delay_ms[:num],
        input_tokens=batch.input_tokens[:num],
        output_tokens=batch.output_tokens[:num],
        session=np.arange(num, dtype=np.int64),
        order=np.arange(num, dtype=np.int64),
        in_flight_cap=(batch.in_flight_cap or 0) // parts,
    )
