"""The committed catalog against the installed data package, and against the peer's support matrix."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.catalog import snapshot
from app.schemas.deployment import ParallelShape
from workers.capacity import catalog_snapshot
from workers.capacity.memory import kv_capacity
from workers.errors import EvaluationError
from workers.timing import perf_data

SUPPORT = json.loads((Path(__file__).parents[2] / "golden" / "support_matrix.json").read_text())
COMMITTED = json.loads(Path(snapshot.__file__).with_name("snapshot.json").read_text())
PROBED = ("h200_sxm", "vllm")


@pytest.fixture(scope="module")
def regenerated() -> dict[str, Any]:
    built = catalog_snapshot.build([PROBED])
    return dict(json.loads(json.dumps(built)))


@pytest.mark.parametrize("part", ["package", "shapes", "models", "hardware", "versions"])
def test_regenerated_snapshot_part_equals_the_committed_one(regenerated: dict[str, Any], part: str) -> None:
    assert regenerated[part] == COMMITTED[part]


def test_regenerated_data_of_one_pair_equals_the_committed_one(regenerated: dict[str, Any]) -> None:
    hardware, backend = PROBED
    assert regenerated["data"] == {hardware: {backend: COMMITTED["data"][hardware][backend]}}


def shape_of(parallelism: dict[str, int]) -> ParallelShape:
    return ParallelShape(
        tp=parallelism.get("tensor", 1),
        attention_dp=parallelism.get("attention_data", 1),
        moe_tp=parallelism.get("moe_tensor", 1),
        moe_ep=parallelism.get("moe_expert", 1),
    )


def refuses_for_memory(row: dict[str, Any], shape: ParallelShape) -> bool:
    fraction = 0.88 if row["backend"] == "sglang" else 0.9
    try:
        kv_capacity(row["model"], row["hardware"], row["backend"], shape, memory_fraction=fraction)
    except EvaluationError:
        return True
    return False


@pytest.mark.parametrize("hardware", sorted({row["hardware"] for row in SUPPORT}))
def test_data_and_memory_together_give_the_peers_support_matrix(hardware: str) -> None:
    rows = [row for row in SUPPORT if row["hardware"] == hardware]
    answers = []
    for row in rows:
        shape = shape_of(row["parallelism"])
        place = (shape.tp, shape.attention_dp, shape.moe_tp, shape.moe_ep)
        with_data = snapshot.shapes_with_data(row["model"], hardware, row["backend"])
        answers.append(place in with_data and not refuses_for_memory(row, shape))
    assert answers == [row["ok"] for row in rows]


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
    assert snapshot.shapes_with_data("Qwen/Qwen3-8B", "b60", "sglang") == frozenset()


def test_moe_model_has_the_seventeen_pure_shapes_and_dense_five() -> None:
    assert len(snapshot.shapes_of("deepseek-ai/DeepSeek-V3")) == 17
    assert snapshot.shapes_of("Qwen/Qwen3-8B") == tuple((tp, 1, 1, 1) for tp in (1, 2, 4, 8, 16))
