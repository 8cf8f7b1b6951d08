"""Every body in openapi/examples and every example of the configuration pages, posted as a client would."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "openapi" / "examples").glob("*.json"))
PAGES = sorted((ROOT / "docs" / "configuration").glob("*.md"))
PLANNED_FAULT = "fault-model-does-not-fit"
"""Valid, yet nothing fits: the plan itself says so."""


@pytest.fixture
def client(empty_tables: None, address: str) -> Iterator[httpx.Client]:
    """A caller of the service with its real planner."""
    with httpx.Client(base_url=address, timeout=60) as http:
        yield http


def offer_trace(client: httpx.Client, config: dict[str, object]) -> None:
    """Upload a small trace under the name a configuration asks for, if it asks for one."""
    workload = config.get("workload")
    if isinstance(workload, dict) and "trace_path" in workload:
        row = json.dumps({"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [1, 2]})
        answer = client.post("/traces", params={"name": workload["trace_path"]}, content=row + "\n")
        assert answer.status_code in (200, 201), answer.text


def dry_run(client: httpx.Client, config: dict[str, object]) -> httpx.Response:
    offer_trace(client, config)
    return client.post("/studies", params={"dry_run": "true"}, json=config)


@pytest.mark.parametrize("path", [each for each in EXAMPLES if not each.stem.startswith("fault")], ids=lambda p: p.stem)
def test_example_is_planned(client: httpx.Client, path: Path) -> None:
    answer = dry_run(client, json.loads(path.read_text()))
    assert answer.status_code == 200, answer.text
    assert answer.json()["combinations"] > 0


@pytest.mark.parametrize("path", [each for each in EXAMPLES if each.stem.startswith("fault")], ids=lambda p: p.stem)
def test_example_of_a_fault_is_refused_with_its_reason(client: httpx.Client, path: Path) -> None:
    answer = client.post("/studies", params={"dry_run": "true"}, content=path.read_bytes())
    if path.stem == PLANNED_FAULT:
        assert answer.status_code == 200
        assert answer.json()["problem"]
        return
    assert answer.status_code == 422
    for error in answer.json()["errors"]:
        assert error["pointer"].startswith("/")
        assert error["fault"]
        assert error["remedy"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_of_a_configuration_page_are_planned(client: httpx.Client, page: Path) -> None:
    for example in re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL):
        answer = dry_run(client, json.loads(example))
        assert answer.status_code == 200, answer.text
