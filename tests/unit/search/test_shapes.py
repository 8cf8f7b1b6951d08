"""Parallel shapes, pools and latent projection against the reference probes."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.search.latent import Entry, LatentSpace
from workers.search.shapes import RoleConfig, agg_pool, all_shapes, disagg_pairs, engine_shapes, role_configs, strategy

PROBES: dict[str, dict[str, Any]] = {
    probe["id"][:3]: probe
    for probe in json.loads((Path(__file__).parents[2] / "golden" / "search-probes.json").read_text())
}


@pytest.mark.parametrize("probe", ["S01", "S02"])
def test_pools_before_the_kv_filter_have_the_reference_sizes(probe: str) -> None:
    is_moe = PROBES[probe]["config"]["is_moe"]
    for budget, expected in PROBES[probe]["expected"]["counts"].items():
        shapes = all_shapes(is_moe, int(budget))
        pairs = disagg_pairs(role_configs(shapes, int(budget)), int(budget))
        assert [len(agg_pool(shapes, int(budget))), len(pairs)] == expected


def test_minimum_budget_prunes_totals() -> None:
    shapes = all_shapes(False, 8)
    assert len(agg_pool(shapes, 8, 6)) == PROBES["S03"]["expected"]["agg_min6"]
    assert len(disagg_pairs(role_configs(shapes, 8), 8, 8)) == PROBES["S03"]["expected"]["disagg_min8"]


def test_moe_shapes_on_four_gpus_come_in_reference_order() -> None:
    found = [[s.tp, s.attention_dp, s.moe_tp, s.moe_ep, strategy(s)] for s in engine_shapes(True, 4)]
    assert found == PROBES["S04"]["expected"]["shapes"]


def test_pairs_beyond_the_limit_are_refused_before_they_are_built() -> None:
    roles = role_configs(all_shapes(True, 4096), 4096)
    with pytest.raises(MemoryError, match="pairs"):
        disagg_pairs(roles, 4096)


def _pool(mode: str, is_moe: bool, budget: int) -> list[Entry]:
    shapes = all_shapes(is_moe, budget)
    if mode == "agg":
        return [(config,) for config in agg_pool(shapes, budget)]
    roles = role_configs(shapes, budget)
    return [(roles[p], roles[d]) for p, d in disagg_pairs(roles, budget)]


def _plain(config: RoleConfig) -> dict[str, int]:
    return {field: getattr(config, field) for field in ("tp", "attention_dp", "moe_tp", "moe_ep", "replicas")}


@pytest.mark.parametrize("probe", ["S05", "S06", "S07"])
def test_latent_requests_project_to_the_reference_configurations(probe: str) -> None:
    case, expected = PROBES[probe]["config"], PROBES[probe]["expected"]
    mode, is_moe, budget = case["deployment_mode"], case["is_moe"], case["gpu_budget"]
    space = LatentSpace(mode, _pool(mode, is_moe, budget), budget, is_moe)
    assert space.defaults == expected["defaults"]
    assert space.constants == expected["constants"]
    for wanted in expected["projections"]:
        found = space.project(wanted["request"])
        plain = [_plain(role) for role in found.entry]
        assert (plain[0] if mode == "agg" else dict(zip(("prefill", "decode"), plain, strict=True))) == wanted["config"]
        assert found.distance == pytest.approx(wanted["distance"], rel=1e-9, abs=1e-15)
        assert found.mode_projected is wanted["mode_projected"]
