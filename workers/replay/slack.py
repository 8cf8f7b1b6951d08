"""Limits that cannot bind: fleets that differ only in them do the same under the same requests.

At most C requests are in flight: the cap of a closed loop, else all of them. A rank therefore never runs more than C,
never schedules more than C * (longest request) tokens in a pass, and, as long as no cached block can be hit, never
touches more than C * (blocks of the longest request + 1) blocks.
"""

from dataclasses import replace

from workers.replay.batch_facts import facts_of
from workers.replay.fleet import Fleet, Pool
from workers.traffic.requests import RequestBatch


def without_slack(fleet: Fleet, batch: RequestBatch) -> Fleet:
    """The fleet with every limit lowered to the least one that acts the same; equal results replay alike."""
    if batch.num_requests == 0:
        return fleet
    in_flight = batch.num_requests if batch.in_flight_cap is None else min(batch.in_flight_cap, batch.num_requests)
    facts = facts_of(batch)
    longest = facts.longest
    may_hit = fleet.router is not None or batch.span_offset is not None or not facts.is_plain

    def acting(pool: Pool | None) -> Pool | None:
        return None if pool is None else _acting(pool, in_flight, longest, may_hit)

    return replace(fleet, agg=acting(fleet.agg), prefill=acting(fleet.prefill), decode=acting(fleet.decode))


def _acting(pool: Pool, in_flight: int, longest: int, may_hit: bool) -> Pool:
    blocks = pool.num_blocks
    # Drafts take blocks ahead of the tokens they may bring.
    if not may_hit and not pool.acceptance:
        blocks = min(blocks, in_flight * (-(-longest // pool.block_size) + 1) + 1)
    return replace(
        pool,
        num_blocks=blocks,
        max_num_seqs=min(pool.max_num_seqs, in_flight),
        max_num_batched_tokens=min(pool.max_num_batched_tokens, in_flight * longest),
    )
