"""The pages of docs/configuration say what the models say."""

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from app.routes.bodies import check
from app.schemas.adapters import ADAPTERS
from app.schemas.baseline import Baseline, BaselineRole, BaselineRouter
from app.schemas.goal import Goal, Sla
from app.schemas.search_space import SearchSpace
from app.schemas.study import SmartSearchConfig
from app.schemas.sweep import Sweep
from app.schemas.workload import Workload

PAGES = Path(__file__).parents[3] / "docs" / "configuration"
MODELS: dict[str, list[type[BaseModel]]] = {
    "README": [SmartSearchConfig],
    "search-space": [SearchSpace],
    "workload": [Workload],
    "goal": [Goal, Sla],
    "sweep": [Sweep],
    "baseline": [Baseline, BaselineRole, BaselineRouter],
}
_ROW = re.compile(r"^\| `(\w+)` \| (required|`.*?`) \| (.+) \|$", re.MULTILINE)


def documented(page: str) -> list[tuple[str, str]]:
    return [(name, default.strip("`")) for name, default, _ in _ROW.findall((PAGES / f"{page}.md").read_text())]


def modelled(model: type[BaseModel]) -> list[tuple[str, str]]:
    rows = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        plain = default.model_dump(mode="json") if isinstance(default, BaseModel) else default
        rows.append((name, "required" if field.is_required() else json.dumps(plain)))
    return rows


@pytest.mark.parametrize("page", MODELS)
def test_page_lists_every_field_with_its_default(page: str) -> None:
    assert documented(page) == [row for model in MODELS[page] for row in modelled(model)]


def test_adapter_page_lists_every_knob_with_its_flat_twin() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `(\w+)` \| `(\w+)` \|$", (PAGES / "adapters.md").read_text(), re.MULTILINE)
    assert rows == [(adapter, key, flat) for adapter, fields in ADAPTERS.items() for key, flat in fields.items()]


@pytest.mark.parametrize("page", [*MODELS, "adapters"])
def test_example_of_a_page_is_a_valid_configuration(page: str) -> None:
    examples = re.findall(r"```json\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
    assert examples
    for example in examples:
        assert check(json.loads(example)).config
