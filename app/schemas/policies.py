"""Which scaling policies a goal can use, and which load predictors they then need.

Source: search.md, sections 5.3 and 6.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal

from app.errors import FieldFault
from app.schemas.goal import GOODPUT_TARGETS, Goal
from app.schemas.presets import LOAD_PREDICTORS, SCALING_POLICIES, LoadPredictor, ScalingPolicy
from app.schemas.search_space import SearchSpace
from app.schemas.study import SmartSearchConfig

PREDICTOR_EXTRA = "predictors"
"""The optional extra of an installation that the packages below belong to."""

_PACKAGES = {"arima": "pmdarima", "prophet": "prophet"}


def policies(space: SearchSpace) -> list[ScalingPolicy]:
    """The scaling policies of the space, presets resolved, repeats removed."""
    resolved = (SCALING_POLICIES[p] if isinstance(p, str) else p for p in space.planner_scaling_policy)
    return list({policy.model_dump_json(): policy for policy in resolved}.values())


def optimization_target(goal: Goal) -> Literal["throughput", "latency", "sla"] | None:
    """What a planner optimizes under this goal; None if only static policies make sense.

    Goodput needs bounds that a planner can steer by: time to first token and between tokens. Fewest GPUs are counted at
    the start of a replay, which says nothing about a fleet that grows.
    """
    if any(name in GOODPUT_TARGETS for name in goal.objectives):
        sla = goal.sla
        if sla is not None and sla.ttft_ms is not None and sla.itl_ms is not None:
            return "sla"
        return "throughput" if goal.is_pareto else None
    if goal.target in ("e2e_latency", "ttft"):
        return "latency"
    return None if goal.target == "min_gpus" else "throughput"


def kept_policies(space: SearchSpace, goal: Goal) -> list[ScalingPolicy]:
    """Policies that act under the goal: throughput scaling needs the target sla, any scaling needs a target."""
    target = optimization_target(goal)
    return [
        policy
        for policy in policies(space)
        if not (policy.enable_throughput_scaling and target != "sla")
        and not (policy.enable_load_scaling and target is None)
    ]


def throughput_intervals(config: SmartSearchConfig) -> list[int]:
    """Distinct intervals of the kept policies that scale by forecast, s, ascending."""
    kept = kept_policies(config.search_space, config.goal)
    return sorted({each.throughput_adjustment_interval_seconds for each in kept if each.enable_throughput_scaling})


def named_predictors(space: SearchSpace) -> list[tuple[str, LoadPredictor]]:
    """The predictor candidates in order, each with its preset's name or its place in the list."""
    return [
        (entry, LOAD_PREDICTORS[entry]) if isinstance(entry, str) else (f"custom_{place}", entry)
        for place, entry in enumerate(space.load_predictor_candidates)
    ]


def missing_package(predictor: LoadPredictor) -> str | None:
    """The package that a predictor needs and this installation lacks; None if it can run."""
    package = _PACKAGES.get(predictor.load_predictor)
    return package if package is not None and find_spec(package) is None else None


def policy_faults(config: SmartSearchConfig) -> Iterator[FieldFault]:
    """Why no policy of the configuration can be used, or none of its predictors."""
    space = config.search_space
    if not kept_policies(space, config.goal):
        written = [entry if isinstance(entry, str) else entry.model_dump() for entry in space.planner_scaling_policy]
        why = f"holds no policy that goal.target {config.goal.target} can use"
        yield FieldFault("/search_space/planner_scaling_policy", written, why, "add the policy disabled")
    candidates = named_predictors(space)
    if throughput_intervals(config) and all(missing_package(each) for _, each in candidates):
        names = [name for name, _ in candidates]
        why = f"needs the optional extra `{PREDICTOR_EXTRA}`, which this service does not have"
        remedy = "add constant_last or a kalman predictor, or install requirements-predictors.lock"
        yield FieldFault("/search_space/load_predictor_candidates", names, why, remedy)
