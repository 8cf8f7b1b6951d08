"""Every limit of the service is a setting, and what goes beyond it is refused with the limit's name."""

import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from app.auth import create_key
from app.db.engine import transaction
from tests.thin import document

pytestmark = pytest.mark.services
Setting = Callable[[str, object], None]


def _refusal(client: httpx.Client, status: int, **request: Any) -> dict[str, Any]:
    answer = client.post("/studies", **request)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return dict(answer.json())


def test_configuration_document_over_its_size_is_413(client: httpx.Client, setting: Setting) -> None:
    setting("max_config_bytes", 500)
    assert (
        "500 bytes" in _refusal(client, 413, content=b" " * 501, headers={"content-type": "application/json"})["detail"]
    )
    assert "500 bytes" in _refusal(client, 413, files={"config": ("c.json", b" " * 501)})["detail"]


@pytest.mark.parametrize(
    ("name", "limit", "change", "pointer"),
    [
        ("max_trials", 9, {"sweep": {"max_trials": 10}}, "/sweep/max_trials"),
        ("max_gpus", 31, {}, "/search_space/gpu_budget"),
        ("max_replay_requests", 639, {}, "/workload/num_request_ratio"),
        ("max_study_s", 0.001, {}, ""),
    ],
)
def test_study_beyond_a_limit_is_422_at_the_field_and_names_the_limit(
    client: httpx.Client, setting: Setting, name: str, limit: float, change: dict[str, Any], pointer: str
) -> None:
    assert client.post("/studies", json=document(**change)).status_code == 202
    setting(name, limit)
    refused = _refusal(client, 422, json=document(**change))
    assert [fault["pointer"] for fault in refused["errors"]] == [pointer]
    assert f"the limit is {limit:g}" in refused["errors"][0]["fault"] or pointer == ""


def test_study_too_large_to_finish_is_refused_with_its_estimate(client: httpx.Client, setting: Setting) -> None:
    setting("max_study_s", 60)
    setting("max_trials", 1_000_000)
    assert client.post("/studies", json=document(trials=50, trial_ms=1000)).status_code == 202
    refused = _refusal(client, 422, json=document(trials=70, trial_ms=1000))
    assert "about 70 s of computing; the limit is 60 s" in refused["errors"][0]["fault"]
    assert client.post("/studies?dry_run=true", json=document(trials=70, trial_ms=1000)).status_code == 200


def test_wait_beyond_its_limit_is_refused(client: httpx.Client, setting: Setting) -> None:
    created = client.post("/studies", json=document()).json()["id"]
    setting("max_wait_s", 5)
    assert client.get(f"/studies/{created}?wait=6").json()["errors"][0]["pointer"] == "wait"
    assert _refusal(client, 422, json=document(), params={"wait": 6})["errors"][0]["pointer"] == "wait"
    assert client.get(f"/studies/{created}?wait=61").status_code == 422


def test_open_studies_are_counted_per_key(client: httpx.Client, setting: Setting) -> None:
    setting("max_open_studies", 2)
    with transaction() as db:
        first, second = ({"Authorization": f"Bearer {create_key(db, 'a', '', ['submit'])[1]}"} for _ in range(2))
    for _ in range(2):
        assert client.post("/studies", json=document(), headers=first).status_code == 202
    refused = client.post("/studies", json=document(), headers=first)
    assert (refused.status_code, refused.json()["limit"]) == (429, 2)
    assert int(refused.headers["retry-after"]) > 0
    assert client.post("/studies", json=document(), headers=second).status_code == 202


def test_body_that_never_ends_is_cut_off(client: httpx.Client, address: str, setting: Setting) -> None:
    setting("body_timeout_s", 0.3)
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(
            b"POST /studies HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_endless_body_is_refused_after_its_limit(client: httpx.Client, setting: Setting) -> None:
    setting("max_config_bytes", 1000)

    def endless() -> Any:
        for _ in range(10_000):
            yield b" " * 1000

    try:
        answer = client.post("/studies", content=endless(), headers={"content-type": "application/json"})
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        return  # The service closed the connection while we were still sending: cut off as well.
    assert answer.status_code == 413
