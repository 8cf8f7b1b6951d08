"""Launch texts: every searched knob arrives, under a name that the engine publishes, and can be read back."""

import json
import re
from typing import Any

import pytest
import yaml

from app.catalog.snapshot import HARDWARE
from app.errors import InvalidRequestError
from app.render.dynamo import ENGINES
from app.render.facts import Facts
from app.render.formats import render
from app.schemas.deployment import Deployment, ParallelShape, RoleDeployment, RouterConfig
from tests.unit.render.reading import (
    FACTS,
    arguments,
    commands,
    components,
    lost_knobs,
    options_of,
    published,
    unpublished,
)

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


@pytest.mark.parametrize("deployment", every_deployment(), ids=lambda each: f"{each.backend}-{each.mode}")
def test_every_knob_can_be_read_back_from_commands_and_manifest(deployment: Deployment) -> None:
    assert lost_knobs(deployment) == []


@pytest.mark.parametrize("deployment", every_deployment(), ids=lambda each: f"{each.backend}-{each.mode}")
def test_every_option_is_published_by_every_listed_version(deployment: Deployment) -> None:
    assert unpublished(deployment) == set()


def test_trtllm_serve_is_given_published_options_only() -> None:
    launched = [words for words in commands(render(agg("trtllm", "dep"), FACTS, "trtllm")) if "trtllm-serve" in words]
    assert len(launched) == 1
    assert options_of(launched[0]).keys() <= published("trtllm-serve")[0]


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


@pytest.mark.parametrize("mode", [agg, disagg])
@pytest.mark.parametrize("backend", BACKENDS)
def test_commands_say_what_routed_the_replay_and_what_engines_of_one_host_need(backend: str, mode: Any) -> None:
    arguments_of = (backend, "tp") if mode is agg else (backend,)
    text = render(mode(*arguments_of, router=ROUTER), FACTS, backend)
    assert "the replay used a KV-aware router" in text
    assert "CUDA_VISIBLE_DEVICES" in text
    assert ("VLLM_NIXL_SIDE_CHANNEL_PORT" in text) == (backend == "vllm" and mode is disagg)
    alone = agg(backend, "tp", agg=role("tp", replicas=1))
    assert "CUDA_VISIBLE_DEVICES" not in render(alone, FACTS, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_commands_of_a_scaled_fleet_say_that_the_planner_is_elsewhere(backend: str) -> None:
    scaled = agg(backend, "tp", planner={"enable_load_scaling": True})
    assert "before the planner scaled it" in render(scaled, FACTS, backend)
    assert "before the planner scaled it" not in render(agg(backend, "tp"), FACTS, backend)
