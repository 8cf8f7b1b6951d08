"""The routing table of the traffic page, every cell over HTTP: four load shapes, each static and with a planner."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.queue import celery
from workers import tasks

pytestmark = pytest.mark.services

SHORT = {"isl": 512, "osl": 64}
LOADS: dict[str, dict[str, Any]] = {
    "trace": {"trace_path": "burst"},
    "rate": {**SHORT, "request_rate": 60.0, "num_request_ratio": 8},
    "concurrency": {**SHORT, "concurrency": 400, "num_request_ratio": 4},
    "kv_load": {**SHORT, "kv_load_ratio": 1.0, "num_request_ratio": 3},
}
EVERY_SECOND = {
    "enable_throughput_scaling": False,
    "enable_load_scaling": True,
    "throughput_adjustment_interval_seconds": 180,
    "load_adjustment_interval_seconds": 1,
}


class RealDesk:
    """Plays the broker in this process; what it wakes is the real worker half."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[tuple[str, list[Any]]] = []
        assert tasks.advance_study.name in celery.tasks
        monkeypatch.setattr("app.queue._send", self._send)

    def _send(self, name: str, arguments: list[Any]) -> bool:
        self.messages.append((name, arguments))
        return True

    def run(self, study_id: UUID) -> None:
        """Work until there are no messages."""
        self.messages.append(("spica.advance_study", [str(study_id)]))
        while self.messages:
            name, arguments = self.messages.pop(0)
            celery.tasks[name](*arguments)


@pytest.fixture
def desk(empty_tables: None, monkeypatch: pytest.MonkeyPatch) -> RealDesk:
    return RealDesk(monkeypatch)


@pytest.fixture
def client(desk: RealDesk, address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as http:
        yield http


def study(load: dict[str, Any], policy: str | dict[str, Any]) -> dict[str, Any]:
    """One deployment of one engine, which a planner may make four, of a small pool of KV blocks."""
    return {
        "search_space": {
            "model_name": "Qwen/Qwen3-32B-FP8",
            "hardware_sku": "h200_sxm",
            "gpu_budget": 4,
            "deployment_mode": ["agg"],
            "backend": ["vllm"],
            "parallel_configs": [{"tp": 1}],
            "agg_gpu_memory_utilization": 0.35,
            "agg_max_num_batched_tokens": [8192],
            "agg_max_num_seqs": [256],
            "router_mode": ["round_robin"],
            "planner_scaling_policy": [policy],
            "planner_fpm_sampling": ["default"],
            "planner_load_sensitivity": ["default"],
        },
        "workload": load,
        "goal": {"target": "throughput_per_gpu"},
    }


def rows() -> str:
    """Forty requests a second for eight seconds."""
    stamps = range(0, 8000, 25)
    return "".join(
        json.dumps({"timestamp": at, "input_length": 1024, "output_length": 64, "hash_ids": [2 * at, 2 * at + 1]})
        + "\n"
        for at in stamps
    )


def candidate(client: httpx.Client, desk: RealDesk, document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The only candidate of a study, and its report."""
    answer = client.post("/studies", json=document)
    assert answer.status_code == 202, answer.text
    desk.run(UUID(answer.json()["id"]))
    link = f"/studies/{answer.json()['id']}"
    ended = client.get(link).json()
    assert ended["status"] == "succeeded", ended["problem"]
    (item,) = client.get(f"{link}/candidates").json()["items"]
    return item, client.get(f"{link}/candidates/{item['id']}/report").json()


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
def test_load_shape_runs_static_and_with_a_planner(client: httpx.Client, desk: RealDesk, load: dict[str, Any]) -> None:
    if "trace_path" in load:
        client.post("/traces", params={"name": load["trace_path"]}, content=rows())
    static, fixed = candidate(client, desk, study(load, "disabled"))
    scaled, moved = candidate(client, desk, study(load, EVERY_SECOND))
    assert static["deployment"]["planner"] is None
    assert fixed.get("scaling") is None
    assert static["metrics"]["num_requests"] == scaled["metrics"]["num_requests"]
    scaling = moved["scaling"]
    assert scaling["planner_total_ticks"] == scaled["metrics"]["planner_total_ticks"] > 0
    assert scaling["events"][0] == {
        "at_s": scaling["events"][0]["at_s"],
        "component": "agg",
        "from_count": 1,
        "to_count": 2,
        "reason": "scale_up",
    }
    assert max(scaling["gpus"]["agg"]["gpus"]) <= 4
    hours = scaled["metrics"]["duration_ms"] / 3_600_000
    assert scaled["metrics"]["avg_gpu"] == pytest.approx(scaled["metrics"]["gpu_hours"] / hours)
    per_gpu = scaled["metrics"]["output_throughput_tok_s"] / scaled["metrics"]["avg_gpu"]
    assert scaled["objectives"]["throughput_per_gpu"] == pytest.approx(per_gpu)
    assert scaled["metrics"]["mean_e2e_latency_ms"] < static["metrics"]["mean_e2e_latency_ms"]
