"""Small configurations and deployments for tests of the evaluation."""

from typing import Any

from app.schemas.deployment import Deployment, ParallelShape, RoleDeployment
from app.schemas.study import SmartSearchConfig

MODEL, HARDWARE = "Qwen/Qwen3-32B-FP8", "h200_sxm"
SMALL_LOAD = {"isl": 300, "osl": 4, "concurrency": 2, "num_request_ratio": 2}


def study(workload: dict[str, Any], goal: dict[str, Any] | None = None, **space: Any) -> SmartSearchConfig:
    base = {"model_name": MODEL, "hardware_sku": HARDWARE, "gpu_budget": 8, "deployment_mode": ["agg"]}
    document = {"search_space": base | space, "workload": workload, "goal": goal or {"target": "throughput"}}
    return SmartSearchConfig.model_validate(document)


def role(tp: int = 2, replicas: int = 1, **fields: Any) -> RoleDeployment:
    base = {"shape": ParallelShape(tp=tp), "replicas": replicas, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    return RoleDeployment(**(base | fields))


def agg(tp: int = 2, replicas: int = 1, role_fields: dict[str, Any] | None = None, **fields: Any) -> Deployment:
    base = {"mode": "agg", "backend": "vllm", "model_name": MODEL, "hardware_sku": HARDWARE}
    return Deployment(agg=role(tp, replicas, **(role_fields or {})), **(base | fields))


def disagg(prefill: RoleDeployment, decode: RoleDeployment, **fields: Any) -> Deployment:
    base = {"mode": "disagg", "backend": "vllm", "model_name": MODEL, "hardware_sku": HARDWARE}
    return Deployment(prefill=prefill, decode=decode, **(base | fields))
