"""Launch texts: every searched knob arrives, under a name that the engine publishes, and can be read back."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.catalog.snapshot import HARDWARE
from app.errors import InvalidRequestError
from app.render.dynamo import ENGINES
from app.render.facts import Facts
from app.render.formats import render
from app.schemas.deployment import Deployment, ParallelShape, RoleDeployment, RouterConfig

FACTS = Facts(
    study_id="0198c0de-0000-7000-8000-000000000001",
    candidate_id="0198c0de-0000-7000-8000-000000000002",
    perf_data="aisimulate 0.13.0",
    engine_version="9.9.9",
    kv_tokens={"agg": 123456, "prefill": 234567, "decode": 345678},
)
PUBLISHED: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "published_options.json").read_text())
ROUTER = RouterConfig(mode="kv_router", overlap_score_credit=0.5, prefill_load_scale=4.0, temperature=0.2)
DENSE, MOE = "Qwen/Qwen3-32B-FP8", "deepseek-ai/DeepSeek-V3"
SHAPES = {
    "tp": ParallelShape(tp=4),
    "pp": ParallelShape(tp=2, pp=2),
    "tep": ParallelShape(tp=8, moe_ep=8),
    "dep": ParallelShape(tp=1, attention_dp=8, moe_ep=8),
    "moe_tp": ParallelShape(tp=8, moe_tp=8),
    "dtp": ParallelShape(tp=1, attention_dp=8, moe_tp=8),
}
BACKENDS = ("vllm", "sglang", "trtllm")


def role(shape: str, **fields: Any) -> RoleDeployment:
    known = {"replicas": 2, "max_num_batched_tokens": 16384, "max_num_seqs": 512, "block_size": 32}
    return RoleDeployment(shape=SHAPES[shape], **(known | {"gpu_memory_utilization": 0.85} | fields))


def agg(backend: str, shape: str, **fields: Any) -> Deployment:
    model = DENSE if shape in ("tp", "pp") else MOE
    known = {"mode": "agg", "backend": backend, "model_name": model, "hardware_sku": "h200_sxm"}
    return Deployment(**(known | {"agg": role(shape)} | fields))


def disagg(backend: str, **fields: Any) -> Deployment:
    pools = {"prefill": role("tp", max_num_seqs=8), "decode": role("tp", replicas=3, enable_prefix_caching=False)}
    return agg(backend, "tp", **{"mode": "disagg", "agg": None, **pools, **fields})


def every_deployment() -> list[Deployment]:
    extras = {"router": ROUTER, "context_length": 40960, "aic_nextn": 2}
    plain = [agg(backend, shape) for backend in BACKENDS for shape in SHAPES]
    full = [each.model_copy(update=extras) for each in [*plain, *(disagg(backend) for backend in BACKENDS)]]
    return [*plain, *(disagg(backend) for backend in BACKENDS), *full]


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


@pytest.mark.parametrize("deployment", every_deployment(), ids=lambda each: f"{each.backend}-{each.mode}")
def test_every_knob_can_be_read_back_from_the_engines_own_format(deployment: Deployment) -> None:
    expected = {name: knobs(deployment, pool) for name, pool in deployment.roles.items()}
    found = {name: read_back(deployment.backend, options) for name, options in engines(deployment).items()}
    assert found == expected


@pytest.mark.parametrize("deployment", every_deployment(), ids=lambda each: f"{each.backend}-{each.mode}")
def test_every_knob_can_be_read_back_from_the_manifest(deployment: Deployment) -> None:
    found = components(deployment)
    for name, pool in deployment.roles.items():
        options: dict[str, Any] = arguments(found[name])
        if deployment.backend == "trtllm":
            options = _engine_arguments(options)
        assert read_back(deployment.backend, options) == knobs(deployment, pool)
        assert found[name]["replicas"] == pool.replicas


def _engine_arguments(options: dict[str, Any]) -> dict[str, Any]:
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


def _published(program: str) -> list[set[str]]:
    return [set(names) for names in PUBLISHED[program].values()]


@pytest.mark.parametrize("deployment", every_deployment(), ids=lambda each: f"{each.backend}-{each.mode}")
def test_every_option_is_published_by_every_listed_version(deployment: Deployment) -> None:
    program = "trtllm LLM API" if deployment.backend == "trtllm" else deployment.backend
    for options in engines(deployment).values():
        names = {
            *options,
            *(f"{key}.{inner}" for key, value in options.items() if isinstance(value, dict) for inner in value),
        }
        assert all(names <= known for known in _published(program))


@pytest.mark.parametrize("deployment", every_deployment(), ids=lambda each: f"{each.backend}-{each.mode}")
def test_every_option_of_the_manifest_is_published(deployment: Deployment) -> None:
    found = components(deployment)
    assert arguments(found["Frontend"]).keys() <= _published("dynamo.frontend")[0]
    wrapper = _published(f"dynamo.{deployment.backend}")[0]
    engine = set.intersection(*_published(deployment.backend)) if deployment.backend != "trtllm" else set()
    for name in deployment.roles:
        assert arguments(found[name]).keys() <= wrapper | engine


def test_trtllm_serve_is_given_published_options_only() -> None:
    launched = [words for words in commands(render(agg("trtllm", "dep"), FACTS, "trtllm")) if "trtllm-serve" in words]
    assert len(launched) == 1
    assert options_of(launched[0]).keys() <= _published("trtllm-serve")[0]


def test_router_weights_reach_the_frontend() -> None:
    given = arguments(components(agg("vllm", "tp", router=ROUTER))["Frontend"])
    assert given == {
        "--router-mode": "kv",
        "--router-kv-overlap-score-credit": "0.5",
        "--router-prefill-load-scale": "4.0",
        "--router-temperature": "0.2",
    }


def test_round_robin_frontend_gets_thresholds_and_no_weights() -> None:
    facts = Facts("s", "candidate", admission={"active_decode_blocks_threshold": 0.8})
    given = arguments(components(agg("vllm", "tp"), facts)["Frontend"])
    assert given == {"--router-mode": "round-robin", "--active-decode-blocks-threshold": "0.8"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_engines_publish_kv_events_where_a_router_and_a_cache_use_them(backend: str) -> None:
    event_options = {"--kv-events-config", "--publish-kv-events"}
    routed, turns = components(disagg(backend, router=ROUTER)), components(disagg(backend))
    assert event_options & arguments(routed["prefill"]).keys()
    assert not event_options & arguments(routed["decode"]).keys()
    assert not event_options & arguments(turns["prefill"]).keys()


def test_manifest_is_a_graph_deployment_with_gpus_and_roles() -> None:
    text = render(disagg("sglang"), FACTS, "dynamo")
    document = yaml.safe_load(text)
    assert (document["apiVersion"], document["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,52}", document["metadata"]["name"])
    found = components(disagg("sglang"))
    assert {name: each["type"] for name, each in found.items()} == {
        "Frontend": "frontend",
        "prefill": "prefill",
        "decode": "decode",
    }
    limits = found["decode"]["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "4"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_engine_wider_than_a_node_is_spread_over_nodes(backend: str) -> None:
    width = 2 * HARDWARE["h200_sxm"].gpus_per_node
    shape = ParallelShape(tp=1, attention_dp=width, moe_ep=width)
    wide = agg(backend, "dep", agg=role("dep").model_copy(update={"shape": shape}))
    component = components(wide)["agg"]
    assert component["multinode"] == {"nodeCount": 2}
    limits = component["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": str(width // 2)}
    assert "over 2 nodes" in render(wide, FACTS, wide.backend)


@pytest.mark.parametrize("wanted", ["own", "dynamo"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_versions_and_memory_are_stated_as_comments(backend: str, wanted: str) -> None:
    deployment = agg(backend, "tp")
    text = render(deployment, FACTS, deployment.backend if wanted == "own" else "dynamo")
    said = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    for fact in (
        FACTS.study_id,
        FACTS.candidate_id,
        f"{backend} 9.9.9",
        "aisimulate 0.13.0",
        "123456 KV tokens",
        "0.85",
    ):
        assert fact in said
    assert wanted == "own" or ENGINES[deployment.backend] in said


def test_sglang_text_says_what_chunk_was_replayed() -> None:
    assert "--chunked-prefill-size 8192" in render(agg("sglang", "tp"), FACTS, "sglang").partition("python")[0]


def test_planner_runs_beside_a_scaling_deployment() -> None:
    policy = {"enable_load_scaling": True, "load_adjustment_interval_seconds": 5, "max_gpu_budget": 16}
    given = arguments(components(agg("vllm", "tp", planner=policy | {"startup_s": 30.0}))["Planner"])
    expected = {"environment": "kubernetes", "backend": "vllm", "mode": "agg", **policy}
    assert json.loads(given["--config"] or "") == expected


@pytest.mark.parametrize(("backend", "wanted"), [(b, w) for b in BACKENDS for w in BACKENDS if b != w])
def test_commands_of_another_engine_are_refused_with_those_that_fit(backend: str, wanted: Any) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        render(agg(backend, "tp"), FACTS, wanted)
    fault = refused.value.faults[0]
    assert (fault.pointer, fault.remedy) == ("format", f"use dynamo or {backend}")
