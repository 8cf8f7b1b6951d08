"""A running service, one finished study, and a real Chromium whose complaints fail the test."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 1040}
STUDY_WITHIN_S = 540.0  # the first replay of fresh sources compiles the kernel
NAME = "nightly gate"
MOST_RANKED = 2000
PLANNER_EXAMPLE = Path(__file__).resolve().parents[2] / "openapi" / "examples" / "planner.json"
Json = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--pictures DIR` writes screenshots."""
    parser.addoption("--pictures", type=Path, help="folder to write screenshots of the dashboard into")


def configuration(name: str, **workload: int) -> Json:
    """A search of a second or two."""
    return {
        "name": name,
        "labels": {"branch": "main"},
        "search_space": {
            "model_name": "Qwen/Qwen3-32B-FP8",
            "hardware_sku": "h200_sxm",
            "gpu_budget": 4,
            "deployment_mode": ["agg"],
            "backend": ["vllm"],
        },
        "workload": {"isl": 4000, "osl": 1000, "num_request_ratio": 2, "concurrency": 64, **workload},
        "goal": {"target": "throughput_per_gpu"},
    }


@pytest.fixture(scope="session")
def api() -> Iterator[httpx.Client]:
    """A client of the running service."""
    url = os.environ.get("SPICA_TEST_URL")
    if not url:
        pytest.fail("SPICA_TEST_URL is not set; run `python3 run.py test-browser`", pytrace=False)
    with httpx.Client(base_url=url, timeout=90) as client:
        yield client


@pytest.fixture(scope="session")
def study(api: httpx.Client) -> Json:
    """A finished study."""
    return finished(api, configuration(NAME))


@pytest.fixture(scope="session")
def scaled_study(api: httpx.Client) -> Json:
    """A finished study with and without a planner that scales."""
    return finished(api, json.loads(PLANNER_EXAMPLE.read_text()))


def finished(api: httpx.Client, document: Json) -> Json:
    """The study of a configuration, when it has ended."""
    study: Json = api.post("/studies", json=document).raise_for_status().json()
    for _ in range(int(STUDY_WITHIN_S / 20)):
        study = api.get(f"/studies/{study['id']}", params={"wait": 20}).json()
        if study["status"] not in ("queued", "planning", "running"):
            break
    assert study["status"] == "succeeded", study["problem"]
    return study


@pytest.fixture(scope="session")
def ranked(api: httpx.Client, study: Json) -> list[Json]:
    """Its first candidates, best first: as many as the dashboard looks at."""
    items: list[Json] = []
    params: dict[str, Any] = {"limit": 500}
    while len(items) < MOST_RANKED:
        page = api.get(f"/studies/{study['id']}/candidates", params=params).json()
        items += page["items"]
        params["cursor"] = page["next_cursor"]
        if params["cursor"] is None:
            break
    return items


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser that the command found."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["SPICA_TEST_CHROMIUM"], args=FLAGS)
        yield browser
        browser.close()


_NOTE_VIOLATIONS = """
    addEventListener("securitypolicyviolation", (event) => {
        console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`);
    });
"""


@pytest.fixture
def open_page(chromium: Browser, api: httpx.Client) -> Iterator[Callable[..., Page]]:
    """open_page(hash, **context options): a page in a fresh profile. Any error on its console fails the test."""
    contexts, complaints, outside = [], [], []

    def opened(address: str = "#/", allow: str | None = None, **options: Any) -> Page:
        context = chromium.new_context(**{"viewport": DESKTOP, "base_url": str(api.base_url), **options})
        contexts.append(context)
        context.add_init_script(_NOTE_VIOLATIONS)
        page = context.new_page()

        def heard(kind: str, text: str) -> None:
            if kind in ("error", "warning") and not (allow and allow in text):
                complaints.append(text)

        page.on("console", lambda message: heard(message.type, message.text))
        page.on("pageerror", lambda error: heard("error", str(error)))
        page.on("request", lambda asked: outside.append(asked.url))
        page.goto(f"/{address}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in outside if not url.startswith((str(api.base_url), "data:", "blob:"))] == []


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """picture(page, name): keep a screenshot when asked to by `--pictures`."""
    folder: Path | None = request.config.getoption("--pictures")

    def take(page: Page, name: str) -> None:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            page.wait_for_timeout(300)
            page.screenshot(path=folder / f"dashboard-{name}.png")

    return take
