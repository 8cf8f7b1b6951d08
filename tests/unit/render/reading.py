"""Launch texts read back: options of commands, files and manifests, the knobs in them, and the names they use."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from app.render.facts import Facts
from app.render.formats import render
from app.schemas.deployment import Deployment, RoleDeployment

FACTS = Facts(
    study_id="0198c0de-0000-7000-8000-000000000001",
    candidate_id="0198c0de-0000-7000-8000-000000000002",
    perf_data="aisimulate 0.13.0",
    engine_version="9.9.9",
    kv_tokens={"agg": 123456, "prefill": 234567, "decode": 345678},
)
PUBLISHED: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "published_options.json").read_text())


def options_of(words: list[str]) -> dict[str, str | None]:
    """Options of an argument list; a switch has the value None."""
    found: dict[str, str | None] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            following = words[place + 1] if place + 1 < len(words) else "--"
            found[word] = None if following.startswith("--") else following
    return found


def commands(text: str) -> list[list[str]]:
    """The shell commands of a text, comments and here-documents left out."""
    text = re.sub(r"^cat > .*?^EOF$", "", text, flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [words for words in lines if words]


def files(text: str) -> dict[str, Any]:
    """The files that a text writes, by name."""
    found = re.findall(r"^cat > (\S+) <<'EOF'\n(.*?)^EOF$", text, flags=re.MULTILINE | re.DOTALL)
    return {name: yaml.safe_load(body) for name, body in found}


def engines(deployment: Deployment) -> dict[str, Any]:
    """Options by role as the engine's own format states them."""
    text = render(deployment, FACTS, deployment.backend)
    if deployment.backend == "trtllm":
        written = files(text)
        return {name: written[f"{name}.yaml"] for name in deployment.roles}
    launched = [words for words in commands(text) if words[:2] == ["vllm", "serve"] or "sglang.launch_server" in words]
    return {name: options_of(words) for name, words in zip(deployment.roles, launched, strict=True)}


def components(deployment: Deployment, facts: Facts = FACTS) -> dict[str, Any]:
    """Components of the manifest by name."""
    document = yaml.safe_load(render(deployment, facts, "dynamo"))
    return {each["name"]: each for each in document["spec"]["components"]}


def arguments(component: dict[str, Any]) -> dict[str, str | None]:
    return options_of(component["podTemplate"]["spec"]["containers"][0]["args"])


def read_back(backend: str, options: dict[str, Any]) -> dict[str, Any]:
    """The searched knobs of a role, from an engine's options."""
    return {"vllm": _from_vllm, "sglang": _from_sglang, "trtllm": _from_trtllm}[backend](options)


def _from_vllm(options: dict[str, Any]) -> dict[str, Any]:
    assert ("--enable-prefix-caching" in options) != ("--no-enable-prefix-caching" in options)
    tp, dp = int(options["--tensor-parallel-size"]), int(options["--data-parallel-size"])
    return {
        "gpus": tp * dp * int(options["--pipeline-parallel-size"]),
        "dp": dp,
        "ep": tp * dp if "--enable-expert-parallel" in options else 1,
        "tokens": int(options["--max-num-batched-tokens"]),
        "seqs": int(options["--max-num-seqs"]),
        "block": int(options["--block-size"]),
        "memory": float(options["--gpu-memory-utilization"]),
        "caching": "--enable-prefix-caching" in options,
        "context": int(options["--max-model-len"]) if "--max-model-len" in options else None,
        "draft": json.loads(options.get("--speculative-config") or "{}").get("num_speculative_tokens"),
    }


def _from_sglang(options: dict[str, Any]) -> dict[str, Any]:
    dp = int(options.get("--dp-size") or 1)
    assert ("--enable-dp-attention" in options) == (dp > 1)
    steps = options.get("--speculative-num-steps")
    return {
        "gpus": int(options["--tp-size"]) * int(options["--pp-size"]),
        "dp": dp,
        "ep": int(options.get("--ep-size") or 1),
        "tokens": int(options["--chunked-prefill-size"]),
        "seqs": int(options["--max-running-requests"]) // dp,
        "block": int(options["--page-size"]),
        "memory": float(options["--mem-fraction-static"]),
        "caching": "--disable-radix-cache" not in options,
        "context": int(options["--context-length"]) if "--context-length" in options else None,
        "draft": int(steps) if steps else None,
    }


