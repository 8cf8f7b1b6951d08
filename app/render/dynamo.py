"""A deployment as a DynamoGraphDeployment: a frontend with the router, and one component per role.

Source: NVIDIA Dynamo 1.6.1, the v1beta1 resource, `dynamo.frontend` and the engine wrappers; docs/deployment.md names
pages and versions.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from app.render import sglang, trtllm, vllm
from app.render.facts import Facts, assumptions, compact, heading, num_nodes, origin
from app.schemas.deployment import Deployment, RoleDeployment, RouterConfig

DYNAMO_VERSION = "1.6.1"
ENGINES = {"vllm": "0.31.0", "sglang": "0.5.21", "trtllm": "1.3.0rc29"}
"""Engine versions that this Dynamo release pins."""

_REGISTRY = "nvcr.io/nvidia/ai-dynamo"
_IMAGES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
_NOTES = {"vllm": vllm.notes, "sglang": sglang.notes, "trtllm": trtllm.notes}
_COMPONENT_TYPES = {"agg": "worker", "prefill": "prefill", "decode": "decode"}
_KV_EVENTS = {"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:5557"}
_WEIGHTS = {
    "overlap_score_credit": "--router-kv-overlap-score-credit",
    "prefill_load_scale": "--router-prefill-load-scale",
    "temperature": "--router-temperature",
    "host_cache_hit_weight": "--router-host-cache-hit-weight",
    "disk_cache_hit_weight": "--router-disk-cache-hit-weight",
}
_ADMISSION = {
    "active_decode_blocks_threshold": "--active-decode-blocks-threshold",
    "active_prefill_tokens_threshold": "--active-prefill-tokens-threshold",
    "active_prefill_tokens_threshold_frac": "--active-prefill-tokens-threshold-frac",
}


def router_options(router: RouterConfig, facts: Facts) -> dict[str, object]:
    """Options of `dynamo.frontend`; weights and thresholds only where they are set."""
    given: dict[str, object] = {"--router-mode": "kv" if router.mode == "kv_router" else "round-robin"}
    weights = {option: getattr(router, name) for name, option in _WEIGHTS.items()}
    given |= {option: value for option, value in weights.items() if value is not None}
    return given | {_ADMISSION[name]: value for name, value in facts.admission.items()}


def engine_options(deployment: Deployment, name: str) -> dict[str, object]:
    """Options of the engine's wrapper in one role: the engine's own, and what the router needs of it."""
    publishes = deployment.router.mode == "kv_router" and deployment.roles[name].enable_prefix_caching
    if deployment.backend == "vllm":
        own = {"--model": deployment.model_name, **vllm.options(deployment, name)}
        own |= {"--disaggregation-mode": name} if deployment.mode == "disagg" else {}
        return own | (
            {"--kv-events-config": compact({**_KV_EVENTS, "enable_kv_cache_events": True})} if publishes else {}
        )
    if deployment.backend == "sglang":
        own = {"--model-path": deployment.model_name, **sglang.options(deployment, name)}
        return own | ({"--kv-events-config": compact(_KV_EVENTS)} if publishes else {})
    return _trtllm_options(deployment, name) | ({"--publish-kv-events": None} if publishes else {})


def _trtllm_options(deployment: Deployment, name: str) -> dict[str, object]:
    """The wrapper's own options where it has them; what it has none for goes through --override-engine-args."""
    engine = trtllm.options(deployment, name)
    cache = engine["kv_cache_config"]
    given: dict[str, object] = {
        "--model": deployment.model_name,
        "--tensor-parallel-size": engine.pop("tensor_parallel_size"),
        "--pipeline-parallel-size": engine.pop("pipeline_parallel_size"),
        "--max-num-tokens": engine.pop("max_num_tokens"),
        "--max-batch-size": engine.pop("max_batch_size"),
        "--free-gpu-memory-fraction": cache["free_gpu_memory_fraction"],
        "--kv-block-size": cache["tokens_per_block"],
    }
    if "moe_expert_parallel_size" in engine:
        given["--expert-parallel-size"] = engine.pop("moe_expert_parallel_size")
    if engine.pop("enable_attention_dp"):
        given["--enable-attention-dp"] = None
    if "max_seq_len" in engine:
        given["--max-seq-len"] = engine.pop("max_seq_len")
    if deployment.mode == "disagg":
        given["--disaggregation-mode"] = name
    return given | {"--override-engine-args": compact(engine)}


