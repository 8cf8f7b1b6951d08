"""The client class against the OpenAPI document, and its manners when the service is away or refuses."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.client import api
from app.client.api import Client, LateError, RefusedError, UnreachableError
from app.schemas.status import StudyStatus, TrialStatus

OPENAPI = json.loads((Path(__file__).parents[3] / "openapi" / "openapi.json").read_text())
STUDY, OTHER = UUID("0198c0de-0000-7000-8000-000000000001"), UUID("0198c0de-0000-7000-8000-000000000002")
CALLS: dict[str, dict[str, Any]] = {
    "submit": {"config": b"{}", "wait": 1, "reuse": True, "idempotency_key": "k"},
    "plan_of": {"config": b"a: 1", "media_type": "application/yaml"},
    "studies": {
        "status": StudyStatus.FAILED,
        "label": "team=a",
        "model_name": "m",
        "limit": 5,
        "cursor": "c",
    },
    "study": {"study_id": STUDY, "wait": 1, "version": 3},
    "cancel": {"study_id": STUDY},
    "delete": {"study_id": STUDY},
    "plan": {"study_id": STUDY},
    "trials": {"study_id": STUDY, "status": TrialStatus.FAILED, "limit": 5, "cursor": "c"},
    "candidates": {"study_id": STUDY, "view": "front", "limit": 5, "cursor": "c"},
    "candidates_csv": {"study_id": STUDY, "view": "all", "fields": "rank"},
    "candidate": {"study_id": STUDY, "candidate_id": OTHER},
    "report": {"study_id": STUDY, "candidate_id": OTHER},
    "deployment": {"study_id": STUDY, "candidate_id": OTHER, "format": "vllm"},
    "compare": {"study_id": STUDY, "baseline": OTHER, "tolerance": 0.1},
    "upload_trace": {
        "rows": Path(__file__),
        "name": "monday",
        "format": "azure",
        "time_unit": "s",
        "block_size": 16,
    },
    "traces": {"name": "monday", "limit": 5, "cursor": "c"},
    "trace": {"trace_id": OTHER},
    "delete_trace": {"trace_id": OTHER},
    "catalog": {},
}
OPERATIONS = [
    name for name, member in inspect.getmembers(Client, inspect.isfunction) if name[0] != "_" and name != "follow"
]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PAUSE_S", 0.0)


def client(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://service.test", "spica_key", transport=httpx.MockTransport(answer))


def requests_of(method: str, /, **arguments: Any) -> list[httpx.Request]:
    """What a method sends; its answer is of no interest."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(400, json={"type": "t", "title": "t", "detail": "d"})

    def call(calling: Client) -> None:
        result = getattr(calling, method)(**arguments)
        if isinstance(result, Iterator):
            list(result)

    with client(answer) as calling, pytest.raises(RefusedError):
        call(calling)
    return seen


def operation_of(request: httpx.Request) -> dict[str, Any]:
    """The operation of the OpenAPI document that a request means; most literal path first."""
    for path in sorted(OPENAPI["paths"], key=lambda each: each.count("{")):
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), request.url.path):
            found: dict[str, Any] = OPENAPI["paths"][path][request.method.lower()]
            return found
    raise AssertionError(f"no such path: {request.url.path}")


def test_every_method_is_called_here_with_all_its_arguments() -> None:
    assert sorted(CALLS) == sorted(OPERATIONS)
    for name, arguments in CALLS.items():
        known = set(inspect.signature(getattr(Client, name)).parameters) - {"self", "trace", "media_type"}
        assert known == arguments.keys() - {"media_type"}, name


@pytest.mark.parametrize("name", OPERATIONS)
def test_path_and_parameters_of_a_method_exist(name: str) -> None:
    for request in requests_of(name, **CALLS[name]):
        operation = operation_of(request)
        parameters = operation.get("parameters", [])
        queries = {each["name"] for each in parameters if each["in"] == "query"}
        assert set(request.url.params) <= queries
        if "idempotency-key" in request.headers:
            assert "idempotency-key" in {each["name"] for each in parameters if each["in"] == "header"}
        if request.content:
            assert request.headers["content-type"].partition(";")[0] in operation["requestBody"]["content"]


def _as_sent(value: Any) -> str:
    if isinstance(value, Path):
        return value.read_text()
    return value.decode() if isinstance(value, bytes) else str(value).lower() if value is True else str(value)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_argument_of_a_method_is_sent(name: str) -> None:
    (request,) = requests_of(name, **CALLS[name])
    sent = f"{request.url} {request.headers.get('idempotency-key')} {request.content.decode()}"
    for value in CALLS[name].values():
        text = _as_sent(value)
        assert text.replace("=", "%3D") in sent or text in sent or text == request.headers["content-type"]


