"""A deployment as `python -m sglang.launch_server` commands.

Source: SGLang, "Server Arguments", and its server_args; docs/deployment.md names pages and versions.
"""

from collections.abc import Iterator

from app.render.facts import Facts, assumptions, by_hand, command, heading, num_nodes, origin, routing, start
from app.schemas.deployment import Deployment

CHUNK_TOKENS = 8192
"""Prefill chunk of the simulated SGLang, before it is divided by the ranks; it ignores max_num_batched_tokens."""
BOOTSTRAP_PORT = 8998


def options(deployment: Deployment, name: str) -> dict[str, object]:
    """Options of one replica of a role, in the order they are written; None is a bare switch.

    SGLang counts all GPUs of a stage in --tp-size, attention ranks included, and divides --max-running-requests by the
    ranks; a deployment states both per rank.
    """
    role = deployment.roles[name]
    shape = role.shape
    given: dict[str, object] = {"--tp-size": shape.tp * shape.attention_dp, "--pp-size": shape.pp}
    if shape.attention_dp > 1:
        given |= {"--dp-size": shape.attention_dp, "--enable-dp-attention": None}
    if shape.moe_ep > 1:
        given["--ep-size"] = shape.moe_ep
    given |= {
        "--chunked-prefill-size": role.max_num_batched_tokens,
        "--max-running-requests": role.max_num_seqs * shape.attention_dp,
        "--page-size": role.block_size,
        "--mem-fraction-static": role.gpu_memory_utilization,
    }
    if not role.enable_prefix_caching:
        given["--disable-radix-cache"] = None
    if deployment.context_length is not None:
        given["--context-length"] = deployment.context_length
    return given | _speculation(deployment) | _disaggregation(deployment, name)


def _speculation(deployment: Deployment) -> dict[str, object]:
    depth = deployment.aic_nextn
    if not depth:
        return {}
    return {
        "--speculative-algorithm": "NEXTN",
        "--speculative-num-steps": depth,
        "--speculative-eagle-topk": 1,
        "--speculative-num-draft-tokens": depth + 1,
    }


def _disaggregation(deployment: Deployment, name: str) -> dict[str, object]:
    if deployment.mode == "agg":
        return {}
    return {"--disaggregation-mode": name, "--disaggregation-transfer-backend": "nixl"}


def node_options(nodes: int) -> dict[str, object]:
    """Options that spread one replica over nodes; HEAD_ADDRESS and NODE_RANK are the reader's to fill in."""
    if nodes == 1:
        return {}
    return {"--nnodes": nodes, "--node-rank": "NODE_RANK", "--dist-init-addr": "HEAD_ADDRESS:20000"}


def notes(_deployment: Deployment) -> Iterator[str]:
    """What the simulator reckons differently from SGLang, line by line."""
    yield (
        f"Chunk: the replay cut prompts at {CHUNK_TOKENS} tokens divided by the attention ranks, whatever the searched "
        f"limit; to run what was replayed, set --chunked-prefill-size {CHUNK_TOKENS}."
    )
    yield "SGLang divides --chunked-prefill-size and --max-running-requests by --dp-size under data-parallel attention."
    yield "--mem-fraction-static counts weights and KV; the replay reckoned the same share of what the runtime leaves."


def render(deployment: Deployment, facts: Facts) -> str:
    """A shell text with one command per role and, disaggregated, one for the router."""
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
    for port, (name, role) in enumerate(deployment.roles.items(), start=30000):
        nodes = num_nodes(deployment, role)
        lines = [start(name, role)]
        if nodes > 1:
            lines.append(f"each over {nodes} nodes: run it on every node, with that node's own numbers")
        given = {**options(deployment, name), **node_options(nodes), "--host": "0.0.0.0", "--port": port}
        if name == "prefill":
            given["--disaggregation-bootstrap-port"] = BOOTSTRAP_PORT
        words = ["python", "-m", "sglang.launch_server", "--model-path", deployment.model_name]
        parts.append(heading(lines) + command(words, given))
    parts.append(_in_front(deployment))
    return "\n".join(parts)


def _in_front(deployment: Deployment) -> str:
    if deployment.mode == "disagg":
        pools = {
            "--prefill": f"http://PREFILL_ADDRESS:30000 {BOOTSTRAP_PORT}",
            "--decode": "http://DECODE_ADDRESS:30001",
        }
        words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        lines = [" ".join(words), *(f"{name} {value}" for name, value in pools.items()), "--policy round_robin"]
        said = [*routing(deployment), "In front; repeat --prefill and --decode for every replica, with its own address"]
        return heading(said) + " \\\n  ".join(lines) + "\n"
    return heading(routing(deployment))


def _apart(deployment: Deployment) -> str:
    """What engines of one host would share, besides GPUs and ports."""
    return ", prefill engines also their own --disaggregation-bootstrap-port" if deployment.mode == "disagg" else ""
