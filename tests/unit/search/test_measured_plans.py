"""Plans on the measured data: pools as the reference searcher has them, and a model that does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.routes.bodies import check, read_document
from app.schemas.study import SmartSearchConfig
from workers.plan import plan

GOLDEN = Path(__file__).parents[2] / "golden"
ROWS = json.loads((GOLDEN / "pool-sizes.json").read_text())["rows"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(row[key]) for key in ("model", "backend", "mode")))
def test_pool_after_the_kv_filter_has_the_reference_size(row: dict[str, Any]) -> None:
    config = SmartSearchConfig.model_validate(
        {
            "search_space": {
                "model_name": row["model"],
                "hardware_sku": row["hardware"],
                "gpu_budget": row["gpus"],
                "backend": [row["backend"]],
                "deployment_mode": [row["mode"]],
                "router_mode": ["round_robin"],
            },
            "workload": {"isl": 1000, "osl": 100, "concurrency": 8, "num_request_ratio": 2},
        }
    )
    assert [pool.kv_capacity for pool in plan(config).branches[0].pools] == [row["size"]]


def test_f06_model_that_does_not_fit_is_explained_with_figures() -> None:
    reading = read_document("application/yaml", (GOLDEN / "field" / "F06-model-does-not-fit.yaml").read_bytes())
    made = plan(check(reading.document, reading.faults).config)
    assert made.combinations == 0
    assert made.problem is not None
    (reason,) = [each for each in made.problem["reasons"] if each["code"] == "no_kv_budget"]
    assert reason["backends"] == ["sglang", "vllm"]
    assert reason["example"]["numbers"]["weights_gib"] > reason["example"]["numbers"]["usable_gib"]
    assert made.nearest is not None
    assert made.nearest.smallest_gpus is None


def test_f11_tiny_space_has_four_candidates() -> None:
    reading = read_document("application/yaml", (GOLDEN / "field" / "F11-tiny-space-large-budget.yaml").read_bytes())
    made = plan(check(reading.document, reading.faults).config)
    assert made.combinations == made.budget.expected_trials == 4
