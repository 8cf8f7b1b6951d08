"""/studies/{id}/candidates/{cid}/deployment: formats, media types, refusals."""

import pytest
import yaml
from httpx import Client

from tests.thin import Desk, execute, submit

pytestmark = pytest.mark.services


def _winner(client: Client, desk: Desk) -> str:
    study_id = desk.run(submit(trials=6)).id
    best = client.get(f"/studies/{study_id}").json()["best"]["candidate_id"]
    return f"/studies/{study_id}/candidates/{best}"


def test_deployment_is_a_manifest_unless_told_otherwise(client: Client, desk: Desk) -> None:
    winner = _winner(client, desk)
    answer = client.get(f"{winner}/deployment")
    assert answer.headers["content-type"].partition(";")[0] == "application/yaml"
    assert yaml.safe_load(answer.text)["kind"] == "DynamoGraphDeployment"
    assert winner.rpartition("/")[2] in answer.text


def test_deployment_in_the_engines_own_format_is_plain_text(client: Client, desk: Desk) -> None:
    winner = _winner(client, desk)
    answer = client.get(f"{winner}/deployment", params={"format": "vllm"})
    pool = client.get(winner).json()["deployment"]["agg"]
    assert answer.headers["content-type"].partition(";")[0] == "text/plain"
    assert f"--tensor-parallel-size {pool['shape']['tp']}" in answer.text


def test_deployment_says_data_versions_and_kv_room_of_the_replay(client: Client, desk: Desk) -> None:
    winner = _winner(client, desk)
    execute("""UPDATE candidates SET load = '{"agg_kv_capacity_tokens": 424242}'""")
    text = client.get(f"{winner}/deployment", params={"format": "vllm"}).text
    assert "424242 KV tokens" in text
    assert "(fake 1)" in text


def test_deployment_in_another_engines_format_is_422_and_names_those_that_fit(client: Client, desk: Desk) -> None:
    answer = client.get(f"{_winner(client, desk)}/deployment", params={"format": "sglang"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    fault = answer.json()["errors"][0]
    assert (fault["pointer"], fault["value"], fault["remedy"]) == ("format", "sglang", "use dynamo or vllm")


def test_deployment_in_an_unknown_format_is_422_at_format(client: Client, desk: Desk) -> None:
    answer = client.get(f"{_winner(client, desk)}/deployment", params={"format": "tgi"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "format")


def test_deployment_unchanged_is_304(client: Client, desk: Desk) -> None:
    winner = f"{_winner(client, desk)}/deployment"
    tag = client.get(winner).headers["etag"]
    assert client.get(winner, headers={"if-none-match": tag}).status_code == 304
    other = client.get(winner, params={"format": "vllm"}, headers={"if-none-match": tag})
    assert other.status_code == 200


def test_deployment_of_an_unknown_candidate_is_404(client: Client, desk: Desk) -> None:
    winner = _winner(client, desk)
    assert client.get(f"{winner[:-4]}0000/deployment").status_code == 404
