"""Bodies broken in a thousand ways are refused with a problem, never answered with a 5xx."""

import json
import random
from typing import Any

import httpx
import pytest

from tests.thin import document

pytestmark = pytest.mark.services
_SCRAPS = [
    b"\x00", b"\xff\xfe", b"{", b"}", b"[", b'"', b",", b":", b"null", b"NaN", b"-Infinity", b"1e999", b"9" * 40,
    b"\\ud800", b"&a ", b"*a", b"!!python/object:os.system", b"\t", b"<<: ", b"'", b"true", b"\xf0\x9f\x98\x80", b"",
]  # fmt: skip
_VALUES: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, "", "\u0000", "x" * 5000, [], {}, [[]], {"": None}, ["vllm", 1], "../../etc/passwd",
    "/etc/passwd", "sha256:", "${HOME}", "file:///etc/passwd", [1.5, None],
]  # fmt: skip


def _mutated_text(rng: random.Random, text: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(_SCRAPS) + text[place + rng.randint(0, 8) :]
    return text


def _mutated_document(rng: random.Random, node: Any) -> Any:
    """A copy with one value, somewhere, replaced, removed or renamed."""
    if not isinstance(node, dict) or not node or rng.random() < 0.15:
        return rng.choice(_VALUES)
    changed = dict(node)
    name = rng.choice(sorted(changed))
    choice = rng.random()
    if choice < 0.1:
        del changed[name]
    elif choice < 0.2:
        changed[rng.choice(["", "\u0000", "__class__", name + "s"])] = changed.pop(name)
    else:
        changed[name] = _mutated_document(rng, changed[name])
    return changed


@pytest.mark.parametrize("seed", range(4))
def test_mutated_body_is_never_a_server_error(client: httpx.Client, seed: int) -> None:
    rng = random.Random(seed)
    valid = document()
    kinds = ["application/json", "application/yaml", "multipart/form-data; boundary=b", "text/plain"]
    for _ in range(100):
        kind = rng.choice(kinds)
        body = json.dumps(_mutated_document(rng, valid)).encode()
        if rng.random() < 0.5:
            body = _mutated_text(rng, body)
        if kind.startswith("multipart"):
            body = b'--b\r\nContent-Disposition: form-data; name="config"\r\n\r\n' + body + b"\r\n--b--\r\n"
        answer = client.post("/studies?dry_run=true", content=body, headers={"content-type": kind})
        assert answer.status_code < 500, (seed, kind, body)
        if answer.status_code >= 400:
            problem = answer.json()
            assert answer.headers["content-type"] == "application/problem+json"
            assert problem["status"] == answer.status_code
            assert "Traceback" not in answer.text


@pytest.mark.parametrize("half", ["name", "labels", "workload", "search_space"])
def test_half_of_a_surrogate_pair_anywhere_is_refused(client: httpx.Client, half: str) -> None:
    body = document()
    body[half] = {"\ud800": {"\udfff": "\ud800"}}
    for text in (json.dumps(body), json.dumps({"\ud800": body}), json.dumps([body])):
        for kind in ("application/json", "application/yaml"):
            answer = client.post("/studies?dry_run=true", content=text, headers={"content-type": kind})
            assert answer.status_code == 422
            assert answer.json()["errors"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../traces", "nonesuch", "./x", "sha256:" + "0" * 64, "a/../../b"])
def test_path_that_names_no_trace_is_refused_in_one_way(client: httpx.Client, path: str) -> None:
    body = document()
    body["workload"] = {"trace_path": path}
    answer = client.post("/studies", json=body)
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert (fault["pointer"], fault["fault"]) == ("/workload/trace_path", "names no trace of this service")
