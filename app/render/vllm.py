"""A deployment as `vllm serve` commands.

Source: vLLM, "vllm serve" and "Engine Arguments"; docs/deployment.md names pages and versions.
"""

from collections.abc import Iterator

from app.render.facts import Facts, assumptions, by_hand, command, compact, heading, num_nodes, origin, routing, start
from app.schemas.deployment import Deployment, RoleDeployment

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""What an engine of a role does with KV blocks that are handed over."""


def options(deployment: Deployment, name: str) -> dict[str, object]:
    """Options of one replica of a role, in the order they are written; None is a bare switch."""
    role = deployment.roles[name]
    shape = role.shape
    given: dict[str, object] = {
        "--tensor-parallel-size": shape.tp,
        "--pipeline-parallel-size": shape.pp,
        "--data-parallel-size": shape.attention_dp,
    }
    if shape.moe_ep > 1:
        given["--enable-expert-parallel"] = None
    given |= {
        "--max-num-batched-tokens": role.max_num_batched_tokens,
        "--max-num-seqs": role.max_num_seqs,
        "--block-size": role.block_size,
        "--gpu-memory-utilization": role.gpu_memory_utilization,
        "--enable-prefix-caching" if role.enable_prefix_caching else "--no-enable-prefix-caching": None,
    }
    if deployment.context_length is not None:
        given["--max-model-len"] = deployment.context_length
    if deployment.aic_nextn:
        given["--speculative-config"] = compact({"method": "mtp", "num_speculative_tokens": deployment.aic_nextn})
    if deployment.mode == "disagg":
        given["--kv-transfer-config"] = compact({"kv_connector": "NixlConnector", "kv_role": KV_ROLES[name]})
    return given


def node_options(role: RoleDeployment, nodes: int) -> dict[str, object]:
    """Options that spread one replica over nodes; HEAD_ADDRESS and NODE_RANK are the reader's to fill in."""
    if nodes == 1:
        return {}
    if role.shape.attention_dp == 1:
        return {"--nnodes": nodes, "--node-rank": "NODE_RANK", "--master-addr": "HEAD_ADDRESS"}
    return {
        "--data-parallel-size-local": role.shape.attention_dp // nodes,
        "--data-parallel-start-rank": "FIRST_RANK_OF_NODE",
        "--data-parallel-address": "HEAD_ADDRESS",
        "--data-parallel-rpc-port": 13345,
    }


def notes(deployment: Deployment) -> Iterator[str]:
    """What the simulator reckons differently from vLLM, line by line."""
    yield "Limits of tokens and sequences are per data-parallel rank, in the replay as in vLLM."
    if any(role.shape.moe_ep > 1 for role in deployment.roles.values()):
        yield "vLLM spreads experts over tensor-parallel x data-parallel ranks; no option sets the width by itself."
    if deployment.context_length is None:
        yield "Longest sequence: the model's own, in the replay as in vLLM without --max-model-len."


def render(deployment: Deployment, facts: Facts) -> str:
    """A shell text with one command per role."""
    parts = [
        heading(
            [
                *origin(deployment, facts),
                *notes(deployment),
                *assumptions(deployment, facts),
                *by_hand(deployment, _apart(deployment)),
            ]
        )
    ]
    for port, (name, role) in enumerate(deployment.roles.items(), start=8000):
        nodes = num_nodes(deployment, role)
        lines = [start(name, role)]
        if nodes > 1:
            lines.append(f"each over {nodes} nodes: run it on every node, with that node's own numbers,")
            lines.append("and with --headless on every node but the first, which alone answers requests")
        given = {**options(deployment, name), **node_options(role, nodes), "--port": port}
        parts.append(heading(lines) + command(["vllm", "serve", deployment.model_name], given))
    parts.append(heading(_in_front(deployment)))
    return "\n".join(parts)


def _in_front(deployment: Deployment) -> Iterator[str]:
    if deployment.mode == "disagg":
        yield "In front: a proxy that sends each request to a prefill and then to a decode engine;"
        yield "vLLM ships one as an example, Dynamo as a product (format=dynamo)."
    yield from routing(deployment)


def _apart(deployment: Deployment) -> str:
    """What engines of one host would share, besides GPUs and ports: vLLM, "NixlConnector Usage Guide"."""
    return ", and in the environment its own VLLM_NIXL_SIDE_CHANNEL_PORT" if deployment.mode == "disagg" else ""
