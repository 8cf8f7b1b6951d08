"""Valid configurations, damaged 5,000 ways: each is a clean configuration or a list of faults, never an error."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from app.routes.bodies import RefusedError, check, read_document
from app.routes.faults import MAX_FAULTS, Fault
from app.schemas.study import SmartSearchConfig, canonical_json

GOLDEN = Path(__file__).parents[2] / "golden"
VALID = [case["config"] for case in json.loads((GOLDEN / "config-public.json").read_text())["cases"] if case["valid"]]
EXAMPLES = [
    json.loads(path.read_text()) for path in (Path(__file__).parents[3] / "openapi" / "examples").glob("*.json")
]
NUM_MUTATIONS = 5000

STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**400, -(2**70), 0.0, -0.0, 0.5, 1.0, 1e308, 1e-320, float("nan"),
    float("inf"), float("-inf"), "", " ", "8", "NaN", "agg", "vllm", "kv_router", "\u202e", "x" * 5000, "🦊", [], [[]],
    {}, [None], [True], [1, 1], ["agg", "agg"], [0.5, float("nan")], [1, 2, 3], {"a": {}}, {"": None}, {"tp": 1},
    [{"tp": 1}], [{"prefill": {"tp": 1}}], {"preset": "default"}, {"search_space": {}}, [8192, "8192"], [0] * 200,
]  # fmt: skip
KEYS = [
    "search_space", "workload", "goal", "sweep", "adapters", "baseline", "labels", "name", "isl", "osl", "concurrency",
    "kv_load_ratio", "request_rate", "trace_path", "replay_concurrency", "parallel_configs", "target", "sla", "ttft_ms",
    "pareto_objectives", "gpu_budget", "min_gpu_budget", "router_mode", "planner_scaling_policy", "__class__", "~/", "",
    "dynamo.router", "num_g2_blocks", "algorithm", "strict_sla", "min_goodput_rps", "load_predictor_candidates", "agg",
]  # fmt: skip


def damaged(rng: random.Random) -> Any:
    """A valid configuration after one to four random edits at random places."""
    document = copy.deepcopy(rng.choice(VALID + EXAMPLES))
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = _container(document, rng)
        if isinstance(place, list):
            _edit_list(place, rng)
        elif isinstance(place, dict):
            _edit_dict(place, rng)
    return document if rng.random() > 0.01 else rng.choice(STRANGE)


def _container(document: Any, rng: random.Random) -> Any:
    here = document
    while isinstance(here, dict | list) and here and rng.random() < 0.75:
        below = list(here.values()) if isinstance(here, dict) else here
        inner = [value for value in below if isinstance(value, dict | list)]
        if not inner:
            break
        here = rng.choice(inner)
    return here


def _edit_list(place: list[Any], rng: random.Random) -> None:
    if place and rng.random() < 0.5:
        place[rng.randrange(len(place))] = copy.deepcopy(rng.choice(STRANGE))
    else:
        place.append(copy.deepcopy(rng.choice(STRANGE)))


def _edit_dict(place: dict[str, Any], rng: random.Random) -> None:
    act = rng.random()
    if place and act < 0.5:
        place[rng.choice(list(place))] = copy.deepcopy(rng.choice(STRANGE))
    elif place and act < 0.7:
        del place[rng.choice(list(place))]
    elif place and act < 0.8:
        key = rng.choice(list(place))
        place[key[:-1] + rng.choice("xyz")] = place.pop(key)
    else:
        place[rng.choice(KEYS)] = copy.deepcopy(rng.choice(STRANGE))


def assert_clean(config: SmartSearchConfig) -> None:
    text = canonical_json(config)
    json.loads(text, parse_constant=lambda token: pytest.fail(f"non-finite {token}"))
    assert canonical_json(SmartSearchConfig.model_validate(json.loads(text))) == text


def assert_faults(found: list[Fault]) -> None:
    assert 0 < len(found) <= MAX_FAULTS + 1
    text = json.dumps([fault.model_dump() for fault in found], allow_nan=False)
    text.encode()
    assert len(text) < 200_000
    assert all(fault.fault and fault.remedy for fault in found)
    assert all(fault.pointer == "" or fault.pointer.startswith("/") for fault in found)


def test_damaged_configurations_end_clean_or_in_faults() -> None:
    rng = random.Random(20261129)
    outcomes = {"clean": 0, "refused": 0}
    for _ in range(NUM_MUTATIONS):
        document = damaged(rng)
        try:
            config = check(document).config
        except RefusedError as refusal:
            assert_faults(refusal.faults)
            outcomes["refused"] += 1
        else:
            assert_clean(config)
            outcomes["clean"] += 1
    assert outcomes["clean"] > 100
    assert outcomes["refused"] > 3000


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
def test_damaged_bytes_end_clean_or_in_faults(kind: str) -> None:
    rng = random.Random(7)
    for _ in range(400):
        text = bytearray(json.dumps(rng.choice(VALID)).encode())
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 2)] = bytes(
                rng.choice(b'{}[]:,"&*!|>%@\\ \n\t-0159eE.\x00\xff\xc3') for _ in range(2)
            )
        try:
            reading = read_document(kind, bytes(text))
            assert_clean(check(reading.document, reading.faults).config)
        except RefusedError as refusal:
            assert_faults(refusal.faults)
