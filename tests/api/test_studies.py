"""/studies: submitting, reading, listing, cancelling, deleting."""

import json
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from httpx import Client

from app.schemas.study_view import StudyPage, StudyView, TrialPage
from tests.thin import Desk, document, execute

pytestmark = pytest.mark.services


def _post(client: Client, body: dict[str, Any] | None = None, **options: Any) -> Any:
    return client.post("/studies", json=body or document(), **options)


def test_submission_is_accepted_with_its_location_and_sent_to_a_worker(client: Client, desk: Desk) -> None:
    answer = _post(client)
    assert answer.status_code == 202
    study = StudyView.model_validate_json(answer.content)
    assert (study.status, study.version) == ("queued", 1)
    assert study.id.version == 7
    assert answer.headers["location"] == f"/studies/{study.id}"
    assert answer.headers["retry-after"] == "1"
    assert desk.messages == [("spica.advance_study", [str(study.id)])]


@pytest.mark.parametrize("media_type", ["application/yaml", "text/yaml", "application/x-yaml"])
def test_yaml_is_the_same_document(client: Client, media_type: str) -> None:
    text = yaml.safe_dump(document())
    answer = client.post("/studies", content=text, headers={"content-type": media_type})
    assert answer.status_code == 202
    assert answer.json()["provenance"]["config_sha256"] == _post(client).json()["provenance"]["config_sha256"]


def test_resolved_configuration_has_the_defaults_filled_in(client: Client) -> None:
    assert _post(client).json()["config"]["sweep"]["parallel_evals"] == 16


def test_every_fault_is_named_with_its_pointer(client: Client) -> None:
    body = document()
    body["workload"]["isl"] = -1
    body["goal"]["target"] = "speed"
    answer = _post(client, body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"/workload/isl", "/goal/target"} <= {fault["pointer"] for fault in answer.json()["errors"]}


def test_dry_run_answers_the_plan_and_stores_nothing(client: Client) -> None:
    answer = _post(client, document(trials=7), params={"dry_run": True})
    assert answer.status_code == 200
    assert answer.json()["combinations"] == 7
    assert client.get("/studies").json()["items"] == []


def test_broker_away_still_accepts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.queue._send", lambda *_: False)
    assert _post(client).status_code == 202


def test_wait_answers_when_the_study_has_ended(client: Client, desk: Desk) -> None:
    def work() -> None:
        while not desk.messages:
            pass
        desk.work()

    worker = threading.Thread(target=work)
    worker.start()
    answer = _post(client, params={"wait": 30})
    worker.join()
    assert answer.status_code == 202
    assert answer.json()["status"] == "succeeded"
    assert "retry-after" not in answer.headers


def test_long_poll_answers_as_soon_as_the_version_has_passed(client: Client, desk: Desk) -> None:
    study = _post(client).json()
    worker = threading.Timer(0.3, desk.work)
    worker.start()
    answer = client.get(f"/studies/{study['id']}", params={"wait": 30, "version": study["version"]})
    worker.join()
    assert answer.json()["version"] > study["version"]


def test_study_in_full_follows_its_model(client: Client, desk: Desk) -> None:
    study_id = _post(client, document(trials=20, team="infra")).json()["id"]
    desk.work()
    answer = client.get(f"/studies/{study_id}")
    study = StudyView.model_validate_json(answer.content)
    assert study.status == "succeeded"
    assert study.progress.model_dump() | {"per_second": None} == {
        "trials_total": 20, "done": 20, "feasible": 16, "infeasible": 4, "unsupported": 0, "failed": 0,
        "timed_out": 0, "cancelled": 0, "cached": 0, "per_second": None, "eta_s": 0.0, "fraction": 1.0,
    }  # fmt: skip
    assert study.best is not None
    assert answer.json()["created_at"].endswith("Z")


