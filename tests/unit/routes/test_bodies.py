"""Bodies of POST /studies: media types, limits, strict text, multipart."""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from app.config import settings
from app.routes.bodies import RefusedError, Submission, check, read_document, read_submission

CONFIG = {
    "search_space": {"model_name": "Qwen/Qwen3-32B-FP8", "hardware_sku": "h200_sxm"},
    "workload": {"isl": 10, "osl": 5, "concurrency": 2, "num_request_ratio": 2},
}


def submit(content_type: str, *chunks: bytes) -> Submission:
    waiting = list(chunks)

    async def receive() -> dict[str, Any]:
        body = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    headers = [(b"content-type", content_type.encode())]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)
    return asyncio.run(read_submission(request))


def multipart(*parts: tuple[str, str | None, str, bytes]) -> bytes:
    body = b""
    for name, filename, kind, content in parts:
        named = f'; filename="{filename}"' if filename else ""
        body += f'--X\r\nContent-Disposition: form-data; name="{name}"{named}\r\nContent-Type: {kind}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return body + b"--X--\r\n"


def refused(content_type: str, *chunks: bytes) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        submit(content_type, *chunks)
    return caught.value


def test_json_arrives_in_chunks_with_a_byte_order_mark() -> None:
    text = b"\xef\xbb\xbf" + json.dumps(CONFIG).encode()
    assert submit("application/json; charset=utf-8", text[:20], text[20:]).document == CONFIG


@pytest.mark.parametrize("kind", ["application/yaml", "text/yaml", "application/x-yaml"])
def test_yaml_is_read_under_each_of_its_media_types(kind: str) -> None:
    assert submit(kind, b"workload: {isl: 10, ratio: .5}\n").document == {"workload": {"isl": 10, "ratio": 0.5}}


def test_other_media_type_is_refused_with_415() -> None:
    assert refused("text/html", b"<p>").status == 415


def test_document_beyond_the_limit_is_refused_with_413_before_it_is_complete() -> None:
    assert refused("application/json", b"x" * settings().max_config_bytes, b"x", b"never read").status == 413


def test_multipart_hands_on_configuration_and_trace() -> None:
    body = multipart(
        ("config", "study.yaml", "application/octet-stream", b"workload: {trace_path: t}\n"),
        ("trace", "t.jsonl", "application/x-ndjson", b'{"timestamp": 0}\n'),
    )
    got = submit("multipart/form-data; boundary=X", body[:70], body[70:])
    assert got.document == {"workload": {"trace_path": "t"}}
    assert got.trace is not None
    assert asyncio.run(got.trace.read()) == b'{"timestamp": 0}\n'
    asyncio.run(got.trace.close())


def test_multipart_configuration_may_be_a_plain_field() -> None:
    body = multipart(("config", None, "text/plain", json.dumps(CONFIG).encode()))
    assert submit("multipart/form-data; boundary=X", body).document == CONFIG


@pytest.mark.parametrize(
    "parts",
    [
        [("trace", "t", "text/plain", b"{}")],
        [("config", "c", "application/json", b"{}"), ("extra", "e", "text/plain", b"")],
        [("config", "c", "application/json", b"{}"), ("config", "c", "application/json", b"{}")],
        [("config", "c", "application/json", b"{}"), ("trace", None, "text/plain", b"not a file")],
    ],
    ids=["no config", "unknown part", "two configs", "trace not a file"],
)
def test_multipart_with_wrong_parts_is_refused(parts: list[tuple[str, str | None, str, bytes]]) -> None:
    assert refused("multipart/form-data; boundary=X", multipart(*parts)).status == 422


def test_multipart_without_a_boundary_is_refused() -> None:
    assert refused("multipart/form-data", b"--X--").status == 422


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        (b'{"a": {"b": 1, "b": 2}}', "/a/b"),
        (b'{"a": "\\ud800"}', "/a"),
        (b'{"a": "\\u0000"}', "/a"),
        (b'{"a~/": 1, "a~/": 1}', "/a~0~1"),
    ],
)
def test_json_faults_of_the_text_have_their_pointer(text: bytes, pointer: str) -> None:
    assert [fault.pointer for fault in read_document("application/json", text).faults] == [pointer]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a": 1,}',
        b"{'a': 1}",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 40 + b"1" + b"}" * 40,
    ],
)
def test_unreadable_json_is_one_fault(text: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        read_document("application/json", text)
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"a: [",
        b"a: &x [*x]",
        b"a: *nowhere",
        b"[" * 100_000,
        b"a: 1\n---\nb: 2",
        b"? [a]\n: 1",
        b"a: \x07",
        b"x0: &x0 [1]\n" + b"".join(b"x%d: &x%d [%s]\n" % (n, n, b"*x%d, " % (n - 1) * 9 + b"1") for n in range(1, 9)),
    ],
    ids=["open", "recursive", "no anchor", "deep", "two documents", "complex key", "control", "bomb"],
)
def test_unreadable_yaml_is_one_fault(text: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        read_document("application/yaml", text)
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize("scalar", ["010", "0x1F", "0o17", "0b11", "1:30", "4_000", "1e2", "yes", "Off", "n"])
def test_scalar_on_which_yaml_versions_disagree_is_named(scalar: str) -> None:
    (fault,) = read_document("application/yaml", f"a: {scalar}".encode()).faults
    assert fault.pointer == "/a"
    assert fault.value == scalar
    assert read_document("application/yaml", f"a: '{scalar}'".encode()).faults == []


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("8", 8),
        ("-1", -1),
        (".5", 0.5),
        ("1.5", 1.5),
        ("1.5e+3", 1500.0),
        ("true", True),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_plain_scalars_are_read_as_yaml_1_2(scalar: str, value: object) -> None:
    read = read_document("application/yaml", f"a: {scalar}".encode()).document["a"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.getcwd []", "!!int '8'", "!custom {}"])
def test_no_tag_is_followed(tag: str) -> None:
    (fault,) = read_document("application/yaml", f"a: {tag}".encode()).faults
    assert fault.pointer == "/a"


def test_integer_of_thousands_of_digits_is_a_fault_of_its_field() -> None:
    document = json.dumps({**CONFIG, "workload": {**CONFIG["workload"], "isl": 0}}).replace(
        '"isl": 0', '"isl": ' + "9" * 5000
    )
    reading = read_document("application/json", document.encode())
    with pytest.raises(RefusedError) as caught:
        check(reading.document, reading.faults)
    assert [fault.pointer for fault in caught.value.faults] == ["/workload/isl"]


def test_hundreds_of_unknown_fields_give_a_bounded_answer() -> None:
    with pytest.raises(RefusedError) as caught:
        check({**CONFIG, **{f"field{n}": n for n in range(5000)}})
    assert len(caught.value.faults) == 101
    assert "4900 more" in caught.value.faults[-1].fault
