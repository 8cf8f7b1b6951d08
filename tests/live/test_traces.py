"""OpenTelemetry traces: a request and all the work that it causes are one trace at the collector."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import REPOSITORY
from tests.live.collector import Collector, SeenSpan
from tests.live.conftest import Service

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
_SMALL = {"isl": 256, "osl": 16, "concurrency": 4, "num_request_ratio": 2}
_ARRIVES_WITHIN_S = 60.0


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    """A client of the running service."""
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=90) as opened:
        yield opened


@pytest.fixture
def study(client: httpx.Client) -> dict[str, Any]:
    """A small study that has ended."""
    document = json.loads((REPOSITORY / "openapi" / "examples" / "concurrency.json").read_text())
    document["workload"] = _SMALL
    document["search_space"]["gpu_budget"] = 2
    ended: dict[str, Any] = client.post("/studies", params={"wait": 60}, json=document).json()
    assert ended["status"] == "succeeded"
    return ended


def _waited(collector: Collector, is_there: Callable[[list[SeenSpan]], bool]) -> list[SeenSpan]:
    """The spans, once what is looked for is among them: spans are sent in batches."""
    deadline = time.monotonic() + _ARRIVES_WITHIN_S
    while not is_there(spans := collector.spans()):
        if time.monotonic() > deadline:
            raise AssertionError(sorted({(span.service, span.name) for span in spans}))
        time.sleep(0.2)
    return spans


def test_a_study_is_one_trace_from_the_request_to_every_trial(study: dict[str, Any], collector: Collector) -> None:
    num_trials = study["progress"]["trials_total"]

    def trials(spans: list[SeenSpan]) -> list[SeenSpan]:
        return [each for each in spans if each.name == "trial" and each.attributes["spica.study_id"] == study["id"]]

    def is_complete(spans: list[SeenSpan]) -> bool:
        seen = trials(spans)
        names = {each.name for each in spans if seen and each.trace_id == seen[0].trace_id}
        return len(seen) >= num_trials and "POST /studies" in names

    spans = _waited(collector, is_complete)
    seen = trials(spans)
    assert sorted(each.attributes["spica.trial"] for each in seen) == list(range(num_trials))
    (trace_id,) = {each.trace_id for each in seen}
    ours = [each for each in spans if each.trace_id == trace_id]
    (request,) = [each for each in ours if each.parent_id == ""]
    assert (request.service, request.name) == ("spica-api", "POST /studies")
    assert request.attributes["http.response.status_code"] == 202
    by_id = {each.span_id: each for each in ours}
    assert {by_id[each.parent_id].name for each in seen} == {"run_trials"}
    assert {each.service for each in seen} == {"spica-worker"}
    assert all(each.seconds >= 0 for each in ours)


def test_a_poll_that_is_answered_early_is_named_by_its_route(
    client: httpx.Client, study: dict[str, Any], collector: Collector
) -> None:
    path = f"/studies/{study['id']}/candidates"
    tag = client.get(path).headers["etag"]
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"if-none-match": tag, "traceparent": parent}
    assert client.get(path, headers=headers).status_code == 304

    def mine(spans: list[SeenSpan]) -> list[SeenSpan]:
        return [each for each in spans if each.trace_id == parent.split("-")[1]]

    (span,) = mine(_waited(collector, lambda spans: bool(mine(spans))))
    assert span.name == "GET /studies/{study_id}/candidates"
    assert span.parent_id == parent.split("-")[2]
    assert span.attributes["http.response.status_code"] == 304


def test_no_span_holds_a_key_or_a_body(service: Service, client: httpx.Client, collector: Collector) -> None:
    client.get("/studies")
    spans = _waited(collector, lambda spans: any(each.name == "GET /studies" for each in spans))
    secret = service.key.rpartition("_")[2]
    assert not [each for each in spans if secret in str(each.attributes)]
    assert not [each for each in spans if "search_space" in str(each.attributes)]