def test_key_is_sent_as_a_bearer() -> None:
    (request,) = requests_of("catalog")
    assert request.headers["authorization"] == "Bearer spica_key"


def test_trace_goes_beside_the_configuration(tmp_path: Path) -> None:
    trace = tmp_path / "rows.jsonl"
    trace.write_text('{"timestamp": 0}\n')
    (request,) = requests_of("submit", config=b"{}", trace=trace)
    assert request.headers["content-type"].startswith("multipart/form-data")
    for part in (b'name="config"', b'name="trace"; filename="rows.jsonl"', b'{"timestamp": 0}'):
        assert part in request.content


def test_refusal_carries_status_and_every_fault() -> None:
    faults = [{"pointer": "/goal", "value": 1, "fault": "is wrong", "remedy": "make it right"}]
    document = {"type": "t", "title": "No", "detail": "not so", "status": 422, "errors": faults}
    with client(lambda _: httpx.Response(422, json=document)) as calling, pytest.raises(RefusedError) as refused:
        calling.study(STUDY)
    assert refused.value.status == 422
    assert list(refused.value.lines()) == ["No: not so", "  /goal: is wrong; make it right"]


def test_refusal_by_something_in_between_is_told_as_it_is() -> None:
    with (
        client(lambda _: httpx.Response(404, text="<html>lost</html>")) as calling,
        pytest.raises(RefusedError, match="HTTP 404: <html>lost"),
    ):
        calling.study(STUDY)


@pytest.mark.parametrize("broken", [httpx.ConnectError("gone"), httpx.ReadTimeout("late"), 503, 500])
def test_service_that_comes_back_is_asked_again_with_the_same_key(broken: Any) -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) < 3:
            if isinstance(broken, int):
                return httpx.Response(broken, json={"type": "t", "title": "t", "detail": "away"})
            raise broken
        return httpx.Response(404, json={"type": "t", "title": "back", "detail": "d"})

    with client(answer) as calling, pytest.raises(RefusedError, match="back"):
        calling.submit(b"{}")
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_service_that_stays_away_is_unreachable() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    with (
        client(answer) as calling,
        pytest.raises(UnreachableError, match=r"GET http://service\.test/catalog: connection"),
    ):
        calling.catalog()


def study_document(version: int, status: str) -> dict[str, Any]:
    counts = (
        "trials_total",
        "done",
        "feasible",
        "infeasible",
        "unsupported",
        "failed",
        "timed_out",
        "cancelled",
        "cached",
    )
    return {
        "id": str(STUDY),
        "version": version,
        "name": None,
        "labels": {},
        "status": status,
        "model_name": "m",
        "created_at": "2026-11-29T00:00:00Z",
        "started_at": None,
        "finished_at": None,
        "cancel_requested": False,
        "progress": {**dict.fromkeys(counts, version), "per_second": None, "eta_s": None, "fraction": None},
        "best": None,
        "problem": None,
        "links": dict.fromkeys(("self", "plan", "candidates", "trials", "events", "cancel"), "/"),
        "config": {},
        "warnings": [],
        "coverage": None,
        "sla": None,
        "provenance": {
            "service_version": "1",
            "simulator_version": "1",
            "perf_data": None,
            "seed": 1,
            "config_sha256": "",
            "trace_sha256": None,
            "repeatable": True,
        },
    }


def test_follow_asks_for_what_is_new_until_the_end() -> None:
    states, asked = iter([(1, "queued"), (4, "running"), (9, "succeeded")]), []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("version"))
        return httpx.Response(200, json=study_document(*next(states)))

    seen: list[str] = []
    with client(answer) as calling:
        ended = calling.follow(STUDY, lambda study: seen.append(study.status))
    assert (ended.version, seen) == (9, ["queued", "running", "succeeded"])
    assert asked == [None, "1", "4"]


def test_follow_gives_up_after_its_time_and_says_that_the_study_goes_on() -> None:
    with (
        client(lambda _: httpx.Response(200, json=study_document(1, "running"))) as calling,
        pytest.raises(LateError, match="still running after 0 s; it goes on"),
    ):
        calling.follow(STUDY, timeout=0)


def test_csv_pages_are_one_table_with_one_header() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["accept"] == "text/csv"
        if "cursor" in request.url.params:
            return httpx.Response(200, text="rank\r\n2\r\n")
        link = f'<{request.url.path}?limit=500&cursor=abc>; rel="next"'
        return httpx.Response(200, text="rank\r\n1\r\n", headers={"link": link})

    with client(answer) as calling:
        assert "".join(calling.candidates_csv(STUDY)) == "rank\r\n1\r\n2\r\n"


def test_command_loads_no_server_and_no_numeric_package() -> None:
    code = "import sys, app.client.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert {"fastapi", "sqlalchemy", "celery", "redis", "numpy", "numba"}.isdisjoint(done.stdout.split())
