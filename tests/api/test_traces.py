"""/traces: upload, list, read, delete, and studies that use them."""

import errno
import gzip
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import zstandard
from httpx import Client
from sqlalchemy import text

from app.db.engine import transaction
from app.schemas.trace import TracePage, TraceView
from tests.golden.files import trace
from tests.thin import Desk, document, execute
from tests.unit.traces.helpers import field_case, lines, row

pytestmark = pytest.mark.services
Setting = Callable[[str, object], None]
ROWS = lines(row(), row(timestamp=40))


@pytest.fixture(autouse=True)
def folder(setting: Setting, tmp_path: Path) -> Path:
    """Where this test's traces are kept."""
    setting("data_dir", tmp_path / "data")
    return tmp_path / "data" / "traces"


@pytest.fixture(autouse=True)
def no_chunks(desk: Desk) -> Iterator[None]:
    """Contents in the database belong to no table that is emptied for every test."""
    yield
    execute("TRUNCATE trace_chunks")


def upload(client: Client, content: bytes = ROWS, **query: Any) -> dict[str, Any]:
    """A stored trace."""
    answer = client.post("/traces", content=content, params=query)
    assert answer.status_code == 201, answer.text
    TraceView.model_validate_json(answer.content)
    found: dict[str, Any] = answer.json()
    return found


def refused(client: Client, content: bytes, **query: Any) -> dict[str, Any]:
    """The problem document of a refused trace."""
    answer = client.post("/traces", content=content, params=query)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    return found


