"""Who may call: loopback without keys, scopes, projects; nothing about other projects leaks."""

from typing import Any

import httpx
import pytest

from app import keys
from app.auth import create_key
from app.db.engine import transaction
from tests.thin import Desk, document

pytestmark = pytest.mark.services


def _key(project: str, *scopes: str) -> dict[str, str]:
    with transaction() as db:
        return {"Authorization": f"Bearer {create_key(db, project, '', scopes)[1]}"}


def test_without_keys_only_this_machine_is_answered(client: httpx.Client, stranger: httpx.Client) -> None:
    assert client.get("/studies").status_code == 200
    refused = stranger.get("/studies")
    assert refused.status_code == 401
    assert "app.keys create" in refused.json()["detail"]
    assert refused.headers["www-authenticate"] == "Bearer"
    assert stranger.get("/healthz").status_code == 200


def test_with_a_key_anonymous_callers_are_refused_everywhere(client: httpx.Client) -> None:
    key = _key("a", "read")
    assert client.get("/studies").status_code == 401
    assert client.get("/studies", headers=key).status_code == 200


def test_scopes_are_enforced(client: httpx.Client) -> None:
    reader, writer = _key("a", "read"), _key("a", "submit")
    assert client.post("/studies", json=document(), headers=reader).status_code == 403
    created = client.post("/studies", json=document(), headers=writer)
    assert created.status_code == 202
    path = created.headers["location"]
    assert client.get(path, headers=reader).status_code == 200
    assert client.post(f"{path}/cancel", headers=reader).status_code == 403
    assert client.delete(path, headers=reader).status_code == 403


@pytest.mark.parametrize("text", ["Bearer spica_x_y", "Bearer", "Basic spica", "Bearer spica__", "Bearer \u00e9"])
def test_wrong_keys_are_refused_in_one_way(client: httpx.Client, text: str) -> None:
    _key("a", "read")
    answer = client.get("/studies", headers={"Authorization": text.encode("latin-1")})
    assert (answer.status_code, answer.json()["detail"]) == (401, "The API key is not valid.")


def test_revoked_key_is_worthless_at_once(client: httpx.Client) -> None:
    key = _key("a", "read")
    _key("a", "read")
    assert keys.main(["revoke", key["Authorization"].split("_")[1]]) == 0
    assert client.get("/studies", headers=key).status_code == 401


def test_projects_do_not_see_each_other_on_any_route(client: httpx.Client, desk: Desk) -> None:
    ours, theirs, admin = _key("a", "submit"), _key("b", "submit"), _key("c", "admin")
    path = client.post("/studies", json=document(), headers=ours).headers["location"]
    desk.work()
    candidate = client.get(f"{path}/candidates", headers=ours).json()["items"][0]["id"]
    mine = client.post("/studies", json=document(), headers=theirs).headers["location"]
    desk.work()
    calls = [
        ("GET", path), ("GET", f"{path}/plan"), ("GET", f"{path}/trials"), ("GET", f"{path}/candidates"),
        ("GET", f"{path}/candidates/{candidate}"), ("GET", f"{path}/candidates/{candidate}/report"),
        ("GET", f"{path}/events"), ("POST", f"{path}/cancel"), ("DELETE", path),
        ("GET", f"{mine}/compare?baseline={path.rpartition('/')[2]}"),
        ("GET", f"{mine}/candidates/{candidate}"), ("GET", f"{mine}/candidates/{candidate}/report"),
    ]  # fmt: skip
    for method, url in calls:
        answer = client.request(method, url, headers=theirs)
        assert (answer.status_code, answer.json()["title"]) == (404, "Not found"), url
    assert [f"/studies/{each['id']}" for each in client.get("/studies", headers=theirs).json()["items"]] == [mine]
    assert len(client.get("/studies", headers=admin).json()["items"]) == 2


def test_idempotency_keys_of_two_projects_are_apart(client: httpx.Client) -> None:
    answers = [
        client.post("/studies", json=document(), headers={**_key(project, "submit"), "Idempotency-Key": "k"})
        for project in ("a", "b")
    ]
    assert [answer.status_code for answer in answers] == [202, 202]


def test_command_shows_a_key_once_and_lists_it_without_its_secret(desk: Desk, capsys: Any) -> None:
    assert keys.main(["create", "--project", "ci", "--scope", "submit", "--name", "build robot"]) == 0
    secret = capsys.readouterr().out.strip()
    assert keys.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "ci" in listed
    assert "build robot" in listed
    assert secret.rpartition("_")[2] not in listed
    assert keys.main(["revoke", "nonesuch"]) == 1
