"""Polls answered before routing say what the routes say."""

from typing import Any

import pytest
from httpx import Client

from tests.thin import Desk, execute, submit

pytestmark = pytest.mark.services


def _ended(desk: Desk, **labels: object) -> str:
    return str(desk.run(submit(**labels)).id)


def _paths(client: Client, study_id: str) -> list[str]:
    first = client.get(f"/studies/{study_id}/candidates").json()["items"][0]["id"]
    parts = ("", "/candidates", "/candidates?limit=2&view=all", f"/candidates/{first}", "/trials")
    return [f"/studies/{study_id}{part}" for part in parts]


def _without_date(answer: Any) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name != "date"}


def test_repeated_answer_equals_the_first_one(client: Client, desk: Desk) -> None:
    for path in _paths(client, _ended(desk, trials=10)):
        first, again = client.get(path), client.get(path)
        assert (again.status_code, again.content) == (200, first.content)
        assert _without_date(again) == _without_date(first)
        unchanged = client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        assert unchanged.headers["etag"] == first.headers["etag"]


def test_repeated_answer_follows_the_study(client: Client, desk: Desk) -> None:
    study_id = _ended(desk, trials=10)
    path = f"/studies/{study_id}/candidates"
    version = client.get(path).json()["version"]
    execute("UPDATE studies SET version = version + 1, ranked_version = version + 1")
    assert client.get(path).json()["version"] > version
    client.delete(f"/studies/{study_id}")
    assert client.get(path).status_code == 404


def test_formats_of_one_address_are_kept_apart(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=10)}/candidates"
    for _ in range(2):
        for kind in ("application/json", "text/csv", "application/x-ndjson"):
            assert client.get(path, headers={"accept": kind}).headers["content-type"].startswith(kind)


def test_metrics_know_the_route(client: Client, desk: Desk) -> None:
    for path in _paths(client, _ended(desk, trials=10)):
        client.get(path)
    metrics = client.get("/metrics").text
    for route in ("", "/candidates", "/candidates/{candidate_id}", "/trials"):
        assert (
            f'spica_request_seconds_count{{method="GET",route="/studies/{{study_id}}{route}",status="200"}}' in metrics
        )
