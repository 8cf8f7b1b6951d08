"""Write `app/catalog/snapshot.json` from the installed performance-data package.

    python -m workers.capacity.catalog_snapshot > app/catalog/snapshot.json

asks the package for every model, GPU type and version it ships, and takes from its published support matrix which
(model, hardware, backend) were measured. Models that the matrix has retired are listed without data, though some can
still be timed: planning asks the package itself, shape by shape (`workers.timing.aic.has_times`).
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from workers.timing import perf_data

BACKENDS = ("vllm", "sglang", "trtllm")


def models() -> dict[str, dict[str, Any]]:
    """Facts of every model whose configuration ships with the package."""
    used = perf_data.package()
    configuration = used.load("sdk.utils").get_model_config_from_model_path
    is_moe = used.load("sdk.models").check_is_moe
    facts = {}
    for name in sorted(used.load("sdk.common").DefaultHFModels):
        config = configuration(name)
        facts[name] = {
            "architecture": config["architecture"],
            "is_moe": bool(is_moe(name)),
            "num_layers": int(config["layers"]),
            "num_attention_heads": int(config["n"]),
            "num_kv_heads": int(config["n_kv"]),
            "num_experts": int(config["num_experts"] or 0),
            "experts_per_token": int(config["topk"] or 0),
            "max_context_tokens": int(config["context"]),
        }
    return facts


def versions() -> dict[str, dict[str, list[str]]]:
    """Data versions per hardware and backend, the default one first."""
    database = perf_data.package().load("sdk.perf_database")
    listed: dict[str, dict[str, list[str]]] = {}
    for hardware, backends in sorted(database.get_supported_databases().items()):
        for backend in BACKENDS:
            known = list(backends.get(backend, ()))
            default = database.get_latest_database_version(hardware, backend) if known else None
            if default is not None:
                listed.setdefault(hardware, {})[backend] = [default, *(v for v in known if v != default)]
    return listed


def hardware(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Facts of the named GPU types."""
    load_spec = perf_data.package().load("sdk.perf_database").load_system_spec
    facts = {}
    for name in names:
        gpu, node = (load_spec(name)[part] for part in ("gpu", "node"))
        facts[name] = {
            "memory_bytes": int(gpu["mem_capacity"]),
            "gpus_per_node": int(node["num_gpus_per_node"]),
            "memory_bandwidth_gb_per_s": gpu["mem_bw"] / 1e9,
            "intra_node_bandwidth_gb_per_s": node["intra_node_bw"] / 1e9,
            "inter_node_bandwidth_gb_per_s": node["inter_node_bw"] / 1e9,
            "sm_version": gpu.get("sm_version"),
            "power_w": gpu.get("power"),
        }
    return facts


def measured() -> dict[tuple[str, str, str], dict[str, bool]]:
    """(hardware, backend, data version) -> model -> whether the published matrix says it was measured."""
    matrix: dict[tuple[str, str, str], dict[str, bool]] = {}
    for row in perf_data.package().load("sdk.common").get_support_matrix():
        if row["Mode"] == "agg":
            listed = matrix.setdefault((row["System"], row["Backend"], row["Version"]), {})
            listed[row["HuggingFaceID"]] = row["Status"] == "PASS"
    return matrix


def build() -> dict[str, Any]:
    """The whole snapshot."""
    used = perf_data.package()
    known_models, known_versions, matrix = models(), versions(), measured()
    data: dict[str, dict[str, list[str]]] = {}
    for name, backends in known_versions.items():
        for backend, (default, *_) in backends.items():
            listed = matrix.get((name, backend, default), {})
            data.setdefault(name, {})[backend] = [model for model in known_models if listed.get(model, False)]
    return {
        "package": {"distribution": used.distribution, "version": used.version},
        "models": known_models,
        "hardware": hardware(known_versions),
        "versions": known_versions,
        "data": data,
    }


def main() -> None:
    """Print the snapshot, stable and sorted."""
    json.dump(build(), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
