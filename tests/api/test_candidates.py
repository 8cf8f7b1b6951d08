"""/studies/{id}/candidates: order, pages, formats, entity tags; the report; comparisons."""

import csv
import io
import json
from typing import Any
from uuid import UUID

import pytest
from httpx import Client

from app.schemas.candidate import CandidatePage, CandidateView
from app.schemas.report import Report
from app.schemas.study_view import Comparison
from tests.thin import Desk, candidates, execute, submit

pytestmark = pytest.mark.services


def _ended(desk: Desk, **labels: object) -> str:
    return str(desk.run(submit(**labels)).id)


def _all_pages(client: Client, path: str, **query: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:
        page = client.get(path, params=query).json()
        rows += page["items"]
        if page["next_cursor"] is None:
            return rows
        query["cursor"] = page["next_cursor"]


def test_ranking_is_best_first(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=40)}/candidates"
    page = CandidatePage.model_validate_json(client.get(path, params={"limit": 500}).content)
    items = [CandidateView.model_validate(item) for item in page.items]
    assert [item.rank for item in items] == list(range(1, 33))
    assert [item.score for item in items] == sorted((item.score for item in items), reverse=True)
    assert items[0].objectives == {"throughput": items[0].score}


@pytest.mark.parametrize("view", ["ranked", "all", "front"])
def test_pages_give_every_row_once(client: Client, desk: Desk, view: str) -> None:
    study_id = _ended(desk, trials=40, goal={"target": "pareto"})
    path = f"/studies/{study_id}/candidates"
    whole = client.get(path, params={"view": view, "limit": 500}).json()["items"]
    assert _all_pages(client, path, view=view, limit=3) == whole
    best, leaders = float("-inf"), 0
    for row in sorted(candidates(UUID(study_id)), key=lambda row: (-row.objectives[0], -row.objectives[1])):
        leaders += row.objectives[1] > best
        best = max(best, row.objectives[1])
    assert len(whole) == (32 if view == "all" else leaders)
    assert leaders > 2


def test_pareto_ranking_is_the_front_only(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=40, goal={'target': 'pareto'})}/candidates"
    ranked, front = (_all_pages(client, path, view=view) for view in ("ranked", "front"))
    assert ranked == front
    assert all(item["on_front"] for item in front)
    assert [item["rank"] for item in front] == list(range(1, len(front) + 1))


def test_pages_are_stable_while_better_candidates_arrive(client: Client, desk: Desk) -> None:
    study_id = _ended(desk, trials=40)
    path = f"/studies/{study_id}/candidates"
    whole = [item["id"] for item in client.get(path, params={"limit": 500}).json()["items"]]
    first = client.get(path, params={"limit": 10}).json()
    # Three newcomers take places 1, 2 and 15: everybody else moves back.
    execute("UPDATE candidates SET place = place + 2, rank = rank + 2")
    execute("UPDATE candidates SET place = place + 1, rank = rank + 1 WHERE place >= 15")
    rest = _all_pages(client, path, limit=10, cursor=first["next_cursor"])
    assert [item["id"] for item in first["items"]] + [item["id"] for item in rest] == whole


def test_unranked_candidates_are_in_view_all_only(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=10)}/candidates"
    execute("UPDATE candidates SET place = NULL, rank = NULL, on_front = false WHERE number = 1")
    assert len(client.get(path).json()["items"]) == 7
    assert len(client.get(path, params={"view": "all"}).json()["items"]) == 8


def test_unchanged_page_is_304_until_the_ranking_moves(client: Client, desk: Desk) -> None:
    study_id = _ended(desk, trials=10)
    path = f"/studies/{study_id}/candidates"
    tag = client.get(path).headers["etag"]
    assert client.get(path, headers={"if-none-match": tag}).status_code == 304
    assert client.get(path, headers={"if-none-match": f'"x", W/{tag}'}).status_code == 304
    assert client.get(path, params={"limit": 2}, headers={"if-none-match": tag}).status_code == 200
    assert client.get(path, headers={"if-none-match": tag, "accept": "text/csv"}).status_code == 200
    execute("UPDATE studies SET version = version + 1, ranked_version = version + 1")
    assert client.get(path, headers={"if-none-match": tag}).status_code == 200


def test_version_that_counts_trials_leaves_the_ranking_unchanged(client: Client, desk: Desk) -> None:
    study_id = _ended(desk, trials=10)
    one = client.get(f"/studies/{study_id}/candidates").json()["items"][0]["id"]
    parts = {"": 304, "?view=front": 304, "?view=all": 200, "?view=%61ll": 200, f"/{one}": 304}
    tags = {part: client.get(f"/studies/{study_id}/candidates{part}").headers["etag"] for part in parts}
    execute("UPDATE studies SET version = version + 1")
    asked = {
        part: client.get(f"/studies/{study_id}/candidates{part}", headers={"if-none-match": tag}).status_code
        for part, tag in tags.items()
    }
    assert asked == parts