def _from_trtllm(options: dict[str, Any]) -> dict[str, Any]:
    cache = options["kv_cache_config"]
    tp = options["tensor_parallel_size"]
    return {
        "gpus": tp * options["pipeline_parallel_size"],
        "dp": tp if options["enable_attention_dp"] else 1,
        "ep": options.get("moe_expert_parallel_size", 1),
        "tokens": options["max_num_tokens"],
        "seqs": options["max_batch_size"],
        "block": cache["tokens_per_block"],
        "memory": cache["free_gpu_memory_fraction"],
        "caching": cache["enable_block_reuse"],
        "context": options.get("max_seq_len"),
        "draft": options.get("speculative_config", {}).get("num_nextn_predict_layers"),
    }


def knobs(deployment: Deployment, pool: RoleDeployment) -> dict[str, Any]:
    """The same knobs, from the deployment."""
    return {
        "gpus": pool.shape.gpus,
        "dp": pool.shape.attention_dp,
        "ep": pool.shape.moe_ep,
        "tokens": pool.max_num_batched_tokens,
        "seqs": pool.max_num_seqs,
        "block": pool.block_size,
        "memory": pool.gpu_memory_utilization,
        "caching": pool.enable_prefix_caching,
        "context": deployment.context_length,
        "draft": deployment.aic_nextn,
    }


def engine_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """What the TensorRT-LLM wrapper hands to the engine: its own flags, then the overrides."""
    flags = {
        "tensor_parallel_size": int(options["--tensor-parallel-size"]),
        "pipeline_parallel_size": int(options["--pipeline-parallel-size"]),
        "enable_attention_dp": "--enable-attention-dp" in options,
        "max_num_tokens": int(options["--max-num-tokens"]),
        "max_batch_size": int(options["--max-batch-size"]),
    }
    if "--expert-parallel-size" in options:
        flags["moe_expert_parallel_size"] = int(options["--expert-parallel-size"])
    if "--max-seq-len" in options:
        flags["max_seq_len"] = int(options["--max-seq-len"])
    return flags | json.loads(options["--override-engine-args"])


def published(program: str) -> list[set[str]]:
    return [set(names) for names in PUBLISHED[program].values()]


def unpublished(deployment: Deployment) -> set[str]:
    """Options in either text of a deployment that some listed version of its engine, or Dynamo, does not publish."""
    program = "trtllm LLM API" if deployment.backend == "trtllm" else deployment.backend
    known = set.intersection(*published(program))
    found = set[str]()
    for options in engines(deployment).values():
        found |= {*options, *(f"{key}.{inner}" for key, of in options.items() if isinstance(of, dict) for inner in of)}
    found -= known
    parts = components(deployment)
    found |= arguments(parts["Frontend"]).keys() - published("dynamo.frontend")[0]
    engine = known if deployment.backend != "trtllm" else set[str]()
    for name in deployment.roles:
        found |= arguments(parts[name]).keys() - published(f"dynamo.{deployment.backend}")[0] - engine
    return found


def lost_knobs(deployment: Deployment) -> list[str]:
    """Roles, by text, in which a searched knob is missing or has another value."""
    expected = {name: knobs(deployment, pool) for name, pool in deployment.roles.items()}
    own = {name: read_back(deployment.backend, options) for name, options in engines(deployment).items()}
    parts = components(deployment)
    manifest = {}
    for name in deployment.roles:
        given: dict[str, Any] = arguments(parts[name])
        manifest[name] = read_back(
            deployment.backend, engine_arguments(given) if deployment.backend == "trtllm" else given
        )
    wrong = [f"{deployment.backend} {name}" for name in expected if own[name] != expected[name]]
    wrong += [f"dynamo {name}" for name in expected if manifest[name] != expected[name]]
    return wrong + [
        f"dynamo {name} replicas" for name, pool in deployment.roles.items() if parts[name]["replicas"] != pool.replicas
    ]