def left(folder: Path) -> list[str]:
    """Files of traces, whole or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def study(trace_path: str, **changes: Any) -> dict[str, Any]:
    """A configuration that replays a trace."""
    return document(**changes) | {"workload": {"trace_path": trace_path}}


def test_upload_is_stored_with_its_report_and_location(client: Client, folder: Path) -> None:
    answer = client.post("/traces?name=chat", content=field_case("F12"))
    assert answer.status_code == 201
    view = TraceView.model_validate_json(answer.content)
    assert answer.headers["location"] == f"/traces/{view.id}"
    assert (view.name, view.num_requests, view.block_size) == ("chat", 80, 512)
    assert left(folder) == [f"{view.sha256}.trace"]
    assert client.get(f"/traces/{view.id}").json() == answer.json()


@pytest.mark.parametrize("case", ["F02", "F03", "F05", "F12", "F13"])
def test_field_case_is_taken(client: Client, case: str) -> None:
    assert upload(client, field_case(case))["num_requests"] == len(field_case(case).splitlines())


def test_rows_that_ids_do_not_cover_are_named_with_line_field_reason_and_remedy(client: Client, folder: Path) -> None:
    problem = refused(client, field_case("F04"))
    assert [(each["line"], each["field"], each["expected"], each["found"]) for each in problem["errors"]] == [
        (1, "hash_ids", 10, 2),
        (3, "hash_ids", 3, 2),
        (4, "hash_ids", 2, 4),
    ]
    assert all(each["reason"] and each["remedy"] for each in problem["errors"])
    assert (problem["num_faulty_rows"], problem["block_size"]) == (3, 512)
    assert left(folder) == []
    assert client.get("/traces").json()["items"] == []


def test_twenty_faults_are_named_and_all_are_counted(client: Client) -> None:
    problem = refused(client, lines(*(row(output_length=-1) for _ in range(77))))
    assert len(problem["errors"]) == 20
    assert problem["num_faulty_rows"] == 77
    assert "74 more faulty rows" in problem["detail"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress])
def test_same_rows_however_sent_are_one_trace(client: Client, folder: Path, compress: Callable[[bytes], bytes]) -> None:
    first = upload(client, ROWS)
    again = upload(client, compress(lines(row(timestamp=1040), row(timestamp=1000))))
    assert again["id"] == first["id"]
    assert again["upload"]["num_rows_moved"] == 2
    assert client.get(f"/traces/{first['id']}").json()["upload"]["num_rows_moved"] == 0
    assert len(left(folder)) == 1


def test_form_with_one_file_is_taken(client: Client) -> None:
    answer = client.post("/traces", files={"trace": ("t.jsonl.gz", gzip.compress(ROWS))})
    assert answer.status_code == 201
    assert answer.json()["id"] == upload(client)["id"]


@pytest.mark.parametrize("form", [{"data": {"name": "x"}}, {"files": [("a", b"1"), ("b", b"2")]}])
def test_form_of_another_kind_is_refused(client: Client, form: dict[str, Any]) -> None:
    files = form.get("files", [("trace", ROWS)])
    answer = client.post("/traces", files=files, data=form.get("data"))
    assert answer.status_code == 422
    assert "one file" in answer.json()["detail"]


def test_form_without_boundary_is_refused(client: Client) -> None:
    answer = client.post("/traces", content=ROWS, headers={"content-type": "multipart/form-data"})
    assert answer.status_code == 422


def test_converted_format_and_block_size_are_asked_for_in_the_query(client: Client) -> None:
    found = upload(client, trace("azure2023_conv_head2000.csv"), format="azure", name="azure")
    assert found["num_requests"] == 2000
    assert found["summary"]["sharing"] == "unknown"
    assert upload(client, trace("dynamo_agent_pi.blk16.mooncake.jsonl"), block_size=16)["block_size"] == 16


@pytest.mark.parametrize("query", [{"format": "csv"}, {"time_unit": "us"}, {"block_size": 0}, {"name": "../x"}])
def test_faulty_query_is_refused(client: Client, query: dict[str, Any]) -> None:
    assert refused(client, ROWS, **query)["errors"][0]["pointer"] == next(iter(query))


def test_names_are_added_to_one_trace_and_taken_once(client: Client) -> None:
    found = upload(client, name="a")
    assert upload(client, name="b")["names"] == ["a", "b"]
    assert upload(client, name="a")["id"] == found["id"]
    answer = client.post("/traces?name=a", content=lines(row()))
    assert answer.status_code == 409
    assert len(client.get("/traces").json()["items"]) == 1


def test_refused_name_leaves_no_content_behind(client: Client, folder: Path) -> None:
    upload(client, name="a")
    client.post("/traces?name=a", content=lines(row()))
    assert len(left(folder)) == 1


def test_list_is_newest_first_in_pages_and_by_name(client: Client) -> None:
    ids = [upload(client, lines(row(output_length=number)), name=f"n{number}")["id"] for number in range(5)]
    first = TracePage.model_validate_json(client.get("/traces?limit=3").content)
    assert [str(each.id) for each in first.items] == ids[:1:-1]
    second = client.get("/traces", params={"limit": 3, "cursor": first.next_cursor}).json()
    assert [each["id"] for each in second["items"]] == ids[1::-1]
    assert second["next_cursor"] is None
    assert [each["id"] for each in client.get("/traces?name=n2").json()["items"]] == [ids[2]]


def test_unknown_trace_is_not_found(client: Client) -> None:
    assert client.get(f"/traces/{uuid4()}").status_code == 404
    assert client.delete(f"/traces/{uuid4()}").status_code == 404


def test_delete_removes_the_content_with_the_last_project_that_has_it(client: Client, folder: Path) -> None:
    found = upload(client)
    execute(
        "INSERT INTO traces SELECT gen_random_uuid(), 'other', sha256, num_requests, num_bytes, block_size, summary,"
        " created_at, upload FROM traces"
    )
    assert client.delete(f"/traces/{found['id']}").status_code == 204
    assert len(left(folder)) == 1
    execute("DELETE FROM traces")
    again = upload(client)
    assert client.delete(f"/traces/{again['id']}").status_code == 204
    assert left(folder) == []


def test_delete_is_refused_while_a_study_uses_the_trace(client: Client, desk: Desk) -> None:
    found = upload(client)
    made = client.post("/studies", json=study(found["id"])).json()
    answer = client.delete(f"/traces/{found['id']}")
    assert answer.status_code == 409
    assert answer.json()["num_studies"] == 1
    client.post(f"/studies/{made['id']}/cancel")
    desk.work()
    assert client.delete(f"/studies/{made['id']}").status_code == 204
    assert client.delete(f"/traces/{found['id']}").status_code == 204


@pytest.mark.parametrize("name_of", ["id", "sha256", "name"])
def test_study_names_a_trace_by_id_hash_or_alias(client: Client, name_of: str) -> None:
    found = upload(client, name="chat")
    named = f"sha256:{found['sha256']}" if name_of == "sha256" else found[name_of]
    answer = client.post("/studies", json=study(named))
    assert answer.status_code == 202
    assert answer.json()["provenance"]["trace_sha256"] == found["sha256"]


def test_study_names_an_offered_file_by_relative_path(client: Client, setting: Setting, tmp_path: Path) -> None:
    offered = tmp_path / "offered" / "day"
    offered.mkdir(parents=True)
    (offered / "t.jsonl.gz").write_bytes(gzip.compress(ROWS))
    setting("trace_dir", tmp_path / "offered")
    answers = [client.post("/studies", json=study("day/t.jsonl.gz")) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["provenance"]["trace_sha256"] == upload(client)["sha256"]


def test_faulty_offered_file_is_refused_with_its_lines(client: Client, setting: Setting, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(field_case("F04"))
    setting("trace_dir", tmp_path)
    answer = client.post("/studies", json=study("t.jsonl"))
    assert answer.status_code == 422
    assert answer.json()["num_faulty_rows"] == 3


def test_path_that_names_no_trace_is_refused_in_the_same_words_whatever_is_there(
    client: Client, setting: Setting, tmp_path: Path
) -> None:
    offered, outside = tmp_path / "offered", tmp_path / "outside.jsonl"
    offered.mkdir()
    outside.write_bytes(ROWS)
    (offered / "folder").mkdir()
    (offered / "link.jsonl").symlink_to(outside)
    (offered / "linked").symlink_to(tmp_path)
    (offered / "loop").symlink_to(offered / "loop")
    setting("trace_dir", offered)
    paths = [
        str(outside), "../outside.jsonl", "folder/../../outside.jsonl", "link.jsonl", "linked/outside.jsonl", "loop",
        "folder", "absent.jsonl", "/etc/passwd", "sha256:" + "0" * 64, "sha256:", str(uuid4()), "unknown", "~", ".",
    ]  # fmt: skip
    said = set()
    for path in paths:
        answer = client.post("/studies", json=study(path))
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        said.add((fault["pointer"], fault["fault"], fault["remedy"]))
    assert len(said) == 1
    assert said.pop()[0] == "/workload/trace_path"


def test_trace_of_another_project_is_unknown(client: Client) -> None:
    found = upload(client, name="chat")
    execute("UPDATE traces SET project = 'other'")
    execute("UPDATE trace_names SET project = 'other'")
    for named in (found["id"], f"sha256:{found['sha256']}", "chat"):
        assert client.post("/studies", json=study(named)).status_code == 422


def test_trace_beyond_a_limit_is_413_and_leaves_nothing(client: Client, setting: Setting, folder: Path) -> None:
    setting("max_trace_decompressed_bytes", 100_000)
    answer = client.post("/traces", content=gzip.compress(ROWS + b"\n" * 10_000_000))
    assert answer.status_code == 413
    assert answer.json()["limit"] == 100_000
    assert left(folder) == []


def test_upload_that_says_it_is_too_large_is_refused_unread(client: Client, address: str, setting: Setting) -> None:
    setting("max_trace_bytes", 1000)
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.sendall(b"POST /traces HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert client.get("/traces").json()["items"] == []


def test_upload_broken_off_leaves_nothing(client: Client, address: str, folder: Path) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port)) as connection:
        head = f"POST /traces HTTP/1.1\r\nHost: x\r\nContent-Length: {10 * len(ROWS)}\r\n\r\n"
        connection.sendall(head.encode() + ROWS)
        _until(lambda: any(folder.rglob("*")))
    _until(lambda: not left(folder) and not list((folder / ".incoming").iterdir()))
    assert client.get("/traces").json()["items"] == []


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("did not come true")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_upload_to_a_full_disk_is_507_and_leaves_nothing(
    client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("app.traces.intake.write_content", full)
    answer = client.post("/traces", content=ROWS)
    assert (answer.status_code, answer.json()["type"]) == (507, "urn:spica:problem:disk-full")
    assert str(folder) not in answer.text
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_slow_upload_is_408(client: Client, setting: Setting) -> None:
    setting("body_timeout_s", 0.05)

    def slowly() -> Iterator[bytes]:
        yield ROWS
        time.sleep(1)
        yield ROWS

    assert client.post("/traces", content=slowly()).status_code == 408


def test_leftovers_of_a_dead_process_are_swept(client: Client, folder: Path) -> None:
    old = folder / ".incoming" / "old"
    old.mkdir(parents=True)
    (old / "line").write_bytes(b"x")
    os.utime(old, (0, 0))
    upload(client)
    assert not old.exists()


def test_content_in_the_database_is_fetched_by_another_host_and_dropped_with_its_trace(
    client: Client, setting: Setting, tmp_path: Path
) -> None:
    from app.traces.store import at_hand, resolve

    setting("trace_store", "postgres")
    found = upload(client, trace("mooncake_arxiv_head1000.jsonl"))
    setting("data_dir", tmp_path / "elsewhere")
    with transaction() as db:
        stored = resolve(db, "default", found["id"])
    assert not stored.path.exists()
    assert at_hand(stored).path.read_bytes().startswith(b"SPICATR1")
    client.delete(f"/traces/{found['id']}")
    with transaction() as db:
        assert db.scalar(text("SELECT count(*) FROM trace_chunks")) == 0


def test_damaged_content_in_the_database_is_not_fetched(client: Client, setting: Setting, tmp_path: Path) -> None:
    from app.errors import UnavailableError
    from app.traces.store import at_hand, resolve

    setting("trace_store", "postgres")
    found = upload(client)
    execute("UPDATE trace_chunks SET body = set_byte(body, 70, 1 - get_byte(body, 70))")
    setting("data_dir", tmp_path / "elsewhere")
    with transaction() as db:
        stored = resolve(db, "default", found["id"])
    with pytest.raises(UnavailableError):
        at_hand(stored)
    assert not stored.path.exists()


def test_trace_needs_a_key_from_another_machine(stranger: Client) -> None:
    assert stranger.post("/traces", content=ROWS).status_code == 401
    assert stranger.get("/traces").status_code == 401