def test_csv_and_ndjson_tell_the_same_as_json(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=10)}/candidates"
    items = client.get(path).json()["items"]
    lines = client.get(path, headers={"accept": "application/x-ndjson"})
    assert [json.loads(line) for line in lines.text.splitlines()] == items
    table = client.get(path, headers={"accept": "text/csv"})
    assert table.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [float(row["score"]) for row in rows] == [item["score"] for item in items]
    assert [row["metrics.mean_ttft_ms"] for row in rows] == [""] * len(items)
    assert rows[0]["deployment.agg.shape.tp"] == str(items[0]["deployment"]["agg"]["shape"]["tp"])


def test_csv_pages_go_on_by_the_link_header(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=10)}/candidates"
    headers = {"accept": "text/csv"}
    first = client.get(path, params={"limit": 5}, headers=headers)
    following = client.get(first.links["next"]["url"], headers=headers)
    ids = [row["id"] for answer in (first, following) for row in csv.DictReader(io.StringIO(answer.text))]
    assert ids == [item["id"] for item in client.get(path).json()["items"]]
    assert "next" not in following.links


def test_accept_header_decides_by_quality(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=4)}/candidates"

    def kind(accept: str) -> str:
        answer = client.get(path, headers={"accept": accept})
        return (
            answer.headers["content-type"].partition(";")[0] if answer.status_code == 200 else str(answer.status_code)
        )

    assert kind("*/*") == "application/json"
    assert kind("text/csv;q=0.5, application/json;q=0.1") == "text/csv"
    assert kind("text/*") == "text/csv"
    assert kind("text/html, */*;q=0.1") == "application/json"
    assert kind("image/png") == "406"


def test_fields_narrow_every_row(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=4)}/candidates"
    items = client.get(path, params={"fields": "rank,metrics.output_throughput_tok_s"}).json()["items"]
    assert all(set(item) == {"rank", "metrics.output_throughput_tok_s"} for item in items)
    answer = client.get(path, params={"fields": "rank,nonsense"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "fields")


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 501}, {"limit": "x"}, {"cursor": "@@"}, {"cursor": "MTIz"}, {"view": "best"}]
)
def test_faulty_query_is_422_and_names_the_parameter(client: Client, desk: Desk, query: dict[str, Any]) -> None:
    answer = client.get(f"/studies/{_ended(desk, trials=4)}/candidates", params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == next(iter(query))


def test_one_candidate_and_its_report(client: Client, desk: Desk) -> None:
    path = f"/studies/{_ended(desk, trials=4)}/candidates"
    item = client.get(path).json()["items"][0]
    one = client.get(f"{path}/{item['id']}")
    assert one.json() == item
    report = client.get(f"{path}/{item['id']}/report")
    assert Report.model_validate_json(report.content).metrics == item["metrics"]
    tag = report.headers["etag"]
    assert client.get(f"{path}/{item['id']}/report", headers={"if-none-match": tag}).status_code == 304


def test_candidate_of_another_study_is_404(client: Client, desk: Desk) -> None:
    mine, other = _ended(desk, trials=4), _ended(desk, trials=4)
    item = client.get(f"/studies/{other}/candidates").json()["items"][0]["id"]
    assert client.get(f"/studies/{mine}/candidates/{item}").status_code == 404
    assert client.get(f"/studies/{mine}/candidates/{item}/report").status_code == 404


class TestCompare:
    """Both winners, metric by metric."""

    def test_equal_studies_are_within_any_tolerance(self, client: Client, desk: Desk) -> None:
        mine, base = _ended(desk, trials=8), _ended(desk, trials=8)
        answer = client.get(f"/studies/{mine}/compare", params={"baseline": base, "tolerance": 0})
        comparison = Comparison.model_validate_json(answer.content)
        assert comparison.within_tolerance is True
        assert comparison.metrics[0].model_dump() | {"value": 0, "baseline": 0} == {
            "metric": "throughput", "is_objective": True, "value": 0, "baseline": 0, "ratio": 1.0, "verdict": "equal",
        }  # fmt: skip

    def test_loss_beyond_the_tolerance_is_a_422_problem(self, client: Client, desk: Desk) -> None:
        mine, base = _ended(desk, trials=8), _ended(desk, trials=8)
        execute("UPDATE candidates SET objectives = ARRAY[objectives[1] * 0.9] WHERE study_id = :id", id=mine)
        path = f"/studies/{mine}/compare"
        assert client.get(path, params={"baseline": base, "tolerance": 0.2}).status_code == 200
        assert client.get(path, params={"baseline": base}).json()["metrics"][0]["verdict"] == "worse"
        answer = client.get(path, params={"baseline": base, "tolerance": 0.02})
        assert answer.status_code == 422
        assert answer.json()["type"] == "urn:spica:problem:regression"
        assert answer.json()["comparison"]["within_tolerance"] is False

    def test_gain_is_never_a_regression(self, client: Client, desk: Desk) -> None:
        mine, base = _ended(desk, trials=8), _ended(desk, trials=8)
        execute("UPDATE candidates SET objectives = ARRAY[objectives[1] * 1.5] WHERE study_id = :id", id=mine)
        answer = client.get(f"/studies/{mine}/compare", params={"baseline": base, "tolerance": 0})
        assert (answer.status_code, answer.json()["metrics"][0]["verdict"]) == (200, "better")

    def test_study_without_a_winner_is_409(self, client: Client, desk: Desk) -> None:
        answer = client.get(f"/studies/{submit()}/compare", params={"baseline": _ended(desk, trials=4)})
        assert answer.status_code == 409
