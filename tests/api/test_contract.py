"""Schemathesis over the committed OpenAPI document: whatever it allows is answered as it says."""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("ignore::schemathesis.SchemathesisWarning")]

_DOCUMENT = Path(__file__).parent.parent.parent / "openapi" / "openapi.json"
_WITHOUT_STREAMS = schemathesis.openapi.from_path(str(_DOCUMENT)).exclude(path_regex="/events$")


@_WITHOUT_STREAMS.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_route_keeps_its_contract(case: Any, client: Any, address: str) -> None:
    case.call_and_validate(base_url=address, timeout=60)
