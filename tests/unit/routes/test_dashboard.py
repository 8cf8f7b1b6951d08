"""How the dashboard's files are sent."""

import asyncio
import gzip

import httpx
import pytest
from fastapi import FastAPI

from app.dashboard.assets import VENDORED, assets
from app.routes import dashboard
from app.routes.problems import add_handlers


def get(path: str, **headers: str) -> httpx.Response:
    """An answer of the dashboard's routes alone: they need no database."""
    app = FastAPI()
    app.include_router(dashboard.router)
    add_handlers(app)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return asyncio.run(ask())


def test_page_is_sent_with_a_policy_that_allows_own_files_only() -> None:
    answer = get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_file_that_the_browser_has_is_not_sent_again(encoding: str) -> None:
    first = get("/dashboard/main.js", accept_encoding=encoding)
    assert first.headers["cache-control"] == "no-cache"
    again = get("/dashboard/main.js", accept_encoding=encoding, if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


def test_plain_and_gzipped_form_have_tags_of_their_own() -> None:
    plain = get("/dashboard/style.css", accept_encoding="gzip;q=0")
    small = get("/dashboard/style.css", accept_encoding="br, gzip")
    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert plain.content == small.content == gzip.decompress(assets()["style.css"].gzipped)
    assert plain.headers["etag"] != small.headers["etag"]
    assert plain.headers["vary"] == small.headers["vary"] == "Accept-Encoding"


def test_versioned_file_is_kept_for_good() -> None:
    answer = get(f"/dashboard/{VENDORED}.umd.min.js")
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fassets.py", "assets.py", "__init__.py"])
def test_other_name_is_not_found(name: str) -> None:
    assert get(f"/dashboard/{name}").status_code == 404