def manifest(deployment: Deployment, facts: Facts) -> dict[str, Any]:
    """The resource as a document."""
    frontend = ["-m", "dynamo.frontend", *_words(router_options(deployment.router, facts))]
    image = f"{_REGISTRY}/{_IMAGES[deployment.backend]}:{DYNAMO_VERSION}"
    components = [
        {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": _pod(image, frontend)},
        *(_component(deployment, name, role, image) for name, role in deployment.roles.items()),
    ]
    if deployment.planner:
        components.append(_planner(deployment))
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": f"spica-{facts.candidate_id[-12:]}", "labels": {"spica/candidate": facts.candidate_id}},
        "spec": {"backendFramework": deployment.backend, "components": components},
    }


def _component(deployment: Deployment, name: str, role: RoleDeployment, image: str) -> dict[str, Any]:
    nodes = num_nodes(deployment, role)
    arguments = ["-m", f"dynamo.{deployment.backend}", *_words(engine_options(deployment, name))]
    component = {
        "name": name,
        "type": _COMPONENT_TYPES[name],
        "replicas": role.replicas,
        "podTemplate": _pod(image, arguments, num_gpus=-(-role.shape.gpus // nodes)),
    }
    return component | ({"multinode": {"nodeCount": nodes}} if nodes > 1 else {})


_REPLAY_ONLY = frozenset({"startup_s"})
"""Planner fields that only the replay reads."""


def _planner(deployment: Deployment) -> dict[str, Any]:
    policy = {name: value for name, value in (deployment.planner or {}).items() if name not in _REPLAY_ONLY}
    settings = {"environment": "kubernetes", "backend": deployment.backend, "mode": deployment.mode, **policy}
    arguments = ["-m", "dynamo.planner", "--config", compact(settings)]
    image = f"{_REGISTRY}/dynamo-planner:{DYNAMO_VERSION}"
    return {"name": "Planner", "type": "planner", "replicas": 1, "podTemplate": _pod(image, arguments)}


def _pod(image: str, arguments: list[str], num_gpus: int = 0) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "command": ["python3"],
        "args": arguments,
        "envFrom": [{"secretRef": {"name": "hf-token-secret"}}],
    }
    if num_gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(num_gpus)}}
    return {"spec": {"containers": [container]}}


def _words(options: dict[str, object]) -> list[str]:
    return [word for name, value in options.items() for word in ([name] if value is None else [name, str(value)])]


def notes(deployment: Deployment) -> Iterator[str]:
    """What the simulator takes for granted about Dynamo, line by line."""
    yield f"For Dynamo {DYNAMO_VERSION}, whose images hold {deployment.backend} {ENGINES[deployment.backend]}."
    yield "Needs the Dynamo operator, and a secret hf-token-secret with HF_TOKEN for models that ask for one."
    if deployment.router.mode == "kv_router":
        yield "Router weights are those of the replay; the replay's router saw KV events without delay."
    if deployment.planner:
        yield "Planner: policy, target, bounds and forecasts as replayed; a real engine's start-up takes its own time."
    else:
        yield "Replicas are fixed, as in the replay: there is no planner."


def render(deployment: Deployment, facts: Facts) -> str:
    """The manifest as YAML, its assumptions as comments."""
    said = [
        *origin(deployment, facts),
        *notes(deployment),
        *_NOTES[deployment.backend](deployment),
        *assumptions(deployment, facts),
    ]
    body: str = yaml.safe_dump(manifest(deployment, facts), sort_keys=False, width=1000)
    return heading(said) + body
