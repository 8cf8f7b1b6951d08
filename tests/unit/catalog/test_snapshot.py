"""The committed catalog against the installed data package, and against the peer's support matrix."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.catalog import snapshot
from app.schemas.deployment import ParallelShape
from tests.golden.files import document
from workers.capacity import catalog_snapshot
from workers.capacity.memory import kv_capacity
from workers.errors import EvaluationError
from workers.timing import perf_data
from workers.timing.aic import aic_times, engine_identity

SUPPORT: list[dict[str, Any]] = document("oracle-support")
COMMITTED = json.loads(Path(snapshot.__file__).with_name("snapshot.json").read_text())


@pytest.fixture(scope="module")
def regenerated() -> dict[str, Any]:
    built = catalog_snapshot.build()
    return dict(json.loads(json.dumps(built)))


@pytest.mark.parametrize("part", ["package", "models", "hardware", "versions", "data"])
def test_regenerated_snapshot_part_equals_the_committed_one(regenerated: dict[str, Any], part: str) -> None:
    assert regenerated[part] == COMMITTED[part]


def shape_of(parallelism: dict[str, int]) -> ParallelShape:
    return ParallelShape(
        tp=parallelism.get("tensor", 1),
        attention_dp=parallelism.get("attention_data", 1),
        moe_tp=parallelism.get("moe_tensor", 1),
        moe_ep=parallelism.get("moe_expert", 1),
    )


def can_be_replayed(row: dict[str, Any]) -> bool:
    place = (row["model"], row["hardware"], row["backend"], shape_of(row["parallelism"]))
    try:
        kv_capacity(*place, memory_fraction=0.88 if row["backend"] == "sglang" else 0.9)
        times = aic_times(engine_identity(*place))
        times.prefill_ms(1, 1000, 0)
        times.decode_ms(1, 1001, 1001)
    except EvaluationError:
        return False
    return True


@pytest.mark.parametrize("hardware", sorted({row["hardware"] for row in SUPPORT}))
def test_data_and_memory_together_give_the_peers_support_matrix(hardware: str) -> None:
    rows = [row for row in SUPPORT if row["hardware"] == hardware]
    assert [can_be_replayed(row) for row in rows] == [row["ok"] for row in rows]


def test_whatever_the_peer_replays_has_data_in_the_catalog() -> None:
    for row in SUPPORT:
        if row["ok"]:
            assert snapshot.has_data(row["model"], row["hardware"], row["backend"]), row


def test_default_data_versions_are_the_peers() -> None:
    for row in SUPPORT:
        if row["ok"]:
            assert snapshot.data_version(row["hardware"], row["backend"]) == row["data_version"]


def test_installed_package_is_the_one_of_the_snapshot() -> None:
    used = perf_data.package()
    assert (used.distribution, used.version) == snapshot.PACKAGE


def test_pair_without_data_has_no_version_and_no_models() -> None:
    assert snapshot.data_version("b60", "sglang") is None
    assert not snapshot.has_data("Qwen/Qwen3-8B", "b60", "sglang")
