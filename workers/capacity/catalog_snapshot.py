"""Write `app/catalog/snapshot.json` from the installed performance-data package.

    python -m workers.capacity.catalog_snapshot > app/catalog/snapshot.json

asks the package for every model, GPU type and version it ships, then probes each (model, hardware, backend, shape) with
one prefill and one decode question. The full run takes several minutes of CPU.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from workers.timing import perf_data

BACKENDS = ("vllm", "sglang", "trtllm")
GPUS_PER_ENGINE = (1, 2, 4, 8, 16)
PROBE_TOKENS = 1024

Shape = tuple[int, int, int, int]


def dense_shapes() -> list[Shape]:
    """(tp, attention_dp, moe_tp, moe_ep) of dense models: tensor parallel only."""
    return [(gpus, 1, 1, 1) for gpus in GPUS_PER_ENGINE]


def moe_shapes() -> list[Shape]:
    """Shapes of MoE models: attention by TP or DP, experts by TP or EP; one identity at one GPU.

    Source: search spec, section 2.1.
    """
    shapes: list[Shape] = [(1, 1, 1, 1)]
    for gpus in GPUS_PER_ENGINE[1:]:
        shapes += [(1, gpus, 1, gpus), (1, gpus, gpus, 1), (gpus, 1, 1, gpus), (gpus, 1, gpus, 1)]
    return shapes


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


def data_mask(model: str, is_moe: bool, hardware_name: str, backend: str, version: str) -> int:
    """Bit i is set if shape i of the model's list answers a prefill and a decode question."""
    mask = 0
    for bit, shape in enumerate(moe_shapes() if is_moe else dense_shapes()):
        mask |= _answers(model, hardware_name, backend, version, shape) << bit
    return mask


def _answers(model: str, hardware_name: str, backend: str, version: str, shape: Shape) -> bool:
    tp, dp, moe_tp, moe_ep = shape
    sharded = moe_tp * moe_ep > 1
    compile_engine = perf_data.package().load("sdk.engine").EngineHandle.compile
    try:
        engine = compile_engine(
            model, hardware_name, backend, backend_version=version, tp_size=tp, attention_dp_size=dp,
            moe_tp_size=moe_tp if sharded else None, moe_ep_size=moe_ep if sharded else None,
        )  # fmt: skip
        engine.predict_prefill_latency(1, PROBE_TOKENS, 0)
        engine.predict_decode_latency(1, PROBE_TOKENS, 2)
    except Exception:  # Whatever the package raises, this shape cannot be timed.
        return False
    return True


def build(pairs: Iterable[tuple[str, str]] | None = None) -> dict[str, Any]:
    """The whole snapshot; `pairs` limits the probing to these (hardware, backend)."""
    used = perf_data.package()
    known_models, known_versions = models(), versions()
    wanted = set(pairs) if pairs is not None else None
    data: dict[str, dict[str, dict[str, str]]] = {}
    for name, backends in known_versions.items():
        for backend, listed in backends.items():
            if wanted is not None and (name, backend) not in wanted:
                continue
            masks = {
                model: data_mask(model, facts["is_moe"], name, backend, listed[0])
                for model, facts in known_models.items()
            }
            data.setdefault(name, {})[backend] = {model: f"{mask:x}" for model, mask in masks.items() if mask}
    return {
        "package": {"distribution": used.distribution, "version": used.version},
        "shapes": {"dense": dense_shapes(), "moe": moe_shapes()},
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
