"""What a deployment's pools hold: KV blocks per rank and role capacity, and the KV-derived load.

Source: traffic spec, section "kv_load_ratio"; search spec, section 4.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from app.schemas.deployment import Deployment, RoleDeployment
from app.schemas.status import ReasonCode
from workers.capacity.kv_blocks import blocks_per_rank, capacity_concurrency, role_capacity_tokens
from workers.capacity.memory import kv_tokens_per_rank
from workers.errors import InfeasibleError


@dataclass(frozen=True, slots=True)
class RoleCapacity:
    """KV room of one role: blocks of one rank, and tokens over all ranks and replicas in whole blocks."""

    num_blocks: int
    capacity_tokens: int


def role_capacity(deployment: Deployment, role: RoleDeployment) -> RoleCapacity:
    """The capacity of one of the deployment's pools, with its own batching and memory fraction.

    Raises: as `memory.kv_capacity`; InfeasibleError(NO_KV_BUDGET) also when less than one block is left.
    """
    tokens = kv_tokens_per_rank(
        deployment.model_name,
        deployment.hardware_sku,
        deployment.backend,
        role.shape,
        max_num_batched_tokens=role.max_num_batched_tokens,
        max_num_seqs=role.max_num_seqs,
        memory_fraction=role.gpu_memory_utilization,
        nextn=deployment.aic_nextn,
    )
    num_blocks = blocks_per_rank(tokens, role.block_size)
    if num_blocks == 0:
        detail = f"the KV cache of a rank holds {tokens} tokens, less than one block of {role.block_size}"
        raise InfeasibleError(
            ReasonCode.NO_KV_BUDGET, detail, {"kv_tokens_per_rank": tokens, "block_size_tokens": role.block_size}
        )
    capacity = role_capacity_tokens(tokens, role.block_size, role.shape.attention_dp, role.replicas)
    return RoleCapacity(num_blocks, capacity)


def role_capacities(deployment: Deployment) -> dict[str, RoleCapacity]:
    """Capacity of every active role by name; disaggregated, both roles must fit.

    Raises: as `role_capacity`, the first role that does not fit.
    """
    return {name: role_capacity(deployment, role) for name, role in deployment.roles.items()}


def load_capacity_tokens(capacities: Mapping[str, RoleCapacity]) -> int:
    """Tokens that drive a KV load: the aggregated pool's, else the decode pool's."""
    return (capacities["agg"] if "agg" in capacities else capacities["decode"]).capacity_tokens


def load_capacity_concurrency(capacities: Mapping[str, RoleCapacity], isl: int, osl: int) -> int:
    """Requests of isl and osl tokens that fill the loaded pool on average.

    Raises: InfeasibleError(KV_CAPACITY_BELOW_ONE_REQUEST) if not even one fits.
    """
    capacity_tokens = load_capacity_tokens(capacities)
    fitting = capacity_concurrency(capacity_tokens, isl, osl)
    if fitting < 1:
        average = isl + osl // 2
        detail = f"the KV cache holds {capacity_tokens} tokens, less than one request of {average} tokens on average"
        numbers = {"kv_load_capacity_tokens": capacity_tokens, "average_tokens_per_request": average}
        raise InfeasibleError(ReasonCode.KV_CAPACITY_BELOW_ONE_REQUEST, detail, numbers)
    return fitting
