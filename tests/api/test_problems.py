"""Every refusal is a problem document, whatever refuses."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.db.engine import transaction
from app.schemas.problem import Problem
from tests.thin import Desk, document, submit

pytestmark = pytest.mark.services


def _problem(answer: httpx.Response, status: int) -> Problem:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(answer.content)
    assert problem.status == status
    return problem


def test_unknown_path_is_a_404_problem(client: httpx.Client) -> None:
    _problem(client.get("/nonesuch"), 404)


def test_wrong_method_is_a_405_problem_that_names_the_right_ones(client: httpx.Client) -> None:
    for path, methods in (("/studies", "GET, POST"), ("/traces/x", "DELETE, GET"), ("/studies/x/cancel", "POST")):
        answer = client.put(path)
        _problem(answer, 405)
        assert answer.headers["allow"] == methods


@pytest.mark.parametrize("moment", ["0.5", "1700000000", "yesterday", "2026-13-01"])
def test_moment_that_is_none_is_a_422_problem(client: httpx.Client, moment: str) -> None:
    problem = _problem(client.get("/studies", params={"created_after": moment}), 422)
    assert problem.errors is not None
    assert problem.errors[0].pointer == "created_after"


@pytest.mark.parametrize("query", [{"wait": -1}, {"wait": 61}, {"wait": "nan"}, {"wait": "x"}, {"version": -1}])
def test_faulty_query_is_a_422_problem(client: httpx.Client, query: dict[str, Any]) -> None:
    problem = _problem(client.get(f"/studies/{submit()}", params=query), 422)
    assert problem.errors is not None
    assert problem.errors[0].pointer == next(iter(query))


@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [
        (b"{", "application/json", 422),
        (b"a: [", "application/yaml", 422),
        (b"\xff", "application/json", 422),
        (b"[]", "application/json", 422),
        (b"", "application/json", 422),
        (b"<x/>", "application/xml", 415),
        (b"{" + b" " * (1 << 20), "application/json", 413),
    ],
)
def test_unreadable_body_is_a_problem(client: httpx.Client, content: bytes, media_type: str, status: int) -> None:
    _problem(client.post("/studies", content=content, headers={"content-type": media_type}), status)


def test_slow_body_is_cut_off_with_408(client: httpx.Client, setting: Any) -> None:
    setting("body_timeout_s", 0.2)
    pause = threading.Event()

    def slowly() -> Any:
        yield b"{"
        pause.wait(2)
        yield b"}"

    answer = client.post("/studies", content=slowly(), headers={"content-type": "application/json"})
    pause.set()
    _problem(answer, 408)


@pytest.mark.parametrize("name", ["\u0000", "a\u0000b"])
def test_text_that_cannot_be_stored_is_no_server_error(client: httpx.Client, name: str) -> None:
    answer = client.post("/studies", json={**document(), "name": name})
    _problem(answer, 422)
    assert client.get("/studies", params={"label": name}).status_code in (200, 422)


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "nonesuch", "sha256:00", "tests/conftest.py"])
def test_trace_path_that_names_no_trace_is_refused_in_one_way(client: httpx.Client, path: str) -> None:
    body = {**document(), "workload": {"trace_path": path}}
    problem = _problem(client.post("/studies", json=body), 422)
    assert problem.errors is not None
    assert (problem.errors[0].pointer, problem.errors[0].fault) == (
        "/workload/trace_path",
        "names no trace of this service",
    )


def test_database_away_is_a_503_problem_with_retry_after(client: httpx.Client, monkeypatch: Any) -> None:
    def away(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("connection refused at 10.0.0.1"))

    monkeypatch.setattr("app.routes.deps.transaction", away)
    answer = client.get("/studies")
    problem = _problem(answer, 503)
    assert answer.headers["retry-after"] == "2"
    assert "10.0.0.1" not in problem.detail


@pytest.fixture
def refusal(desk: Desk) -> Iterator[Callable[[str], None]]:
    """Make Postgres refuse every new study, for a condition by its name in Postgres's manual."""
    with transaction() as db:
        db.execute(text("DROP TRIGGER IF EXISTS refuse ON studies"))

    def refuse(condition: str) -> None:
        with transaction() as db:
            db.execute(
                text(
                    "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                    f"$$ BEGIN RAISE EXCEPTION 'no space in /var/lib/secret' USING ERRCODE = '{condition}'; END $$"
                )
            )
            db.execute(text("CREATE TRIGGER refuse BEFORE INSERT ON studies EXECUTE FUNCTION refuse()"))

    yield refuse
    with transaction() as db:
        db.execute(text("DROP TRIGGER IF EXISTS refuse ON studies"))
        db.execute(text("DROP FUNCTION IF EXISTS refuse()"))


def test_database_without_room_is_507_and_says_who_can_help(
    client: httpx.Client, refusal: Callable[[str], None]
) -> None:
    refusal("disk_full")
    problem = _problem(client.post("/studies", json=document()), 507)
    assert problem.type == "urn:spica:problem:disk-full"
    assert "operator" in problem.detail
    assert "secret" not in problem.detail
    assert client.get("/studies").json()["items"] == []


def test_database_that_only_reads_for_now_is_503(client: httpx.Client, refusal: Callable[[str], None]) -> None:
    refusal("read_only_sql_transaction")
    _problem(client.post("/studies", json=document()), 503)
    assert client.get("/studies").status_code == 200


def test_unforeseen_error_is_a_500_problem_without_internals(client: httpx.Client, monkeypatch: Any) -> None:
    def broken(*_: object) -> None:
        raise KeyError("/secret")

    monkeypatch.setattr("app.studies.list_studies", broken)
    answer = client.get("/studies")
    _problem(answer, 500)
    assert "secret" not in answer.text
