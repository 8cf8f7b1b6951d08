"""What can be searched, as the performance-data package states it: read from the committed `snapshot.json`.

The file is written by `python -m workers.capacity.catalog_snapshot`; a test regenerates it and compares. Nothing here
computes a time or a capacity, and nothing imports the package itself.
"""

import json
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

BACKENDS = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a parallel shape and a context check need to know of a model; lengths in tokens."""

    name: str
    architecture: str
    is_moe: bool
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    num_experts: int
    experts_per_token: int
    max_context_tokens: int


@dataclass(frozen=True, slots=True)
class HardwareFacts:
    """One GPU type and the node it sits in; bandwidths are per GPU and one direction."""

    name: str
    memory_bytes: int
    gpus_per_node: int
    memory_bandwidth_gb_per_s: float
    intra_node_bandwidth_gb_per_s: float
    inter_node_bandwidth_gb_per_s: float
    sm_version: int | None
    power_w: float | None


_RAW: dict[str, Any] = json.loads((resources.files("app.catalog") / "snapshot.json").read_text())

PACKAGE: tuple[str, str] = (_RAW["package"]["distribution"], _RAW["package"]["version"])
"""Wheel and version the snapshot was taken from."""

MODELS = MappingProxyType({name: ModelFacts(name=name, **facts) for name, facts in _RAW["models"].items()})
HARDWARE = MappingProxyType({name: HardwareFacts(name=name, **facts) for name, facts in _RAW["hardware"].items()})

_MODELS_WITH_DATA = {
    (hardware, backend): frozenset(models)
    for hardware, backends in _RAW["data"].items()
    for backend, models in backends.items()
}


def data_version(hardware: str, backend: str) -> str | None:
    """Default data version of a pair, or None if the package has no data for it."""
    versions = available_versions(hardware, backend)
    return versions[0] if versions else None


def available_versions(hardware: str, backend: str) -> tuple[str, ...]:
    """Data versions of a pair, the default one first."""
    return tuple(_RAW["versions"].get(hardware, {}).get(backend, ()))


def has_data(model: str, hardware: str, backend: str) -> bool:
    """Whether the package lists the model as measured on the pair; single shapes may still lack data or memory."""
    return model in _MODELS_WITH_DATA.get((hardware, backend), frozenset())
