"""`goal`: what a study optimizes.

Source: search.md, sections 1.5 and 3.
"""

from typing import Annotated

from pydantic import Field

from app.schemas.block import Block, Document, Flaw, OneOf, is_set, mapping_at

SCALAR_TARGETS = (
    "throughput",
    "throughput_per_gpu",
    "throughput_per_user",
    "goodput",
    "goodput_per_gpu",
    "e2e_latency",
    "ttft",
)
TARGETS = (*SCALAR_TARGETS, "min_gpus", "pareto")
GOODPUT_TARGETS = ("goodput", "goodput_per_gpu")
DEFAULT_OBJECTIVES = ("throughput_per_gpu", "throughput_per_user")

_Bound = Annotated[float, Field(gt=0)]


class Sla(Block):
    """Bounds that a request must meet to count as good, ms."""

    ttft_ms: _Bound | None = None
    itl_ms: _Bound | None = None
    e2e_ms: _Bound | None = None


class Goal(Block):
    """One target, or several objectives under `pareto`."""

    target: Annotated[str, OneOf(TARGETS)] = "throughput"
    sla: Sla | None = None
    pareto_objectives: Annotated[list[Annotated[str, OneOf(SCALAR_TARGETS)]], Field(max_length=7)] | None = None
    strict_sla: bool = False
    min_goodput_rps: Annotated[float, Field(gt=0)] | None = None

    @property
    def is_pareto(self) -> bool:
        """Whether the answer is a front."""
        return self.target == "pareto"

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives of a front, or the one target."""
        return tuple(self.pareto_objectives or DEFAULT_OBJECTIVES) if self.is_pareto else (self.target,)


def goal_flaws(document: Document) -> list[Flaw]:
    """Objectives only under pareto and at least two distinct; extras only where they act."""
    goal = mapping_at(document, "goal")
    target = goal.get("target", "throughput")
    flaws = _objective_flaws(goal, target)
    if is_set(goal, "min_goodput_rps") and target != "min_gpus":
        flaws.append(
            Flaw(
                ("goal", "min_goodput_rps"),
                "only_with_min_gpus",
                "acts only with target min_gpus",
                "remove it, or set target to min_gpus",
                goal["min_goodput_rps"],
            )
        )
    return flaws + _sla_flaws(goal, target)


def _objective_flaws(goal: Document, target: object) -> list[Flaw]:
    objectives, at = goal.get("pareto_objectives"), ("goal", "pareto_objectives")
    if objectives is None:
        return []
    flaws = []
    if target != "pareto":
        remedy = "remove it, or set target to pareto"
        flaws.append(Flaw(at, "only_with_pareto", "acts only with target pareto", remedy, objectives))
    if isinstance(objectives, list):
        names = [name for name in objectives if isinstance(name, str)]
        if len(objectives) < 2:
            remedy = "name two objectives, such as throughput_per_gpu and throughput_per_user"
            flaws.append(Flaw(at, "too_few_objectives", "a front needs at least two objectives", remedy, objectives))
        elif len(set(names)) < len(names):
            flaws.append(Flaw(at, "repeated_objective", "an objective is repeated", "name each one once", objectives))
    return flaws


def _sla_flaws(goal: Document, target: object) -> list[Flaw]:
    objectives = goal.get("pareto_objectives") if target == "pareto" else None
    wanted = [target, *(objectives if isinstance(objectives, list) else [])]
    needs_goodput = [name for name in wanted if name in GOODPUT_TARGETS] or (
        ["min_goodput_rps"] if is_set(goal, "min_goodput_rps") else []
    )
    sla = mapping_at(goal, "sla")
    complete = is_set(sla, "e2e_ms") or (is_set(sla, "ttft_ms") and is_set(sla, "itl_ms"))
    about = tuple(("goal", "sla", bound) for bound in ("ttft_ms", "itl_ms", "e2e_ms"))
    if needs_goodput and not complete:
        fault = f"{needs_goodput[0]} needs an SLA: ttft_ms and itl_ms together, or e2e_ms"
        return [Flaw(("goal", "sla"), "goodput_needs_sla", fault, "set those bounds", goal.get("sla"), about)]
    if (goal.get("strict_sla") is True or target == "min_gpus") and not any(is_set(sla, at[-1]) for at in about):
        fault = f"{'target min_gpus' if target == 'min_gpus' else 'strict_sla'} needs at least one SLA bound"
        return [Flaw(("goal", "sla"), "bounds_needed", fault, "set ttft_ms, itl_ms or e2e_ms", goal.get("sla"), about)]
    return []
