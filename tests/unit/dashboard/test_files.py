"""The dashboard's files: what they may hold, and that they belong together."""

import hashlib
import re

import pytest

from app.dashboard.assets import PAGE, VENDORED, assets
from app.schemas.goal import SCALAR_TARGETS
from app.schemas.status import ReasonCode, StudyStatus

CHART_SHA256 = "87364cc2b2a76a6684929e7d6b80b18a897794db38400caff1fcf1791c6925d2"
MODULE_LINES = 250
OWN = {name: asset.plain.decode() for name, asset in assets().items() if not name.startswith(VENDORED)}
MODULES = {name: text for name, text in OWN.items() if name.endswith(".js")}


def test_chart_library_is_the_published_file() -> None:
    assert hashlib.sha256(assets()[f"{VENDORED}.umd.min.js"].plain).hexdigest() == CHART_SHA256
    assert b"MIT" in assets()[f"{VENDORED}.LICENSE.md"].plain


def test_every_file_that_is_named_exists() -> None:
    named = {name for text in OWN.values() for name in re.findall(r'(?:"|\')(?:dashboard/|\./)([\w.-]+)(?:"|\')', text)}
    assert {"main.js", "style.css", f"{VENDORED}.umd.min.js"} <= named
    assert named <= set(assets())


def test_every_module_is_used() -> None:
    named = {name for text in OWN.values() for name in re.findall(r"[\w-]+\.js", text)}
    assert set(MODULES) <= named


def test_no_file_names_an_outside_address() -> None:
    addresses = {url for text in OWN.values() for url in re.findall(r"https?://[^\s\"'<>)]+|url\(", text)}
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which no browser fetches


def test_page_has_no_inline_script_or_style() -> None:
    page = OWN[PAGE]
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_writes_no_markup(name: str) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage\.setItem\(KEY"
    )
    assert re.findall(forbidden, MODULES[name]) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_is_short(name: str) -> None:
    assert len(MODULES[name].splitlines()) <= MODULE_LINES


def test_key_is_kept_in_the_tab_only() -> None:
    assert {name for name, text in MODULES.items() if "localStorage" in text} == {"theme.js"}
    assert {name for name, text in MODULES.items() if "sessionStorage" in text} == {"api.js"}


def test_every_reason_status_and_objective_has_words() -> None:
    assert {f"{code}:" for code in ReasonCode} <= set(OWN["words.js"].split())
    assert {f"{target}:" for target in (*SCALAR_TARGETS, "min_gpus")} <= set(OWN["metrics.js"].split())
    marks = re.search(r"const MARKS = (.*);", OWN["parts.js"])
    assert marks
    assert all(f"{status}:" in marks[1] for status in StudyStatus)


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    """Source: WCAG 2.2, contrast ratio."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _themes() -> dict[str, dict[str, str]]:
    light, system_dark, chosen_dark = (
        _colours(block) for block in re.findall(r":root[^{]*\{([^}]*)\}", OWN["style.css"])[:3]
    )
    assert system_dark == chosen_dark
    return {"light": light, "dark": chosen_dark}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_have_enough_contrast(theme: str) -> None:
    colour = _themes()[theme]
    texts = [(text, ground) for text in ("text", "muted", "accent") for ground in ("ground", "panel", "first-ground")]
    texts += [(kind, f"{kind}-ground") for kind in ("good", "bad", "warn", "busy")]
    texts += [("on-accent", "accent"), ("good", "ground"), ("bad", "ground")]
    signs = [(sign, "ground") for sign in ("edge", "faint", "focus", "series-1", "series-2", "series-3", "series-4")]
    found = {pair: _contrast(*(colour[name] for name in pair)) for pair in texts + signs}
    limits = dict.fromkeys(texts, 4.5) | dict.fromkeys(signs, 3.0)
    assert {pair: ratio for pair, ratio in found.items() if ratio < limits[pair]} == {}
