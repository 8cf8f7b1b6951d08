"""From the engines of a replay to the planner that scales them: facts of each role, and a fresh planner."""

from workers.planner.observation import EngineFacts, Role
from workers.planner.planner import Planner
from workers.planner.settings import PlannerSettings
from workers.replay.fleet import Fleet, Pool


def new_planner(settings: PlannerSettings, fleet: Fleet) -> Planner:
    """A planner for one replay of the fleet; it keeps state, so every replay needs its own.

    Raises: ImportError where the settings forecast by a predictor that is not installed.
    """
    pools = pools_by_role(fleet)
    return Planner(
        settings,
        {role: engine_facts(pool) for role, pool in pools.items()},
        {role: pool.step_times for role, pool in pools.items()},
    )


def pools_by_role(fleet: Fleet) -> dict[Role, Pool]:
    """The pools that the fleet has."""
    return {pool.role: pool for pool in (fleet.agg, fleet.prefill, fleet.decode) if pool is not None}


def engine_facts(pool: Pool) -> EngineFacts:
    """What a planner is told about the engines of a pool; nothing of it comes from the planner's own fields."""
    return EngineFacts(
        gpus=pool.gpus_per_replica,
        max_kv_tokens=pool.num_blocks * pool.block_size * pool.attention_dp,
        max_num_batched_tokens=pool.max_num_batched_tokens,
        max_num_seqs=pool.max_num_seqs,
        context_length=pool.context_length,
        accepted_length=_accepted_length(pool.acceptance),
        attention_dp=pool.attention_dp,
    )


def _accepted_length(acceptance: tuple[float, ...]) -> float:
    """Expected tokens of a decode pass per request: one, and each draft whose predecessors are all accepted."""
    length, reached = 1.0, 1.0
    for probability in acceptance:
        reached *= probability
        length += reached
    return length
