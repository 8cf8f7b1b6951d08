"""Configuration and trace in one form: `POST /studies` as multipart."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from httpx import Client

from tests.api.test_traces import ROWS, folder, left, study
from tests.conftest import REPOSITORY
from tests.golden.files import trace
from tests.unit.traces.helpers import field_case

__all__ = ["folder"]
pytestmark = pytest.mark.services


def _form(config: dict[str, Any], content: bytes = ROWS) -> dict[str, Any]:
    return {"config": ("study.json", json.dumps(config)), "trace": ("trace.jsonl", content)}


def test_configuration_and_trace_are_submitted_together(client: Client) -> None:
    config = study("whatever")
    del config["workload"]["trace_path"]
    answer = client.post("/studies", files=_form(config))
    assert answer.status_code == 202
    made = answer.json()
    (stored,) = client.get("/traces").json()["items"]
    assert made["provenance"]["trace_sha256"] == stored["sha256"]
    assert made["config"]["workload"]["trace_path"] == f"sha256:{stored['sha256']}"


def test_example_of_the_documentation_is_submitted_with_a_trace(client: Client) -> None:
    config = (REPOSITORY / "docs/examples/trace-study.yaml").read_bytes()
    packed = gzip.compress(trace("mooncake_arxiv_head1000.jsonl"))
    files = {"config": ("trace-study.yaml", config), "trace": ("trace.jsonl.gz", packed)}
    assert client.post("/studies", files=files).status_code == 202


def test_form_is_read_as_its_query_says(client: Client) -> None:
    form = _form(study("t"), trace("dynamo_agent_pi.request_trace.jsonl"))
    assert client.post("/studies?format=dynamo", files=form).status_code == 202
    assert client.get("/traces").json()["items"][0]["block_size"] == 16


def test_form_repeated_under_one_idempotency_key_is_one_study(client: Client) -> None:
    headers = {"Idempotency-Key": "k"}
    first, second = (client.post("/studies", files=_form(study("t")), headers=headers) for _ in range(2))
    assert second.status_code == 200
    assert first.json()["id"] == second.json()["id"]


def test_form_with_a_faulty_part_stores_nothing(client: Client, folder: Path) -> None:
    faulty = client.post("/studies", files=_form(study("t"), field_case("F04")))
    assert (faulty.status_code, faulty.json()["num_faulty_rows"]) == (422, 3)
    config = study("t") | {"goal": {"target": "speed"}}
    assert client.post("/studies", files=_form(config)).status_code == 422
    assert left(folder) == []
    assert client.get("/studies").json()["items"] == []


def test_dry_run_of_a_form_plans_with_the_trace_and_stores_nothing(client: Client, folder: Path) -> None:
    answer = client.post("/studies?dry_run=true", files=_form(study("t")))
    assert answer.status_code == 200
    assert left(folder) == []
    assert client.get("/traces").json()["items"] == []
