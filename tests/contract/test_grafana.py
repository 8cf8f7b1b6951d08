"""The Grafana dashboard asks only for metrics and labels that the service has."""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import Gauge, Histogram

from app.routes import metering

REPOSITORY = Path(__file__).resolve().parents[2]
DASHBOARD: dict[str, Any] = json.loads((REPOSITORY / "docs" / "grafana" / "spica.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
ADDED_BY_PROMETHEUS = {"job", "instance", "le"}


def _metrics() -> dict[str, set[str]]:
    """Every time series of the service with its labels, as Prometheus stores them."""
    found: dict[str, set[str]] = {}
    for metric in vars(metering).values():
        if isinstance(metric, Gauge | Histogram):
            endings = ("_bucket", "_count", "_sum") if isinstance(metric, Histogram) else ("",)
            found |= {f"{metric._name}{ending}": set(metric._labelnames) for ending in endings}
    return found


def _selectors(expression: str) -> list[tuple[str, str]]:
    return re.findall(r"\b(spica_\w+)(?:\{(.*?)\})?", expression)


def test_every_metric_asked_for_exists() -> None:
    named = {name for expression in EXPRESSIONS for name, _ in _selectors(expression)}
    assert named
    assert named <= set(_metrics())


def test_every_metric_of_the_service_is_shown() -> None:
    named = {name for expression in EXPRESSIONS for name, _ in _selectors(expression)}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in named}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in _metrics()} <= shown


def test_every_label_asked_for_exists() -> None:
    for expression in EXPRESSIONS:
        selectors = _selectors(expression)
        known = set.union(*(_metrics()[name] for name, _ in selectors)) | ADDED_BY_PROMETHEUS
        matched = {label for _, inside in selectors for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)}
        grouped = {label for group in re.findall(r"\bby \((.*?)\)", expression) for label in group.split(", ")}
        assert matched | grouped <= known, expression


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
