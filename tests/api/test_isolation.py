"""Two projects, every route: what is the other's does not exist."""

from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from app.auth import create_key
from app.db.engine import transaction
from app.main import create_app
from tests.thin import Desk, document

pytestmark = pytest.mark.services
_PUBLIC = {"/healthz", "/readyz", "/dashboard/{name}"}  # the page is open, what it shows is asked with a key
_OWN_LISTS = {"/studies", "/traces"}
_SHARED = {"/catalog", "/metrics"}
_TRACE = b'{"timestamp": 0, "input_length": 512, "output_length": 8, "hash_ids": [1]}\n'


def _key(project: str, *scopes: str) -> dict[str, str]:
    with transaction() as db:
        return {"Authorization": f"Bearer {create_key(db, project, '', scopes)[1]}"}


def _routes() -> list[tuple[str, str]]:
    found = []
    pending: list[Any] = [create_app()]
    while pending:
        for route in pending.pop().routes:
            if isinstance(route, APIRoute):
                found += [(method, route.path) for method in sorted(route.methods)]
            elif hasattr(route, "original_router"):
                pending.append(route.original_router)
    return found


class Possessions:
    """A study with results and a trace of project `ours`."""

    def __init__(self, client: httpx.Client, desk: Desk) -> None:
        self.key = _key("ours", "submit")
        self.study = client.post("/studies", json=document(), headers=self.key).json()["id"]
        desk.work()
        page = client.get(f"/studies/{self.study}/candidates", headers=self.key).json()
        self.candidate = page["items"][0]["id"]
        self.trace = client.post("/traces", content=_TRACE, headers=self.key, params={"name": "ours"}).json()["id"]

    def fill(self, path: str) -> str:
        """A route's path with our ids."""
        names = {"study_id": self.study, "candidate_id": self.candidate, "trace_id": self.trace}
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", value)
        return path


def test_walk_reaches_every_documented_route() -> None:
    documented = {(method.upper(), path) for path, item in create_app().openapi()["paths"].items() for method in item}
    assert documented <= set(_routes())
    assert len(documented) >= 15


def test_no_route_answers_without_a_key_once_there_is_one(client: httpx.Client, desk: Desk) -> None:
    ours = Possessions(client, desk)
    for method, path in _routes():
        if path in _PUBLIC or ("{" not in path and path not in _OWN_LISTS | _SHARED):
            continue
        answer = client.request(method, ours.fill(path), params={"baseline": ours.study})
        assert answer.status_code == 401, f"{method} {path}"


def test_no_route_tells_another_project_that_a_thing_exists(client: httpx.Client, desk: Desk) -> None:
    ours, theirs = Possessions(client, desk), _key("theirs", "submit")
    for method, path in _routes():
        if "{" not in path:
            continue
        existing = client.request(method, ours.fill(path), headers=theirs, params={"baseline": ours.study})
        assert existing.status_code == 404, f"{method} {path}: {existing.status_code}"
        assert ours.study not in existing.text
    for path in sorted(_OWN_LISTS):
        assert client.get(path, headers=theirs).json()["items"] == []
    body = document()
    body["workload"] = {"trace_path": "ours"}
    assert client.post("/studies", json=body, headers=theirs).status_code == 422
    assert client.get(f"/studies/{ours.study}", headers=ours.key).json()["status"] == "succeeded"
    assert client.get(f"/traces/{ours.trace}", headers=ours.key).status_code == 200