def test_study_unchanged_is_304(client: Client, desk: Desk) -> None:
    study_id = _post(client).json()["id"]
    first = client.get(f"/studies/{study_id}")
    again = client.get(f"/studies/{study_id}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    desk.work()
    assert client.get(f"/studies/{study_id}", headers={"if-none-match": first.headers["etag"]}).status_code == 200


@pytest.mark.parametrize(
    "path", ["", "/plan", "/trials", "/candidates", "/events", "/candidates/00000000-0000-7000-8000-000000000001"]
)
def test_unknown_study_is_404_everywhere(client: Client, path: str) -> None:
    for name in (str(uuid4()), "not-an-id"):
        answer = client.get(f"/studies/{name}{path}")
        assert answer.status_code == 404
        assert answer.json()["type"] == "urn:spica:problem:not-found"


def test_list_is_newest_first_and_pages_through_everything_once(client: Client) -> None:
    made = [_post(client).json()["id"] for _ in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = client.get("/studies", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))
        StudyPage.model_validate_json(page.content)
        seen += [study["id"] for study in page.json()["items"]]
        if not seen[3:]:
            _post(client)
        cursor = page.json()["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


def test_list_filters(client: Client, desk: Desk) -> None:
    labelled = _post(client, document(team="infra", trials=5)).json()["id"]
    desk.work()
    _post(client)

    def ids(**query: str) -> list[str]:
        return [study["id"] for study in client.get("/studies", params=query).json()["items"]]

    assert ids(status="succeeded") == [labelled]
    assert ids(label="team") == ids(label="team=infra") == [labelled]
    assert ids(label="team=other") == []
    assert len(ids(model_name="Qwen/Qwen3-32B-FP8")) == 2
    assert ids(model_name="other") == []
    assert ids(created_after="2999-01-01T00:00:00Z") == []
    assert client.get("/studies", params={"status": "done"}).status_code == 422


def test_cancel_of_a_queued_study_ends_it_at_once_and_may_be_repeated(client: Client) -> None:
    study_id = _post(client).json()["id"]
    for _ in range(2):
        answer = client.post(f"/studies/{study_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")


def test_cancel_of_an_ended_study_is_409(client: Client, desk: Desk) -> None:
    study_id = _post(client).json()["id"]
    desk.work()
    assert client.post(f"/studies/{study_id}/cancel").status_code == 409


def test_delete_is_409_while_it_runs_and_takes_everything_with_it_later(client: Client, desk: Desk) -> None:
    study_id = _post(client).json()["id"]
    assert client.delete(f"/studies/{study_id}").status_code == 409
    desk.work()
    assert client.delete(f"/studies/{study_id}").status_code == 204
    assert client.get(f"/studies/{study_id}").status_code == 404
    assert client.delete(f"/studies/{study_id}").status_code == 404


def test_plan_is_409_before_planning_and_there_after(client: Client, desk: Desk) -> None:
    study_id = _post(client, document(trials=5)).json()["id"]
    assert client.get(f"/studies/{study_id}/plan").status_code == 409
    desk.work()
    assert client.get(f"/studies/{study_id}/plan").json()["combinations"] == 5


def test_trials_give_every_ask_with_its_reason(client: Client, desk: Desk) -> None:
    study_id = _post(client, document(trials=12)).json()["id"]
    desk.work()
    first = client.get(f"/studies/{study_id}/trials", params={"limit": 8})
    TrialPage.model_validate_json(first.content)
    rest = client.get(f"/studies/{study_id}/trials", params={"cursor": first.json()["next_cursor"]}).json()
    every = first.json()["items"] + rest["items"]
    assert [trial["number"] for trial in every] == list(range(12))
    assert every[5]["reason"] == {"code": "no_kv_budget", "detail": "no room"}
    assert every[1]["reason"] is None
    infeasible = client.get(f"/studies/{study_id}/trials", params={"status": "infeasible"}).json()["items"]
    assert [trial["number"] for trial in infeasible] == [0, 5, 10]


def test_quota_of_open_studies_is_429(client: Client, setting: Any) -> None:
    setting("max_open_studies", 2)
    assert [_post(client).status_code for _ in range(3)] == [202, 202, 429]


def test_reuse_answers_the_earlier_study(client: Client, desk: Desk) -> None:
    first = _post(client).json()["id"]
    again = _post(client, params={"reuse": True})
    assert (again.status_code, again.json()["id"]) == (200, first)
    assert _post(client).json()["id"] != first


class TestIdempotencyKey:
    """One key, one study."""

    KEY = {"Idempotency-Key": "build-17"}  # noqa: RUF012

    def test_repeat_gives_the_first_study(self, client: Client) -> None:
        first, again = _post(client, headers=self.KEY), _post(client, headers=self.KEY)
        assert (first.status_code, again.status_code) == (202, 200)
        assert first.json()["id"] == again.json()["id"]
        assert again.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.headers

    def test_repeat_as_yaml_is_the_same_body(self, client: Client) -> None:
        first = _post(client, headers=self.KEY)
        headers = {**self.KEY, "content-type": "application/yaml"}
        again = client.post("/studies", content=yaml.safe_dump(document()), headers=headers)
        assert again.json()["id"] == first.json()["id"]

    def test_other_body_is_409(self, client: Client) -> None:
        _post(client, headers=self.KEY)
        answer = _post(client, document(trials=3), headers=self.KEY)
        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:spica:problem:idempotency-key-reused"

    def test_twenty_at_once_give_one_study(self, client: Client) -> None:
        answers: list[Any] = []
        threads = [threading.Thread(target=lambda: answers.append(_post(client, headers=self.KEY))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]
        assert len(client.get("/studies").json()["items"]) == 1

    def test_key_expires_after_a_day(self, client: Client) -> None:
        first = _post(client, headers=self.KEY).json()["id"]
        execute("UPDATE idempotency_keys SET created_at = now() - interval '25 h'")
        again = _post(client, document(trials=3), headers=self.KEY)
        assert again.status_code == 202
        assert again.json()["id"] != first
        assert _post(client, document(trials=3), headers=self.KEY).json()["id"] == again.json()["id"]


def test_ids_are_ordered_by_time(client: Client) -> None:
    made = [UUID(_post(client).json()["id"]) for _ in range(5)]
    assert made == sorted(made)


def test_numbers_in_bodies_are_finite_or_null(client: Client, desk: Desk) -> None:
    study_id = _post(client, document(trials=8)).json()["id"]
    desk.work()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for path in ("", "/candidates", "/trials", "/plan"):
        json.loads(client.get(f"/studies/{study_id}{path}").content, parse_constant=refuse)
