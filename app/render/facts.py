"""What a launch text says besides the deployment itself: where it comes from and what the replay took for granted."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.catalog.snapshot import HARDWARE
from app.schemas.deployment import Deployment, RoleDeployment

GPUS_PER_NODE_ELSEWHERE = 8
"""Node size taken for hardware that the catalogue does not have."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Origin and assumptions of one candidate.

    engine_version: of the performance data, not of an installed engine; None if unknown. kv_tokens: KV room by role over
    all its ranks and replicas, tokens. host_blocks, kv_bytes_per_token: the host tier of the KV cache (0: none).
    admission: the router's busy thresholds by their names in the search space, only those that are set.
    """

    study_id: str
    candidate_id: str
    perf_data: str | None = None
    engine_version: str | None = None
    kv_tokens: Mapping[str, int] = field(default_factory=dict)
    host_blocks: int = 0
    kv_bytes_per_token: int | None = None
    admission: Mapping[str, float] = field(default_factory=dict)


def compact(document: object) -> str:
    """JSON on one line, as options of engines take it."""
    return json.dumps(document, separators=(",", ":"))


def num_nodes(deployment: Deployment, role: RoleDeployment) -> int:
    """Nodes that one replica of a role spans on the deployment's hardware."""
    known = HARDWARE.get(deployment.hardware_sku)
    per_node = known.gpus_per_node if known else GPUS_PER_NODE_ELSEWHERE
    return -(-role.shape.gpus // per_node)


def gpus_in_words(count: int) -> str:
    """A number of GPUs."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def origin(deployment: Deployment, facts: Facts) -> Iterator[str]:
    """Where the text comes from, and with which versions, line by line."""
    where = f"{gpus_in_words(deployment.used_gpus)} of {deployment.hardware_sku}"
    yield f"Candidate {facts.candidate_id} of study {facts.study_id}: {where}."
    version = facts.engine_version or "an unknown version"
    measured = f" ({facts.perf_data})" if facts.perf_data else ""
    yield f"Step times were measured with {deployment.backend} {version}{measured}; another version runs differently."


def assumptions(deployment: Deployment, facts: Facts) -> Iterator[str]:
    """What the replay took for granted on every backend, line by line."""
    for name, role in deployment.roles.items():
        room = facts.kv_tokens.get(name)
        known = f"the replay gave it room for {room} KV tokens" if room is not None else "its KV room is not recorded"
        yield (
            f"Memory, {name}: gpu_memory_utilization {role.gpu_memory_utilization:g}; {known} over "
            f"{role.replicas} x {role.shape.attention_dp} engines. Compare with what the engine logs when it starts."
        )
    if deployment.aic_nextn:
        depth = f"{deployment.aic_nextn} draft tokens a step"
        yield f"Speculation: {depth}, accepted as often as the simulator assumes by default, not as measured."
    if facts.host_blocks:
        size = ""
        if facts.kv_bytes_per_token:
            block_size = next(iter(deployment.roles.values())).block_size
            size = f" of {facts.kv_bytes_per_token * block_size} bytes"
        yield f"Host memory: the study assumed {facts.host_blocks} KV blocks{size} per rank; set the engine's offload."


def start(name: str, role: RoleDeployment) -> str:
    """How often to start the command of a role, in words."""
    return f"{name}: start {role.replicas} of these, {gpus_in_words(role.shape.gpus)} each"


def by_hand(deployment: Deployment, own_settings: str = "") -> Iterator[str]:
    """What whoever starts the engines one by one has to see to, line by line. own_settings: what else each one needs."""
    if deployment.planner:
        yield "Fleet: as it was before the planner scaled it; format=dynamo has the planner."
    if sum(role.replicas for role in deployment.roles.values()) > 1:
        yield f"Engines that share a host: give each its own GPUs (CUDA_VISIBLE_DEVICES) and its own --port{own_settings}."


def routing(deployment: Deployment) -> Iterator[str]:
    """How requests were routed in the replay, line by line; for aggregated engines, and under a KV router."""
    if deployment.router.mode == "kv_router":
        yield "In front: the replay used a KV-aware router; format=dynamo has one with the weights of this candidate."
    elif deployment.mode == "agg":
        yield "In front: any load balancer that takes turns (round robin), as in the replay."


def heading(lines: Iterator[str] | Sequence[str]) -> str:
    """Lines as comments of a shell script or a YAML document."""
    return "".join(f"# {line}\n" for line in lines)


def command(words: Sequence[str], options: Mapping[str, object]) -> str:
    """A shell command, one option a line. An option's value None stands for a bare switch."""
    lines = [shlex.join(words)]
    for name, value in options.items():
        lines.append(name if value is None else f"{name} {shlex.quote(str(value))}")
    return " \\\n  ".join(lines) + "\n"
