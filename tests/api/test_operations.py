"""Health, readiness, metrics, catalog, events, and the committed OpenAPI document."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.schemas.catalog_view import CatalogView
from tests.thin import Desk, document, submit

pytestmark = pytest.mark.services
_OPENAPI = Path(__file__).parent.parent.parent / "openapi" / "openapi.json"


def test_ready_when_database_and_broker_answer(client: httpx.Client) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").json() == {"status": "ok", "parts": {"database": "ok", "broker": "ok"}}


def test_not_ready_names_the_missing_part(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.routes.ops.is_broker_reachable", lambda: False)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"] == {"database": "ok", "broker": "not reachable"}
    monkeypatch.setattr("app.db.readiness.SCHEMA_REVISION", "9999")
    assert client.get("/readyz").json()["parts"]["database"].endswith("expected 9999")


def test_metrics_count_studies_and_trials(client: httpx.Client, desk: Desk) -> None:
    row = desk.run(submit(trials=10))
    lines = client.get("/metrics").text.splitlines()
    assert 'spica_studies{status="succeeded"} 1.0' in lines
    assert 'spica_trials{outcome="feasible"} 8.0' in lines
    assert f"spica_study_versions {float(row.version)}" in lines
    assert any(line.startswith('spica_request_seconds_bucket{le="0.001",method="GET"') for line in lines)


def _metric(client: httpx.Client, name: str) -> float:
    found = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"{name} ")]
    return float(found[0].split()[1])


def test_replay_seconds_are_the_sum_of_the_trials_wall_time(client: httpx.Client, desk: Desk) -> None:
    assert _metric(client, "spica_replay_seconds") == 0
    rows = [desk.run(submit(trials=5)), desk.run(submit(trials=3))]
    trials = [trial for row in rows for trial in client.get(f"/studies/{row.id}/trials").json()["items"]]
    taken_s = [trial["wall_s"] for trial in trials]
    assert any(taken_s)
    assert _metric(client, "spica_replay_seconds") == pytest.approx(sum(taken_s))


def test_polls_that_found_nothing_new_are_counted_by_route(client: httpx.Client, desk: Desk) -> None:
    path = f"/studies/{desk.run(submit(trials=3)).id}/candidates"
    tag = client.get(path).headers["etag"]
    counted = 'spica_request_seconds_count{method="GET",route="/studies/{study_id}/candidates",status="304"}'
    # One counter for the whole process, in which other tests have polled, too.
    assert client.get(path, headers={"if-none-match": tag}).status_code == 304
    before = _metric(client, counted)
    for _ in range(3):
        assert client.get(path, headers={"if-none-match": tag}).status_code == 304
    assert _metric(client, counted) == before + 3


def test_build_info_names_service_and_data(client: httpx.Client) -> None:
    from app.catalog.snapshot import PACKAGE
    from app.config import SERVICE_VERSION

    labels = f'{{perf_data="{" ".join(PACKAGE)}",version="{SERVICE_VERSION}"}}'
    assert f"spica_build_info{labels} 1.0" in client.get("/metrics").text


def test_catalog_follows_its_model_and_is_cached(client: httpx.Client) -> None:
    answer = client.get("/catalog")
    catalog = CatalogView.model_validate_json(answer.content)
    assert "Qwen/Qwen3-32B-FP8" in {model.name for model in catalog.models}
    assert client.get("/catalog", headers={"if-none-match": answer.headers["etag"]}).status_code == 304


def _events(client: httpx.Client, path: str, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    with client.stream("GET", path, headers=headers or {}) as stream:
        blocks = "".join(stream.iter_text()).split("\n\n")
    parsed = [dict(line.split(": ", 1) for line in block.splitlines() if ": " in line) for block in blocks]
    return [{**event, "data": json.loads(event["data"])} for event in parsed if "event" in event]


def test_events_tell_the_end_and_close(client: httpx.Client, desk: Desk) -> None:
    row = desk.run(submit(trials=10))
    events = _events(client, f"/studies/{row.id}/events")
    assert [event["event"] for event in events] == ["best", "progress", "status"]
    assert events[-1]["id"] == str(row.version)
    assert events[-1]["data"]["status"] == "succeeded"


def test_events_of_a_moving_study_have_rising_ids(client: httpx.Client, desk: Desk) -> None:
    from threading import Timer

    study_id = client.post("/studies", json=document(trials=10)).json()["id"]
    timer = Timer(0.3, desk.work)
    timer.start()
    events = _events(client, f"/studies/{study_id}/events")
    timer.join()
    ids = [int(event["id"]) for event in events if "id" in event]
    assert ids == sorted(set(ids))
    assert events[0]["data"]["status"] == "queued"
    assert events[-1]["data"]["status"] == "succeeded"


def test_client_that_saw_the_end_is_told_to_stay_away(client: httpx.Client, desk: Desk) -> None:
    row = desk.run(submit(trials=10))
    path = f"/studies/{row.id}/events"
    assert client.get(path, headers={"Last-Event-ID": str(row.version)}).status_code == 204
    assert len(_events(client, path, {"Last-Event-ID": "3"})) == 3


def test_committed_openapi_document_is_the_present_one() -> None:
    from app.export_openapi import openapi_text

    assert _OPENAPI.read_text() == openapi_text(), "run: python -m app.export_openapi > openapi/openapi.json"


def test_every_reference_in_the_openapi_document_leads_somewhere() -> None:
    document = json.loads(_OPENAPI.read_text())
    names = set(document["components"]["schemas"])
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                found.add(node["$ref"].rpartition("/")[2])
            for each in node.values():
                walk(each)
        elif isinstance(node, list):
            for each in node:
                walk(each)

    walk(document)
    assert found <= names
