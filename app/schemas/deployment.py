"""One deployment: what a candidate would run. Pure data, hashed in canonical form."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Mode = Literal["agg", "disagg"]
Backend = Literal["vllm", "sglang", "trtllm"]


class ParallelShape(BaseModel):
    """How one engine replica is spread over GPUs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tp: int
    pp: int = 1
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.attention_dp


class RoleDeployment(BaseModel):
    """The pool of one role: aggregated, prefill or decode."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shape: ParallelShape
    replicas: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int = 64
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.shape.gpus * self.replicas


class RouterConfig(BaseModel):
    """Request routing; weights are None under round_robin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["round_robin", "kv_router"] = "round_robin"
    overlap_score_credit: float | None = None
    prefill_load_scale: float | None = None
    temperature: float | None = None
    host_cache_hit_weight: float | None = None
    disk_cache_hit_weight: float | None = None


class Deployment(BaseModel):
    """A point of the search space: mode, backend, role pools, router, planner and load."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode
    backend: Backend
    model_name: str
    hardware_sku: str
    agg: RoleDeployment | None = None
    prefill: RoleDeployment | None = None
    decode: RoleDeployment | None = None
    router: RouterConfig = RouterConfig()
    planner: dict[str, object] | None = None
    aic_nextn: int | None = None
    context_length: int | None = None
    kv_load_ratio: float | None = None

    @property
    def roles(self) -> dict[str, RoleDeployment]:
        """Active roles by name, in a fixed order."""
        pools = {"agg": self.agg, "prefill": self.prefill, "decode": self.decode}
        return {name: pool for name, pool in pools.items() if pool is not None}

    @property
    def used_gpus(self) -> int:
        """GPUs provisioned at the start of the replay."""
        return sum(pool.gpus for pool in self.roles.values())
