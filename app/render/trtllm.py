"""A deployment as `trtllm-serve` commands, each with its YAML file of options.

Source: TensorRT-LLM, "trtllm-serve" and the LLM API's arguments; docs/deployment.md names pages and versions.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from app.render.facts import Facts, assumptions, by_hand, command, heading, num_nodes, origin, routing, start
from app.schemas.deployment import Deployment


def options(deployment: Deployment, name: str) -> dict[str, Any]:
    """The file of `--extra_llm_api_options` of a role: arguments of the LLM API.

    With attention data parallelism TensorRT-LLM makes every GPU of the tensor-parallel group a rank.
    """
    role = deployment.roles[name]
    shape = role.shape
    given: dict[str, Any] = {
        "tensor_parallel_size": shape.tp * shape.attention_dp,
        "pipeline_parallel_size": shape.pp,
        "moe_tensor_parallel_size": shape.moe_tp,
        "moe_expert_parallel_size": shape.moe_ep,
        "enable_attention_dp": shape.attention_dp > 1,
        "max_num_tokens": role.max_num_batched_tokens,
        "max_batch_size": role.max_num_seqs,
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "free_gpu_memory_fraction": role.gpu_memory_utilization,
            "tokens_per_block": role.block_size,
            "enable_block_reuse": role.enable_prefix_caching,
        },
    }
    if shape.moe_tp * shape.moe_ep == 1:
        del given["moe_tensor_parallel_size"], given["moe_expert_parallel_size"]
    if deployment.context_length is not None:
        given["max_seq_len"] = deployment.context_length
    if deployment.aic_nextn:
        given["speculative_config"] = {"decoding_type": "MTP", "num_nextn_predict_layers": deployment.aic_nextn}
    if deployment.mode == "disagg":
        given["cache_transceiver_config"] = {"backend": "DEFAULT"}
    if name == "prefill":
        given["disable_overlap_scheduler"] = True
    return given


def notes(deployment: Deployment) -> Iterator[str]:
    """What the simulator reckons differently from TensorRT-LLM, line by line."""
    yield "Chunked prefill is on in the replay; TensorRT-LLM needs it switched on, as here."
    yield "free_gpu_memory_fraction is a share of what weights and buffers leave free, in the replay as in TensorRT-LLM."
    yield "Limits of tokens and sequences are per attention rank, in the replay as in TensorRT-LLM."
    if deployment.mode == "disagg":
        yield "Prefill engines run without the overlap scheduler, which disaggregated serving asks for."


def render(deployment: Deployment, facts: Facts) -> str:
    """A shell text: per role a file of options and a command, and disaggregated, one for the orchestrator."""
    parts = [
        heading([*origin(deployment, facts), *notes(deployment), *assumptions(deployment, facts), *by_hand(deployment)])
    ]
    for port, (name, role) in enumerate(deployment.roles.items(), start=8001):
        nodes = num_nodes(deployment, role)
        lines = [start(name, role)]
        words = ["trtllm-serve", deployment.model_name]
        if nodes > 1:
            lines.append(f"each over {nodes} nodes: run it once per GPU under mpirun or srun")
            words = ["trtllm-llmapi-launch", *words]
        given = {"--host": "0.0.0.0", "--port": port, "--extra_llm_api_options": f"{name}.yaml"}
        parts.append(heading(lines) + _file(f"{name}.yaml", options(deployment, name)) + command(words, given))
    parts.append(_in_front(deployment))
    return "\n".join(parts)


def _file(path: str, document: dict[str, Any]) -> str:
    return f"cat > {path} <<'EOF'\n{yaml.safe_dump(document, sort_keys=False)}EOF\n"


def _in_front(deployment: Deployment) -> str:
    if deployment.mode == "agg":
        return heading(routing(deployment))
    servers = {
        "hostname": "0.0.0.0",
        "port": 8000,
        "backend": "pytorch",
        "context_servers": _servers("PREFILL_ADDRESS", 8001, deployment, "prefill"),
        "generation_servers": _servers("DECODE_ADDRESS", 8002, deployment, "decode"),
    }
    said = [*routing(deployment), "In front; put in the address of every replica"]
    command_line = command(["trtllm-serve", "disaggregated"], {"-c": "orchestrator.yaml"})
    return heading(said) + _file("orchestrator.yaml", servers) + command_line


def _servers(host: str, port: int, deployment: Deployment, name: str) -> dict[str, Any]:
    replicas = deployment.roles[name].replicas
    urls = [f"{host}_{number}:{port}" for number in range(1, replicas + 1)]
    return {"num_instances": replicas, "urls": urls, "router": {"type": "round_robin"}}
