"""What a plan warns about, and what it says when nothing fits.

Source: service.md, sections 3 and 8.
"""

from typing import Any

from app.catalog import snapshot
from app.schemas.advice import Warned
from app.schemas.plan import ContextPlan, KvCapacityPlan, NearestPlan
from workers.search.facts import CatalogFacts, Facts
from workers.search.knobs import distinct
from workers.search.nearest import nearest_fit
from workers.search.room import TraceSummary
from workers.search.sieve import Excluded
from workers.search.space import Space


def warnings(
    space: Space, context: ContextPlan, capacity: list[KvCapacityPlan], trace: TraceSummary | None = None
) -> list[Warned]:
    """What the plan shows and the configuration alone does not."""
    config = space.config
    said = trace.get("warnings", ()) if trace else ()
    found = [Warned(pointer="/workload/trace_path", detail=detail) for detail in said]
    searched = {branch.mode for branch in space.branches}
    found += [
        Warned(pointer="/search_space/deployment_mode", detail=f"{mode} has no shape that fits and is skipped")
        for mode in distinct(config.search_space.deployment_mode)
        if searched and mode not in searched
    ]
    found += [
        Warned(pointer="/search_space/backend", detail=f"{each.backend} is left out: {each.detail}")
        for each in space.excluded
        if each.shape is None
    ]
    if context.num_requests_over:
        detail = (
            f"{context.num_requests_over} requests exceed the context of {context.limit_tokens} tokens;"
            f" the longest has {context.longest_request_tokens}; candidates reject or cut them and say how many"
        )
        found.append(Warned(pointer="/workload", detail=detail))
    empty = sum(row.tokens_per_rank is None for row in capacity)
    if empty:
        detail = (
            f"{empty} of {len(capacity)} pairs of shape and batching leave no KV budget: those trials are infeasible"
        )
        found.append(Warned(pointer="/search_space", detail=detail))
    return found


def nearest(space: Space, facts: Facts) -> NearestPlan:
    """The least change that would let something fit."""
    wanted = space.config.search_space

    def others() -> dict[str, Facts]:
        names = [name for name in snapshot.HARDWARE if name != wanted.hardware_sku]
        return {name: CatalogFacts(wanted.model_name, name, wanted.aic_nextn) for name in names}

    backends = distinct(each.backend for each in space.excluded)
    return nearest_fit(space.config, backends, facts, others)


def problem(space: Space, near: NearestPlan) -> dict[str, Any]:
    """Nothing fits: the reasons counted, each with the figures of the shape that came closest."""
    by_code: dict[str, list[Excluded]] = {}
    for each in space.excluded:
        by_code.setdefault(each.code.value, []).append(each)
    reasons = []
    for code, cases in by_code.items():
        closest = min(cases, key=lambda case: case.numbers.get("short_gib", float("inf")))
        backends = sorted({case.backend for case in cases})
        example = {"detail": closest.detail, "numbers": dict(closest.numbers)}
        reasons.append({"code": code, "count": len(cases), "backends": backends, "example": example})
    said = ", ".join(f"{reason['count']} x {reason['code']}" for reason in reasons)
    wanted = space.config.search_space
    advice = (
        f"the smallest engine that fits takes {near.smallest_gpus} GPUs"
        if near.smallest_gpus
        else "no number of GPUs helps"
    )
    return {
        "type": "urn:spica:problem:no-viable-candidate",
        "title": "No viable candidate",
        "detail": f"{wanted.model_name} fits on none of the shapes within {wanted.gpu_budget} x {wanted.hardware_sku}"
        f" ({said}); {advice}.",
        "pointer": "/search_space",
        "reasons": reasons,
        "nearest": near.model_dump(mode="json"),
    }
