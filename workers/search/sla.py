"""How far a replay is from the SLA of its goal: bound by bound, and as one figure to sort by.

Source: service.md, section 8. The bounds act on the means, as in `score.misses_sla`.
"""

from collections.abc import Mapping
from typing import Any

from app.schemas.goal import Goal

_STEMS = {"ttft_ms": "ttft_ms", "itl_ms": "tpot_ms", "e2e_ms": "e2e_latency_ms"}


def sla_standing(goal: Goal, metrics: Mapping[str, float | int | None]) -> dict[str, Any] | None:
    """The standing as a JSON document; None without bounds, or without a replay.

    bounds: per bound set, its limit, the replay's mean and p99, and ratio = mean / limit. worst_ratio: the largest
    ratio, above 1 when the SLA is missed; null if a mean has no sample. good_ratio: part of the requests that met
    every bound.
    """
    if goal.sla is None or not metrics:
        return None
    limits = {bound: getattr(goal.sla, bound) for bound in _STEMS if getattr(goal.sla, bound) is not None}
    bounds = {bound: _standing(limit, metrics, _STEMS[bound]) for bound, limit in limits.items()}
    ratios = [each["ratio"] for each in bounds.values() if each["ratio"] is not None]
    good, num = metrics.get("goodput_completed_requests"), metrics.get("num_requests")
    return {
        "worst_ratio": max(ratios) if ratios and len(ratios) == len(bounds) else None,
        "good_ratio": good / num if good is not None and num else None,
        "bounds": bounds,
    }


def _standing(limit: float, metrics: Mapping[str, float | int | None], stem: str) -> dict[str, float | None]:
    mean = metrics.get(f"mean_{stem}")
    ratio = mean / limit if mean is not None else None
    return {"limit": limit, "mean": mean, "p99": metrics.get(f"p99_{stem}"), "ratio": ratio}
