"""What a planner is told of the engines of a pool."""

from itertools import accumulate
from operator import mul

from workers.planner.observation import EngineFacts
from workers.replay.fleet import Pool


def engine_facts(pool: Pool) -> EngineFacts:
    """Facts of one engine of a pool; every accepted draft adds its chance to the tokens of a decode pass."""
    return EngineFacts(
        gpus=pool.gpus_per_replica,
        max_kv_tokens=pool.num_blocks * pool.block_size * pool.attention_dp,
        max_num_batched_tokens=pool.max_num_batched_tokens,
        max_num_seqs=pool.max_num_seqs,
        context_length=pool.context_length,
        accepted_length=1.0 + sum(accumulate(pool.acceptance, mul)),
    )
