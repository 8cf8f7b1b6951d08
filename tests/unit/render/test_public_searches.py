"""Each candidate of the public searches can be run: its texts use published options only, and no knob is lost."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.catalog.snapshot import MODELS
from app.schemas.deployment import Deployment
from app.schemas.study import SmartSearchConfig
from benchmarks.recommend import config_of
from tests.unit.render.reading import lost_knobs, unpublished
from tests.unit.search.world import WorldFacts
from workers.search.space import build_space

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
_ENDLESS_TOKENS = 10**7


def _searches() -> dict[str, SmartSearchConfig]:
    """The public searches, and the public configurations that are right, by name."""
    told: Any = json.loads(gzip.decompress((GOLDEN / "recommend-public.json.gz").read_bytes()))
    given: Any = json.loads((GOLDEN / "config-public.json").read_text())
    found = {search["id"]: config_of(search, with_disagg=True) for search in told["searches"]}
    asked = {case["id"]: case["config"] for case in given["cases"] if case["valid"]}
    return found | {name: SmartSearchConfig.model_validate(config) for name, config in asked.items()}


def _deployments(config: SmartSearchConfig) -> Iterator[Deployment]:
    """Every shape, pool and backend of a search once, with its batching, routers and planners in turns.

    Capacity and data leave nothing out here, so these are at least the candidates of the real search.
    """
    is_moe = MODELS[config.search_space.model_name].is_moe
    space = build_space(config, WorldFacts(is_moe, max_context_tokens=_ENDLESS_TOKENS, tokens_per_gpu=_ENDLESS_TOKENS))
    for number, branch in enumerate(space.branches):
        num_options = branch.size // max(len(branch.cells), 1)
        for cell in range(len(branch.cells)):
            yield space.deployment(number, cell * num_options + cell % num_options)


SEARCHES = _searches()


@pytest.mark.parametrize("name", SEARCHES)
def test_every_candidate_of_a_public_search_has_valid_launch_texts(name: str) -> None:
    deployments = list(_deployments(SEARCHES[name]))
    assert deployments
    assert {option for each in deployments for option in unpublished(each)} == set()
    assert [lost for each in deployments for lost in lost_knobs(each)] == []
