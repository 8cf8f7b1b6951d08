"""The dashboard as a person uses it, in a real Chromium."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from app.candidates import direction
from tests.browser.conftest import NAME, Json, configuration, finished

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
OpenPage = Callable[..., Page]
Picture = Callable[[Page, str], None]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 1}
LIVE_WITHIN_MS = 120_000
LATENCIES = [f"{of}_{name}_ms" for name in ("ttft", "tpot", "e2e_latency") for of in ("mean", "p99")]
RATES = ["output_throughput_tok_s", "request_throughput_rps", "mean_output_token_throughput_per_user"]
MAIN_METRICS = [*LATENCIES, *RATES, "prefix_cache_reused_ratio", "completed_requests", "num_requests", "duration_ms"]


def address_of(study: Json, candidate: Json | None = None) -> str:
    return f"#/studies/{study['id']}" + (f"/candidates/{candidate['id']}" if candidate else "")


def outcomes(ranked: list[Json]) -> list[Json]:
    """The first candidate of every outcome, by its main figures."""
    firsts: dict[str, Json] = {}
    for each in ranked:
        firsts.setdefault(str((each["used_gpus"], [each["metrics"][name] for name in MAIN_METRICS])), each)
    return list(firsts.values())


def test_winner_is_found_from_the_list_in_two_clicks(
    open_page: OpenPage, study: Json, ranked: list[Json], picture: Picture
) -> None:
    page = open_page()
    expect(page.get_by_role("heading", level=1)).to_have_text("Studies")
    picture(page, "studies")
    page.get_by_role("link", name=NAME).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
    expect(page.get_by_text("Finished:")).to_be_visible()
    winner = page.get_by_role("region", name="The winner")
    expect(winner.get_by_role("link", name="vllm")).to_have_attribute("href", address_of(study, ranked[0]))
    expect(winner).to_contain_text(re.compile("Why. That is .* better than the next best"))
    expect(winner).to_contain_text(
        "Replayed under 0.9 of the load and 1.1 of the load, it keeps rank 1 among the leaders"
    )
    picture(page, "study")
    page.get_by_role("table", name=re.compile("candidates ranked")).get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(ranked[0]["id"]))
    expect(page.get_by_role("heading", name="Why it won")).to_be_visible()
    expect(page.locator(".lead")).to_contain_text(f"Rank 1 of {study['progress']['feasible']:,}")
    assert page.title().startswith(page.get_by_role("heading", level=1).inner_text())


def test_candidate_page_sets_winner_beside_the_next_outcome_and_the_median(
    open_page: OpenPage, study: Json, ranked: list[Json], picture: Picture
) -> None:
    page = open_page(address_of(study, ranked[0]))
    row = page.get_by_role("row", name=re.compile("^Output throughput"))
    expect(row).to_be_visible()
    cells = [float(text.replace(",", "")) for text in row.get_by_role("cell").all_inner_texts()[:2]]
    measured = [each["metrics"]["output_throughput_tok_s"] for each in outcomes(ranked)[:2]]
    assert cells == pytest.approx(measured, abs=1)
    for caption in ("Requests in flight and queued", "KV cache in use", "Output", "Time to first token"):
        expect(page.get_by_role("figure", name=caption, exact=True)).to_be_visible()
    picture(page, "candidate")


def test_scaled_candidate_shows_gpus_over_time_and_every_decision(
    open_page: OpenPage, api: httpx.Client, scaled_study: Json
) -> None:
    path = f"/studies/{scaled_study['id']}/candidates"
    items = api.get(path, params={"limit": 500}).json()["items"]
    reports = {each["id"]: api.get(f"{path}/{each['id']}/report").json().get("scaling") for each in items}
    scaled = next(each for each in items if reports[each["id"]] and reports[each["id"]]["events"])
    page = open_page(address_of(scaled_study, scaled))
    expect(page.get_by_role("heading", name="Scaling")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^GPUs of agg over the time"))).to_be_visible()
    page.get_by_text("Every decision").click()
    rows = page.get_by_role("table", name="Decisions of the planner").locator("tbody tr")
    expect(rows).to_have_count(len(reports[scaled["id"]]["events"]))
    first = reports[scaled["id"]]["events"][0]
    expect(rows.first).to_contain_text("up" if first["reason"] == "scale_up" else "down")
    fixed = next(each for each in items if not reports[each["id"]])
    page = open_page(address_of(scaled_study, fixed))
    expect(page.get_by_role("heading", name="Latencies")).to_be_visible()
    expect(page.get_by_role("heading", name="Scaling")).to_have_count(0)


def test_launch_text_is_that_of_the_api_and_can_be_copied(
    open_page: OpenPage, api: httpx.Client, study: Json, ranked: list[Json]
) -> None:
    page = open_page(address_of(study, ranked[0]), permissions=["clipboard-read", "clipboard-write"])
    for button, wanted in (("vllm commands", "vllm"), ("Dynamo manifest", "dynamo")):
        page.get_by_role("button", name=button).click()
        path = f"/studies/{study['id']}/candidates/{ranked[0]['id']}/deployment"
        text = api.get(path, params={"format": wanted}).text
        expect(page.locator(".launch")).to_have_text(text)
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == text
        expect(page.get_by_role("button", name="Copy", exact=True)).to_be_visible()


def test_table_is_sorted_by_keyboard_and_keeps_the_focus(open_page: OpenPage, study: Json, ranked: list[Json]) -> None:
    page = open_page(address_of(study))
    button = page.get_by_role("button", name=re.compile("^Mean TTFT"))
    button.focus()
    header = page.get_by_role("columnheader", name=re.compile("^Mean TTFT"))
    for wanted, falls in (("ascending", False), ("descending", True)):
        page.keyboard.press("Enter")
        expect(header).to_have_attribute("aria-sort", wanted)
        expect(button).to_be_focused()
        best = sorted(ranked, key=lambda each: each["metrics"]["mean_ttft_ms"], reverse=falls)[0]
        first = page.locator("table.candidates tbody tr").first.get_by_role("link")
        expect(first).to_have_attribute("href", address_of(study, best))
    assert page.locator("[aria-sort]").count() == 1


def test_candidates_that_end_alike_take_one_row_until_asked_for(
    open_page: OpenPage, study: Json, ranked: list[Json]
) -> None:
    page = open_page(address_of(study))
    rows = page.locator("table.candidates tbody tr")
    expect(rows.first).to_be_visible()
    wanted = [address_of(study, each) for each in outcomes(ranked)]
    assert len(wanted) < len(ranked)
    links = page.locator("table.candidates tbody a")
    assert [each.get_attribute("href") for each in links.all()] == wanted[:20]
    page.get_by_label("One row for candidates that end alike").uncheck()
    expect(links.nth(1)).to_have_attribute("href", address_of(study, ranked[1]))


def test_candidate_that_ends_like_the_winner_says_what_it_needs_more(
    open_page: OpenPage, study: Json, ranked: list[Json]
) -> None:
    routed = next(each for each in ranked if each["deployment"]["router"]["mode"] == "kv_router")
    assert routed["metrics"] == ranked[0]["metrics"]
    page = open_page(address_of(study, routed))
    expect(page.locator(".lead")).to_contain_text("Every main figure is that of the winner: it needs a KV router more")


def test_front_is_told_by_its_ends(open_page: OpenPage, api: httpx.Client) -> None:
    document: dict[str, Any] = configuration("a front")
    document["search_space"]["router_mode"] = ["round_robin"]
    front = finished(api, document | {"goal": {"target": "pareto"}})
    page = open_page(address_of(front))
    choice = page.get_by_role("region", name="The choice")
    for words in ("Best throughput per GPU", "Best speed per user"):
        expect(choice).to_contain_text(words)
    expect(choice.get_by_role("link")).to_have_count(2)


def test_keyboard_reaches_content_first_and_every_control(open_page: OpenPage, study: Json) -> None:
    page = open_page(address_of(study))
    expect(page.get_by_role("heading", name="Candidates")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.evaluate("location.hash") == address_of(study)
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 20)"))
    assert seen[0] == "Studies"
    assert any(text.startswith("Rank") for text in seen)


def test_two_candidates_are_compared(open_page: OpenPage, study: Json, ranked: list[Json], picture: Picture) -> None:
    page = open_page(address_of(study))
    boxes = page.get_by_role("checkbox", name=re.compile("^compare"))
    third = outcomes(ranked)[2]
    boxes.nth(0).check()
    expect(page.get_by_text("(1 chosen)")).to_be_visible()
    boxes.nth(2).check()
    page.get_by_role("link", name="Compare the two chosen").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Two candidates compared")
    row = page.get_by_role("row", name=re.compile("^Throughput per GPU"))
    said = "better" if ranked[0]["score"] > third["score"] else "same"
    expect(row).to_contain_text(said)
    expect(page.locator(".lead")).to_contain_text(f"Set beside B, A has the {said} throughput per GPU")
    expect(page.get_by_role("columnheader", name=f"B, rank {third['rank']}").first).to_be_visible()
    picture(page, "comparison")


@pytest.mark.parametrize("view", ["list", "study", "candidate", "comparison"])
def test_phone_shows_everything_without_scrolling_sideways(
    open_page: OpenPage, study: Json, ranked: list[Json], view: str, picture: Picture
) -> None:
    pair = f"#/compare/{study['id']}/{ranked[0]['id']}/{study['id']}/{ranked[1]['id']}"
    address = {"list": "#/", "study": address_of(study), "candidate": address_of(study, ranked[0]), "comparison": pair}
    page = open_page(address[view], **PHONE, color_scheme="dark")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("table").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    if view == "study":
        picture(page, "phone")


def test_theme_follows_the_system_until_one_is_chosen(open_page: OpenPage, study: Json, picture: Picture) -> None:
    page = open_page(address_of(study), color_scheme="dark")
    expect(page.get_by_role("heading", name="Candidates")).to_be_visible()
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    picture(page, "dark")
    page.get_by_label("Theme").select_option("light")
    light = page.evaluate(ground)
    assert (dark, light) == ("rgb(16, 21, 29)", "rgb(255, 255, 255)")
    page.reload()
    assert page.evaluate(ground) == light
    page.get_by_label("Theme").select_option("auto")
    assert page.evaluate(ground) == dark


def test_running_study_is_followed_to_its_end(open_page: OpenPage, api: httpx.Client, study: Json) -> None:
    posted = api.post("/studies", json=configuration("followed", concurrency=32)).json()
    page = open_page(address_of(posted))
    status = page.locator(".status").first
    expect(status).to_contain_text("succeeded", timeout=LIVE_WITHIN_MS)
    expect(page.get_by_text("The whole space is settled")).to_be_visible()
    expect(page.locator("table.candidates tbody tr").first).to_be_visible()
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_polling_takes_over_where_no_stream_can_be_had(open_page: OpenPage, study: Json) -> None:
    page = open_page(allow="status of 503")
    ended = False

    def without_stream(route: Route) -> None:
        route.fulfill(status=503, json={"title": "Not available right now", "detail": "no streams today"})

    def half_way(route: Route) -> None:
        document = route.fetch().json()
        if not ended:
            document |= {"status": "running", "version": 1, "finished_at": None}
        route.fulfill(json=document)

    page.route("**/events", without_stream)
    page.route(re.compile(f"/studies/{study['id']}$"), half_way)
    page.goto(f"/{address_of(study)}")
    expect(page.get_by_text("asked every 2 s")).to_be_visible()
    expect(page.get_by_text("Time left")).to_be_visible()
    ended = True
    expect(page.locator(".status").first).to_contain_text("succeeded", timeout=15_000)


def test_key_is_asked_for_and_kept_in_the_tab_only(open_page: OpenPage, study: Json) -> None:
    page = open_page(allow="status of 401")
    sent: list[str | None] = []

    def guarded(route: Route) -> None:
        given = route.request.headers.get("authorization")
        sent.append(given)
        if given == "Bearer spica_right_key":
            kept = {name: value for name, value in route.request.headers.items() if name != "authorization"}
            route.continue_(headers=kept)
        else:
            route.fulfill(status=401, json={"title": "An API key is needed", "detail": "Unknown key."})

    page.route("**/studies?*", guarded)
    page.reload()
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("An API key is needed")
    page.get_by_label("Key", exact=True).fill("spica_right_key")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("table")).to_be_visible()
    assert sent[-1] == "Bearer spica_right_key"
    assert page.evaluate("[sessionStorage.length, JSON.stringify(localStorage), document.cookie]") == [1, "{}", ""]
    assert "spica_right_key" not in page.url


def test_unknown_study_and_unknown_address_say_so(open_page: OpenPage, study: Json) -> None:
    page = open_page("#/studies/00000000-0000-7000-8000-000000000000", allow="status of 404")
    expect(page.get_by_role("alert")).to_contain_text("There is no such study")
    page.goto("/#/nowhere")
    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing here")


def test_lost_service_is_told_and_forgiven(open_page: OpenPage, study: Json) -> None:
    page = open_page(allow="ERR_FAILED")
    expect(page.get_by_role("table")).to_be_visible()
    page.route("**/studies?*", lambda route: route.abort())
    expect(page.get_by_text("The service does not answer; trying again.")).to_be_visible(timeout=15_000)
    page.unroute("**/studies?*")
    expect(page.get_by_text("The service does not answer; trying again.")).to_be_hidden(timeout=15_000)


def test_list_is_filtered_and_says_when_nothing_is_left(open_page: OpenPage, study: Json) -> None:
    page = open_page()
    expect(page.get_by_role("link", name=NAME).first).to_be_visible()
    page.get_by_label("Contains").fill("branch=other")
    expect(page.get_by_text("No study contains that text.")).to_be_visible()
    page.get_by_label("Contains").fill("BRANCH=main")
    expect(page.get_by_role("link", name=NAME).first).to_be_visible()
    page.get_by_label("Status").select_option("cancelled")
    expect(page.get_by_text("No study is cancelled.")).to_be_visible()


def test_name_that_is_markup_stays_text(open_page: OpenPage, api: httpx.Client, study: Json) -> None:
    markup = '<img src=x onerror="document.title=1"> & <b>bold</b>'
    document: dict[str, Any] = configuration(markup)
    document["search_space"] |= {"model_name": "deepseek-ai/DeepSeek-V3", "hardware_sku": "l40s", "gpu_budget": 1}
    posted = api.post("/studies", params={"wait": 60}, json=document).json()
    page = open_page()
    page.get_by_role("link", name=markup).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(markup)
    expect(page).to_have_url(re.compile(posted["id"]))
    assert page.locator("main img, main b").count() == 0


def test_study_that_cannot_fit_says_why(open_page: OpenPage, api: httpx.Client, study: Json) -> None:
    document: dict[str, Any] = configuration("too large")
    document["search_space"] |= {"model_name": "deepseek-ai/DeepSeek-V3", "hardware_sku": "l40s", "gpu_budget": 2}
    posted = api.post("/studies", params={"wait": 60}, json=document).json()
    page = open_page(address_of(posted))
    expect(page.get_by_role("alert")).to_contain_text("no memory left for the KV cache")
    expect(page.get_by_role("heading", name="Shapes not searched")).to_be_visible()
    page.get_by_text("Each of them, with its reason").click()
    expect(page.get_by_role("table", name="Excluded shapes").get_by_role("row").nth(1)).to_be_visible()


def test_better_and_worse_mean_what_they_mean_in_the_api(open_page: OpenPage, ranked: list[Json]) -> None:
    page = open_page()
    names = sorted(ranked[0]["metrics"])
    script = """async (names) => {
        const { direction } = await import("/dashboard/metrics.js");
        return names.map((name) => direction(name));
    }"""
    said = page.evaluate(script, names)
    assert dict(zip(names, said, strict=True)) == {name: direction(name) for name in names}
