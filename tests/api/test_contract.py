"""Schemathesis over the committed OpenAPI document: whatever it allows is answered as it says.

Bodies of studies and traces have fuzz tests of their own: generating them from their schemas takes minutes.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("ignore")]

_DOCUMENT = Path(__file__).parent.parent.parent / "openapi" / "openapi.json"
_ELSEWHERE = {("post", "/studies"), ("post", "/traces"), ("get", "/studies/{study_id}/events")}
_OPERATIONS = [
    (method, path)
    for path, item in json.loads(_DOCUMENT.read_text())["paths"].items()
    for method in item
    if (method, path) not in _ELSEWHERE
]


@pytest.fixture(scope="module")
def schema() -> Any:
    """The committed document, as schemathesis reads it."""
    return schemathesis.openapi.from_path(str(_DOCUMENT))


@pytest.mark.parametrize(("method", "path"), _OPERATIONS)
def test_route_keeps_its_contract(client: httpx.Client, address: str, schema: Any, method: str, path: str) -> None:
    @given(case=schema[path][method].as_strategy())
    @settings(
        max_examples=10,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        case.call_and_validate(base_url=address, timeout=60)

    check()
